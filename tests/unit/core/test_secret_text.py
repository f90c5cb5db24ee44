"""Keys in what others say of them."""

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.secret_text import masked, masked_bytes

KEY = 'sk-a/b+c"d=e&f<g 0123'
WAYS = {
    "as it is": lambda key: key,
    "url": lambda key: quote(key, safe=""),
    "url with slashes": quote,
    "form": quote_plus,
    "small hex": lambda key: quote(key, safe="").lower(),
    "json": lambda key: json.dumps({"key": key}),
    "json with escaped slashes": lambda key: json.dumps(key).replace("/", "\\/"),
    "json in json": lambda key: json.dumps({"body": json.dumps({"key": key})}),
    "html": html.escape,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "basic auth": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "header in base64": lambda key: base64.b64encode(f"Bearer {key}, that is".encode()).decode(),
    "url-safe base64": lambda key: base64.urlsafe_b64encode(f">>{key}??".encode()).decode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_masked_however_it_is_quoted(way: str) -> None:
    key = KEY.lower() if way == "small hex" else KEY
    quoted = WAYS[way](key)
    text = f"The key {quoted} is wrong."
    said = masked(text, [key])
    assert "***" in said
    assert said.startswith("The key ")
    assert said.endswith(" is wrong.")
    assert quoted not in said
    assert masked_bytes(text.encode(), [key]).decode() == said


@given(st.binary(max_size=9), st.text("abcXYZ019-_./+", min_size=14, max_size=60), st.binary(max_size=9))
def test_little_of_a_key_is_left_of_its_base64(before: bytes, key: str, after: bytes) -> None:
    quoted = base64.b64encode(before + key.encode() + after).decode()
    left = masked(quoted, [key])
    assert "***" in left
    assert len(left.replace("***", "")) <= len(quoted) - len(key) * 4 // 3 + 8


@pytest.mark.parametrize("size", range(8, 20))
def test_a_key_that_is_cut_off_by_the_end_is_masked_too(size: int) -> None:
    assert masked(f"wrong key: {KEY[:size]}", [KEY]) == "wrong key: ***"


def test_other_words_stay() -> None:
    for secrets in ([], [""], ["sk-secret"]):
        assert masked("nothing to hide \x1b é", secrets) == "nothing to hide \x1b é"
    assert masked_bytes(b"\xff\x00 \xc3\xa9", ["sk-secret"]) == b"\xff\x00 \xc3\xa9"
    assert masked("one two", ["one", "two"]) == "*** ***"
