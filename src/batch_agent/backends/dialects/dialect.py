"""What a wire format has to do: pure encoding, and decoding piece by piece."""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Protocol

import orjson

from ...core.json import dumps
from ...core.messages import ToolCall
from ...core.requests import Delta, Request

_WORTH_MARKING = 1024
"""Characters. Caches keep nothing shorter than a thousand tokens, of which the prompt before it has its part."""


class StreamDecoder(Protocol):
    """Deltas from the bytes of a streamed answer, for any chunking. They say the same in the same order; what follows
    on its own kind within a chunk may be one delta. All of it raises BackendError."""

    @property
    def ended(self) -> bool: ...

    def feed(self, chunk: bytes) -> Iterator[Delta]: ...

    def close(self) -> Iterator[Delta]:
        """The last deltas, when the bytes are over."""
        ...


class Dialect(Protocol):
    @property
    def stream_type(self) -> str:
        """The content type of a streamed answer; an answer of any other is read as a plain one."""
        ...

    def path(self, request: Request) -> str:
        """Where the request goes, below the server's root."""
        ...

    def headers(self, request: Request) -> Mapping[str, str] | None:
        """What this one request says in its headers."""
        ...

    def encode(self, request: Request) -> bytes: ...

    def decode_reply(self, body: bytes) -> list[Delta]: ...

    def decoder(self) -> StreamDecoder: ...


class EncodingCache:
    """Bytes that many requests share, made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[object, bytes]] = {}

    def get(self, shared: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        """They depend only on the identity of `shared`, which is kept alive so that no other takes its place."""
        key = tuple(map(id, shared))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = (shared, make())
        return found[1]


def arguments_object(call: ToolCall) -> bytes:
    """The model's own arguments, byte for byte, where they are the object that an API wants."""
    raw = call.arguments.encode(errors="replace")
    try:
        is_object = isinstance(orjson.loads(raw), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return raw if is_object else dumps({"malformed": call.arguments})


def split_at_cache_mark(text: str, shared: int) -> tuple[str, str] | None:
    """A text as what others share of it and the rest; None where a mark between them would be of no use."""
    first, rest = text[:shared], text[shared:]
    return (first, rest) if shared >= _WORTH_MARKING and first.strip() and rest.strip() else None


def sanitized_id(call: ToolCall, pattern: re.Pattern[str]) -> str:
    """The call's id, or for one that the API would not take the same other one each time."""
    if pattern.fullmatch(call.id):
        return call.id
    return "call_" + blake2b(call.id.encode(errors="surrogatepass"), digest_size=12).hexdigest()
