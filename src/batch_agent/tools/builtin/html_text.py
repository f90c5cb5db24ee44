"""Text from bytes of unknown encoding, and from HTML."""

import codecs
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html import unescape

from ...charset import bom_encoding

_SNIFFED_BYTES = 65_536
_MAX_TAGS = 20_000
_MAX_ATTRIBUTES = 1_000
"""Of one tag. lxml takes minutes for a tree with a tag of tens of thousands, and no other page is parsed meanwhile."""
_NOT_OF_PAGES = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Codecs that Python counts as encodings. `punycode` takes hours for a megabyte."""
_META = re.compile(rb"<meta[^<>]{0,200}?charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_TAG = re.compile(r"<(!--|[!?]|/?([A-Za-z][A-Za-z0-9]*))")
_INVISIBLE = frozenset({"iframe", "noscript", "object", "script", "style", "svg", "template"})
_INLINE = frozenset(
    {"a", "abbr", "b", "code", "em", "font", "i", "mark", "q", "s", "small", "span", "strong", "sub", "u"}
)


def encoding_of(head: bytes, declared: str | None = None) -> str | None:
    """Encoding of data that begins with `head`; None for binary data. `declared`: the encoding that the sender
    declares."""
    if marked := bom_encoding(head):
        return marked
    if b"\0" in head:
        return None
    if declared is not None and _is_known(declared):
        return declared
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head[:_SNIFFED_BYTES])
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def decode(data: bytes, declared: str | None = None) -> str | None:
    """The text; None for binary data."""
    encoding = encoding_of(data, declared)
    return data.decode(encoding, errors="replace") if encoding is not None else None


def charset_in(html: bytes) -> str | None:
    found = _META.search(html[:4096])
    return found.group(1).decode("ascii") if found else None


def readable(html: str) -> str:
    """Main text of a page, without navigation. Slow: call it in a thread."""
    try:
        from trafilatura import extract
    except ImportError:
        return plain(html)
    if html.count("<") > _MAX_TAGS or _max_attributes(html) > _MAX_ATTRIBUTES:
        return plain(html)
    # Without `fast` it falls back on algorithms that take minutes for a page of nothing but lists.
    return extract(html, output_format="markdown", include_comments=False, fast=True) or plain(html)


class _AttributeCounter:
    """Target of a parser that builds no tree."""

    def __init__(self) -> None:
        self._most = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._most = max(self._most, len(attributes))

    def close(self) -> int:
        return self._most


def _max_attributes(html: str) -> int:
    """Number of attributes of the tag that has most, in linear time."""
    from lxml.etree import HTMLParser  # type: ignore[import-untyped]

    parser = HTMLParser(target=_AttributeCounter(), encoding="utf-8")
    parser.feed(html.encode(errors="replace"))
    most: int = parser.close()
    return most


def plain(html: str) -> str:
    """All text of a page, in linear time, which html.parser does not guarantee."""
    text = "".join(_pieces(html))
    with suppress(ValueError):  # a character whose number has thousands of digits
        text = unescape(text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def _pieces(html: str) -> Iterator[str]:
    at = 0
    while (tag := _TAG.search(html, at)) is not None:
        yield html[at : tag.start()].replace("\n", " ")
        name = (tag[2] or "").lower()
        if name not in _INLINE and tag[1] != "!--":
            yield "\n"
        at = _after(html, tag, name)
        if at < 0:
            return
    yield html[at:].replace("\n", " ")


def _after(html: str, tag: re.Match[str], name: str) -> int:
    """Position at which the text continues; -1: nowhere."""
    if name in _INVISIBLE and not tag[1].startswith("/"):
        end = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(html, tag.end())
        return end.end() if end is not None else -1
    closing = "-->" if tag[1] == "!--" else ">"
    end_at = html.find(closing, tag.end())
    return end_at + len(closing) if end_at >= 0 else -1


def _is_known(encoding: str) -> bool:
    try:
        if codecs.lookup(encoding).name in _NOT_OF_PAGES:
            return False
        "".encode(encoding)
    except LookupError:
        return False
    return True
