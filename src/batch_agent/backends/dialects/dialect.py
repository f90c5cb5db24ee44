"""Interface of a dialect: pure encoding of requests, and incremental decoding of responses."""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import Protocol

import orjson

from ...core.fast_dataclass import dataclass
from ...core.images import ImageRef, PlacedImage, split_at_images
from ...core.json import dumps
from ...core.messages import ToolCall, User
from ...core.requests import Delta, Lane, Request

_MIN_SHARED_CHARACTERS = 1024
"""Characters below which a cache mark is useless: caches keep no prefix under about a thousand tokens, and the system
prompt is part of it."""


class StreamDecoder(Protocol):
    """Incremental decoder of a streamed response. The chunking does not change the content or the order of the deltas;
    consecutive deltas of one kind in a chunk may be joined. Methods raise BackendError."""

    @property
    def ended(self) -> bool: ...

    def feed(self, chunk: bytes) -> Iterator[Delta]: ...

    def close(self) -> Iterator[Delta]:
        """The last deltas, after the end of the body."""
        ...


class Dialect(Protocol):
    """Wire format of requests and responses."""

    @property
    def stream_type(self) -> str:
        """Content type of a streamed response. A response of another type is decoded in one piece."""
        ...

    def path(self, request: Request) -> str:
        """Path of the request, relative to the server's root."""
        ...

    def headers(self, request: Request) -> Mapping[str, str] | None:
        """Headers of this request, in addition to those of every request."""
        ...

    def encode(self, request: Request) -> bytes: ...

    def decode_reply(self, body: bytes, lane: Lane = "standard") -> list[Delta]:
        """`lane`: of the request, by which it is billed unless the response names another one."""
        ...

    def decoder(self, lane: Lane = "standard") -> StreamDecoder: ...


class EncodingCache:
    """Cache of encoded parts that many requests share."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[int, ...], tuple[object, bytes]] = {}

    def get(self, shared: tuple[object, ...], encode: Callable[[], bytes]) -> bytes:
        """The bytes for `shared`, by identity. `shared` is kept alive so that its ids are not reused."""
        key = tuple(map(id, shared))
        cached = self._encoded.get(key)
        if cached is None:
            cached = self._encoded[key] = (shared, encode())
        return cached[1]


def arguments_object(call: ToolCall) -> bytes:
    """The model's own arguments, byte for byte, if they are a JSON object, which the API requires."""
    raw = call.arguments.encode(errors="replace")
    try:
        is_object = isinstance(orjson.loads(raw), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return raw if is_object else dumps({"malformed": call.arguments})


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Part of a message of the user."""

    text: str
    is_marked: bool = False
    """A cache mark follows it."""


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """Image in a message of the user."""

    image: ImageRef
    is_marked: bool = False
    """A cache mark follows it."""


def cache_blocks(message: User, *, marks: bool = True) -> tuple[TextBlock | ImageBlock, ...]:
    """The message, split at its images and where other messages that begin alike may end. Cache marks are behind the
    text that all agents share and behind all that some share, unless they would be useless or `marks` is False."""
    text, shared = message.text, message.shared
    has_own = bool(text[shared:].strip()) or any(placed.at >= shared for placed in message.images)
    if not marks or shared < _MIN_SHARED_CHARACTERS or not text[:shared].strip() or not has_own:
        return tuple(_span(message, 0, len(text), is_marked=False)) if message.images else (TextBlock(text),)
    ends = [*message.breaks, shared, len(text)]
    lead = message.breaks[0] if message.breaks else 0
    blocks: list[TextBlock | ImageBlock] = []
    for start, end in pairwise([0, *ends]):
        is_marked = end == shared or (end == lead and lead >= _MIN_SHARED_CHARACTERS)
        blocks += _span(message, start, end, is_marked=is_marked)
    return tuple(blocks)


def _span(message: User, start: int, end: int, *, is_marked: bool) -> list[TextBlock | ImageBlock]:
    """Text and images of a part of the message. An image at its end belongs to the next part, if there is one."""
    is_last = end == len(message.text)
    placed = [each for each in message.images if start <= each.at < end or (is_last and each.at == end)]
    inside = [PlacedImage(each.at - start, each.image) for each in placed]
    parts = split_at_images(message.text[start:end], inside)
    blocks = [TextBlock(part) if isinstance(part, str) else ImageBlock(part) for part in parts]
    return [*blocks[:-1], replace(blocks[-1], is_marked=is_marked)] if blocks else []


def base64_of(image: ImageRef) -> str:
    """The bytes of an image in Base64; its label where it was not read, because nothing is sent."""
    return f"<{image.label}>" if image.data is None else b64encode(image.data).decode()


def sanitized_id(call: ToolCall, pattern: re.Pattern[str]) -> str:
    """The call's id, or a stable replacement for an id that the API would reject."""
    if pattern.fullmatch(call.id):
        return call.id
    return "call_" + blake2b(call.id.encode(errors="surrogatepass"), digest_size=12).hexdigest()
