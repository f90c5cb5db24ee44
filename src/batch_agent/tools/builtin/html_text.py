"""Text from bytes of unknown encoding, and from HTML."""

import codecs
import re
from collections.abc import Iterator
from html import unescape

from ...charset import bom_encoding

_SNIFFED_BYTES = 65_536
_MAX_TAGS = 20_000
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
    if html.count("<") > _MAX_TAGS:
        return plain(html)
    # Without `fast` it falls back on algorithms that take minutes for a page of nothing but lists.
    return extract(html, output_format="markdown", include_comments=False, fast=True) or plain(html)


def plain(html: str) -> str:
    """All text of a page, in linear time, which html.parser does not guarantee."""
    lines = (" ".join(line.split()) for line in unescape("".join(_pieces(html))).split("\n"))
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
        "".encode(encoding)
    except LookupError:
        return False
    return True
