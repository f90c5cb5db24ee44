"""Cheap tokens: four bytes each, of a rendered prompt in which turn n is a prefix of turn n+1."""

import functools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

TOKEN_BYTES = 4
END = b"<//>"
"""Ends every message; the last token of every complete answer."""

_PADDING = (b"", b"   ", b"  ", b" ")
_ENDINGS = tuple(padding + END for padding in _PADDING)


def pad(data: bytes) -> bytes:
    """Fill up the last token, so that what follows starts with a token of its own."""
    return data + _PADDING[len(data) & 3]


@functools.lru_cache(maxsize=64)
def header(role: str) -> bytes:
    return pad(b"<|" + role.encode() + b"|>")


def render_chat(messages: Iterable[Mapping[str, Any]], tools: Sequence[Any] | None) -> bytes:
    """The prompt of a chat request: tools first, then every message, then the header of the answer to come."""
    parts = []
    if tools:
        parts += [header("tools"), pad(orjson.dumps(tools)), END]
    for message in messages:
        data = render_message(message)
        parts += [header(message["role"]), data, _ENDINGS[len(data) & 3]]
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


CALL_CLOSING = b"}</tool_call>"


def text_of(content: object) -> str:
    """The text of a message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(
        part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else orjson.dumps(part).decode()
        for part in content
    )


def from_ids(ids: Sequence[int]) -> bytes:
    """The bytes of a prompt given as token ids. Raises struct.error for an id that is no 32-bit number."""
    return struct.pack(f"<{len(ids)}I", *ids)


def to_ids(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // TOKEN_BYTES}I", data))


def block_hashes(data: bytes, block_size: int, salt: str = "") -> list[int]:
    """A hash per full block that stands for everything up to its end. Equal only for equal bytes and salt.

    They are compared inside one process only, so Python's own hash serves, though it differs between processes.
    """
    width = block_size * TOKEN_BYTES
    previous = hash(salt)
    ends = range(width, len(data) + 1, width)
    return [previous := hash((previous, data[end - width : end])) for end in ends]
