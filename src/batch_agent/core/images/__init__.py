"""Images: what a user gives, what a message refers to, and its position in a text. Nothing is read here."""

import re
import sys
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..fast_dataclass import dataclass
from .image_format import media_type_of

_URL_SCHEMES = ("http://", "https://", "s3://")
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,", re.ASCII)
_SHOWN_DIGEST = 12
_CHARS_PER_TOKEN = 4
_PIXELS_PER_TOKEN = 750
"""Of Claude, and about the same of Qwen-VL."""
_MIN_TOKENS, _USUAL_TOKENS = 64, 1_600
"""Of an image whose size is not known, 1,600: a photo on most services."""
MAX_IMAGE_TOKENS = 16_384
"""Of one image on a server whose worst case is not known; Qwen-VL has the highest limit of the open models."""


class Image:
    """Image of an input, or result of a tool: `Image("photo.png")`, `Image("https://...")`, `Image(data)`,
    `Image(pil_image)`. A file is read when its agent starts and when a request is sent, and not kept."""

    __slots__ = ("_name", "max_side", "page", "source")

    def __init__(self, source: Any, *, max_side: int | None = None, page: int | None = None) -> None:
        """`source`: path, http(s) URL, `data:` URL, bytes or PIL image. `max_side`: pixels of the longer side to which
        a larger image is reduced, which needs batch-agent[images]. `page`: of a PDF, from 1. Raises ValueError."""
        if isinstance(source, str) and (prefix := _DATA_URL.match(source)):
            try:
                source = b64decode(source[prefix.end() :], validate=True)
            except BadBase64 as error:
                raise ValueError(f"Image(...): the data URL is not Base64: {error}.") from error
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        if not isinstance(source, str | Path | bytes) and not is_pil_image(source):
            raise ValueError(f"Image(...) takes a path, a URL, bytes or a PIL image; got {type(source).__name__}.")
        if source in ("", b""):
            raise ValueError("Image(...) is empty.")
        for name, value in (("max_side", max_side), ("page", page)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"Image(..., {name}=...) must be an integer >= 1; got {value!r}.")
        self.source: Any = source
        self.max_side = max_side
        self.page = page
        self._name = ""

    @property
    def url(self) -> str:
        """The URL, if it is one."""
        is_url = isinstance(self.source, str) and self.source.lower().startswith(_URL_SCHEMES)
        return self.source if is_url else ""

    @property
    def path(self) -> str:
        """The path, if it is a file."""
        return str(self.source) if isinstance(self.source, str | Path) and not self.url else ""

    @property
    def name(self) -> str:
        """Name of the image without reading a file: path or URL, or a digest of data in memory."""
        if not self._name:
            self._name = self.path or self.url or _data_name(self.source)
        return self._name

    def __repr__(self) -> str:
        options = {"max_side": self.max_side, "page": self.page}
        given = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        return f"Image({self.name!r}{given})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Image):
            return NotImplemented
        return (self.name, self.max_side, self.page) == (other.name, other.max_side, other.page)

    def __hash__(self) -> int:
        return hash((self.name, self.max_side, self.page))


class ImageData(bytes):
    """Bytes of an image in memory. They are never part of a fact, a job or a log."""

    def __repr__(self) -> str:
        return f"<{len(self):,} bytes>"


@dataclass(frozen=True, slots=True)
class ImageRef:
    """Image that was identified: what a message refers to and a fact records. Its bytes are read when it is sent."""

    digest: str
    """Digest of its bytes when the agent started, or of its URL."""
    media_type: str = ""
    """Media type as it is sent; empty for a URL, which the server reads."""
    size: int = 0
    """Bytes as they are sent; 0: unknown, for a URL and for an image that is made when it is sent."""
    width: int = 0
    height: int = 0
    path: str = ""
    url: str = ""
    max_side: int | None = None
    page: int | None = None
    data: bytes | None = None
    """ImageData of an image in memory, or of one that was read to be sent."""

    @property
    def tokens(self) -> int:
        """Estimate of its tokens, for the KV ledger and for compaction."""
        if not (self.width and self.height):
            return _USUAL_TOKENS
        return min(MAX_IMAGE_TOKENS, max(_MIN_TOKENS, self.width * self.height // _PIXELS_PER_TOKEN))

    @property
    def chars(self) -> int:
        """Characters of text that would have as many tokens."""
        return self.tokens * _CHARS_PER_TOKEN

    @property
    def label(self) -> str:
        """Its type, size and digest, or its URL: what people and logs see instead of the bytes."""
        if self.url:
            return f"image {self.url}"
        page = "" if self.page is None else f" page {self.page}"
        size = "" if not self.size else f", {self.size:,} bytes"
        pixels = "" if not self.width else f", {self.width}x{self.height}"
        origin = f" {self.path}{page}" if self.path else ""
        return f"image{origin}, {self.media_type}{pixels}{size}, blake2b {self.digest[:_SHOWN_DIGEST]}"


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """Image in a text, with its position."""

    at: int
    """Characters of the text before it."""
    image: ImageRef


def is_pil_image(value: Any) -> bool:
    """Whether this is an image of Pillow, which is not imported for it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def as_image(value: Any) -> Image | None:
    """The image that a value is: an Image, one of Pillow, or bytes that begin like an image; None for other values."""
    if isinstance(value, Image):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return Image(value) if media_type_of(bytes(value[:64])) is not None else None
    return Image(value) if is_pil_image(value) else None


def images_of(value: Any) -> tuple[Image, ...]:
    """The images that a value is: one, or a list of nothing else; empty for other values."""
    if isinstance(value, list | tuple):
        found = tuple(image for image in map(as_image, value) if image is not None)
        return found if found and len(found) == len(value) else ()
    image = as_image(value)
    return () if image is None else (image,)


def text_with_labels(text: str, images: Sequence[PlacedImage]) -> str:
    """The text with a label instead of each image, for people."""
    parts, end = list[str](), 0
    for placed in images:
        parts += [text[end : placed.at], f"[{placed.image.label}]"]
        end = placed.at
    return "".join([*parts, text[end:]])


def split_at_images(text: str, images: Sequence[PlacedImage]) -> list[str | ImageRef]:
    """The parts of a message in their order; blank text between images is left out."""
    parts, end = list[str | ImageRef](), 0
    for placed in images:
        parts += [text[end : placed.at], placed.image]
        end = placed.at
    parts.append(text[end:])
    return [part for part in parts if not isinstance(part, str) or part.strip()]


def _data_name(source: Any) -> str:
    pixels = source if isinstance(source, bytes) else f"{source.mode} {source.size} ".encode() + source.tobytes()
    return f"{len(pixels):,} bytes, blake2b {blake2b(pixels, digest_size=16).hexdigest()}"
