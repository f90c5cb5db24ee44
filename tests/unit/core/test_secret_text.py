"""Keys in what others say of them."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.safe_text import mask_user_info, masked, masked_bytes, public_url

KEY = 'sk-a/b+c"d=e&f<g 0123'
WAYS: dict[str, Callable[[str], str]] = {
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


def test_text_without_a_key_is_unchanged() -> None:
    for secrets in ([], [""], ["sk-secret"]):
        assert masked("nothing to hide \x1b é", secrets) == "nothing to hide \x1b é"
    assert masked_bytes(b"\xff\x00 \xc3\xa9", ["sk-secret"]) == b"\xff\x00 \xc3\xa9"
    assert masked("one two", ["one", "two"]) == "*** ***"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("rediss://me:s3cret@host:6379/0", "rediss://host:6379/0"),
        ("redis://:s3c/r@e?t@host/1", "redis://..."),
        ("redis://:s3/c#ret@host/1", "redis://host/1"),
        ("redis://:s3c://ret@host/1", "redis://host/1"),
        ("redis://host/1?password=s3cret", "redis://host/1"),
        ("redis://host/1?password=s3@cret", "redis://..."),
        ("unix://me:s3cret@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("me:s3cret@host/1", "host/1"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, public: str) -> None:
    assert public_url(url) == public


def test_users_and_passwords_of_urls_are_masked_in_a_text() -> None:
    text = "http://me:s3@cret@one/v1 and https://two/v1"
    assert mask_user_info(text) == "http://***@one/v1 and https://two/v1"
