"""Text from elsewhere, on a terminal."""

import logging
import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent import BackendError, ErrorKind, RunStopped, SpecError
from batch_agent.core.safe_text import masked, safe_text
from batch_agent.observe.sanitize import make_safe

CONTROLS = [chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
BIDI = list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@given(st.text(st.characters()))
def test_safe_text_has_no_control_characters_and_keeps_its_length(text: str) -> None:
    safe = safe_text(text)
    assert len(safe) == len(text)
    assert not set(safe) & {*CONTROLS, *BIDI, "\u2028", "\u2029"}
    safe.encode()
    assert [new for old, new in zip(text, safe, strict=True) if old.isprintable() and old != new] == []


def test_each_control_character_is_replaced() -> None:
    assert [odd for odd in (*CONTROLS, *BIDI, "\ud800") if odd in safe_text(f"a{odd}b")] == []


def test_text_of_all_languages_is_unchanged() -> None:
    for text in ("Zoë\n\tλ 漢字 שלום عربى", "👩‍👩‍👧 می‌خواهم", "plain"):
        assert safe_text(text) == text


def test_a_placeholder_for_a_key_is_not_masked_inside_of_words() -> None:
    assert masked("check the key k of the server", ["k", "", "he"]) == "check the key k of the server"
    assert masked("check the key sk1 of the server", ["sk1"]) == "check the key *** of the server"


def test_error_messages_have_no_control_characters_and_keep_their_text() -> None:
    evil = "no \x1b]52;c;cm0=\x07 model \x9b2J \u202eevil"
    for error in (BackendError(ErrorKind.SERVER, evil), RunStopped(ErrorKind.SERVER, evil), SpecError(evil)):
        assert str(error) == safe_text(evil)
        assert error.args[-1] == evil
    assert str(pickle.loads(pickle.dumps(SpecError(evil)))) == safe_text(evil)


def test_log_records_and_tracebacks_have_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("batch_agent.tests.safe")
    make_safe(log)
    make_safe(log)
    assert len(log.filters) == 1
    try:
        raise ValueError("a \x1b[2J callback")
    except ValueError:
        log.warning("It said %s", "\x1b]0;title\x07", exc_info=sys.exc_info())
    assert "\x1b" not in caplog.text
    assert "␛]0;title␇" in caplog.text
    assert "a ␛[2J callback" in caplog.text
