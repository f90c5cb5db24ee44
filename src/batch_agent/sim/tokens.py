"""Cheap tokenizer: four bytes per token of a rendered prompt, in which turn n is a prefix of turn n+1.

The chat template is `<|tools|>[...]<//><|system|>...<//><|user|>...<//><|assistant|>`, where a call is written
`<tool_call>{"name": "...", "arguments": {...}}</tool_call>`. Padding of the last token of a text is never shown.
"""

import functools
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

TOKEN_BYTES = 4
END = b"<//>"
"""Ends every message, as the last token of every complete answer."""
TOOLS = b"<|tools|>"
CALL_CLOSING = b"}</tool_call>"

_FILLER = b"\xff"
"""Never part of a text, because UTF-8 has no such byte."""
_PADDING = tuple(_FILLER * (-length % TOKEN_BYTES) for length in range(TOKEN_BYTES))
_ENDINGS = tuple(padding + END for padding in _PADDING)
_MARKS = re.compile(rb"(<\|\w+\|>|<//>)")


def pad(data: bytes) -> bytes:
    """Pads the last token, so that the following text starts with a new token."""
    return data + _PADDING[len(data) & 3]


@functools.lru_cache(maxsize=64)
def header(role: str) -> bytes:
    return pad(b"<|" + role.encode() + b"|>")


def render_chat(
    messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] | None, *, opens_answer: bool = True
) -> bytes:
    """The prompt of a chat request: tools first, then every message, then the header of the answer to come."""
    parts = []
    if tools:
        parts += [header("tools"), pad(orjson.dumps(tools)), END]
    for message in messages:
        data = render_message(message)
        parts += [header(message["role"]), data, _ENDINGS[len(data) & 3]]
    if opens_answer:
        parts.append(header("assistant"))
    return b"".join(parts)


def render_message(message: Mapping[str, Any]) -> bytes:
    content = message.get("content")
    text = (content if isinstance(content, str) else text_of(content)).encode()
    calls = message.get("tool_calls")
    if not calls:
        return text
    functions = [call["function"] for call in calls]
    return text + b"".join(render_call(call["name"], call["arguments"]) for call in functions)


def render_call(name: str, arguments: str) -> bytes:
    return call_opening(name) + arguments.encode() + CALL_CLOSING


def call_opening(name: str) -> bytes:
    return b'<tool_call>{"name": "' + name.encode() + b'", "arguments": '


def text_of(content: object) -> str:
    """The text of a message's content, which is a string, a list of parts, or None."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(
        part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else _part(part)
        for part in content
    )


def _part(part: object) -> str:
    """Represents a part that is not text. An image counts as a few tokens, equal only for equal images."""
    data = orjson.dumps(part)
    if isinstance(part, dict) and part.get("type") == "image_url":
        return f"<image {blake2b(data, digest_size=16).hexdigest()}>"
    return data.decode()


def encode(text: str) -> bytes:
    """Encodes a text as whole tokens. The template's marks are always separate tokens, so a rendered conversation has
    the same tokens as messages and as text."""
    data = text.encode()
    if b"<|" not in data and END not in data:
        return pad(data)
    return b"".join([pad(piece) for piece in _MARKS.split(data)])


def decode(data: bytes) -> str:
    """The text of tokens: `decode(encode(text)) == text`. Invalid UTF-8 is shown as replacement characters."""
    return data.replace(_FILLER, b"").decode(errors="replace")


def from_ids(ids: Sequence[int]) -> bytes:
    """The bytes of a prompt given as token ids. Raises struct.error for an id that is not a 32-bit number."""
    return struct.pack(f"<{len(ids)}I", *ids)


def to_ids(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // TOKEN_BYTES}I", data))


def block_hashes(data: bytes, block_size: int, salt: str = "") -> list[int]:
    """A hash per full block, of everything up to its end. Equal only for equal bytes and salt.

    Hashes are compared only within one process, so Python's own hash is sufficient, although it differs between
    processes."""
    width = block_size * TOKEN_BYTES
    previous = hash(salt)
    ends = range(width, len(data) + 1, width)
    return [previous := hash((previous, data[end - width : end])) for end in ends]
