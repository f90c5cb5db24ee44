"""Images as files: identified when their agent starts, and read when a request is sent."""

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..atomic_file import atomic_write, make_private_dir
from ..core.errors import BackendError, ErrorKind
from ..core.images import Image, ImageData, ImageRef, PlacedImage
from ..core.images.image_format import SUPPORTED, is_animated, media_type_of, pixels_of
from ..core.messages import Message, ToolResults, User
from ..lazy_imports import lazy_modules

with lazy_modules(globals()):
    from . import pdf, raster

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

_MAX_BYTES = 512 * 1024 * 1024
"""Larger files are not read, because no service accepts such an image."""
_DIGEST_BYTES = 16
_DOWNLOAD_TIMEOUT = 60.0
PDF = b"%PDF-"


def identify(image: Image, *, downloads: bool = False) -> ImageRef:
    """The reference to an image, derived from its bytes. For a URL, which the server reads, it is derived from the URL
    alone unless `downloads` is set. Raises ValueError for a file that cannot be read or is not an image that models
    accept."""
    if image.url and downloads and not image.url.startswith("s3://"):
        return identify(Image(_download(image.url), max_side=image.max_side, page=image.page))
    if image.url:
        if image.max_side is not None or image.page is not None:
            raise ValueError(f"max_side and page need the image itself, and {image.url!r} is read by the server")
        return ImageRef(_digest(image.url.encode()), url=image.url)
    data = _bytes_of(image)
    path, digest = _absolute(image.path), _digest(data)
    kept = None if path else ImageData(data)
    if data.startswith(PDF):
        if image.page is None:
            raise ValueError(f"{image.name!r} is a PDF: name a page, as in Image(path, page=1), or read it as text")
        width, height = pdf.page_pixels(data, image.page, image.name, image.max_side)
        page = image.page
        return ImageRef(digest, "image/png", 0, width, height, path, "", image.max_side, page, kept)
    if image.page is not None:
        raise ValueError(f"{image.name!r} has no pages: it is not a PDF")
    media_type = _checked_type(data, image)
    width, height = pixels_of(data, media_type) or (0, 0)
    if not (width and height):
        raise ValueError(f"{image.name!r} is damaged: its size cannot be read")
    if image.max_side is None or max(width, height) <= image.max_side:
        return ImageRef(digest, media_type, len(data), width, height, path, data=kept)
    width, height = raster.reduced_pixels(width, height, image.max_side)
    sent_as = "image/jpeg" if media_type == "image/jpeg" else "image/png"
    return ImageRef(digest, sent_as, 0, width, height, path, "", image.max_side, None, kept)


def read_image(image: ImageRef) -> bytes:
    """The bytes to send: those of the file, or those derived from it. Raises ValueError if the file is gone or has
    changed since the agent started, and for an image in the memory of another process."""
    if image.path:
        data = _read(image.path)
        if _digest(data) != image.digest:
            raise ValueError(f"{image.path!r} has changed since the agent read it: start the run again")
    elif image.data is not None:
        data = image.data
    else:
        raise ValueError(
            f"the image {image.digest[:12]} was in the memory of a process that has ended: give the same inputs again"
        )
    if image.page is not None:
        return pdf.render_page(data, image.page, image.path, image.max_side)
    if image.max_side is not None:
        return raster.reduce(data, image.max_side, image.media_type)
    return data


def has_images(messages: Iterable[Message]) -> bool:
    """Whether any of the messages has an image whose bytes are sent."""
    for message in messages:  # a loop, because this runs for every request and most messages have no images
        match message:
            case User():
                for placed in message.images:
                    if not placed.image.url:
                        return True
            case ToolResults():
                for result in message.results:
                    for image in result.images:
                        if not image.url:
                            return True
            case _:
                pass
    return False


def images_in(message: Message) -> list[ImageRef]:
    """The images of a message, in order."""
    match message:
        case User():
            return [placed.image for placed in message.images]
        case ToolResults():
            return [image for result in message.results for image in result.images]
        case _:
            return []


def with_image_data(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages with the bytes of their images, for one request. Raises a BackendError that is not retryable."""
    return tuple(_loaded(message) if images_in(message) else message for message in messages)


class ImageFolder:
    """Folder of images made by tools, by digest. It is below the checkpoint, where a resumed run finds them; without a
    checkpoint, it is a temporary folder that is deleted at the end."""

    def __init__(self, checkpoint_dir: Path | None = None) -> None:
        self._root = None if checkpoint_dir is None else checkpoint_dir.absolute() / "images"
        self._temporary: TemporaryDirectory[str] | None = None
        self._lock = Lock()

    def save(self, image: ImageRef) -> ImageRef:
        """Saves an image in memory as a file. Returns other images unchanged. Raises OSError and SpecError."""
        if image.data is None:
            return image
        with self._lock:  # tools run in threads
            if self._root is None:
                from tempfile import TemporaryDirectory  # only for tools that make images

                self._temporary = TemporaryDirectory(prefix="batch-agent-images-")
                self._root = Path(self._temporary.name)
            make_private_dir(self._root)
            path = self._root / f"{image.digest}.{image.media_type.partition('/')[2]}"
            if not path.exists():
                with atomic_write(path, is_private=True) as file:
                    file.write(image.data)
        return replace(image, path=str(path), data=None)

    def close(self) -> None:
        """Deletes a temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()


def _loaded(message: Message) -> Message:
    match message:
        case User():
            return replace(message, images=tuple(PlacedImage(p.at, _with_data(p.image)) for p in message.images))
        case ToolResults():
            results = (replace(each, images=tuple(map(_with_data, each.images))) for each in message.results)
            return ToolResults(tuple(results))
        case _:
            return message


def _with_data(image: ImageRef) -> ImageRef:
    if image.url:
        return image
    try:
        return replace(image, data=ImageData(read_image(image)))
    except ValueError as error:
        raise BackendError(ErrorKind.BAD_INPUT, f"An image cannot be sent: {error}.") from error


def _absolute(path: str) -> str:
    """The absolute path: a run may be resumed in another directory."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _bytes_of(image: Image) -> bytes:
    if image.path:
        return _read(image.path)
    if isinstance(image.source, bytes):
        return image.source
    return raster.encode_pil(image.source)


def _download(url: str) -> bytes:
    from urllib.error import URLError
    from urllib.request import urlopen  # only for servers that do not read URLs

    try:
        with urlopen(url, timeout=_DOWNLOAD_TIMEOUT) as response:  # noqa: S310 - checked to be http(s)
            data: bytes = response.read(_MAX_BYTES + 1)
    except (URLError, OSError) as error:
        raise ValueError(f"the image {url!r} cannot be downloaded: {error}") from error
    if len(data) > _MAX_BYTES:
        raise ValueError(f"the image {url!r} has more than {_MAX_BYTES:,} bytes")
    return data


def _read(path: str) -> bytes:
    file = Path(path).expanduser()
    try:
        if (size := file.stat().st_size) > _MAX_BYTES:
            raise ValueError(f"{path!r} has {size:,} bytes; at most {_MAX_BYTES:,} are read")
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"the image {path!r} cannot be read: {error.strerror}") from error


def _checked_type(data: bytes, image: Image) -> str:
    media_type = media_type_of(data[:64])
    if media_type is None:
        raise ValueError(f"{image.name!r} is not an image: it begins with {data[:8]!r}")
    if media_type not in SUPPORTED:
        raise ValueError(
            f"{image.name!r} is {media_type}, which models do not take: convert it to PNG, JPEG, WebP or GIF"
        )
    if is_animated(data, media_type) and image.max_side is None:
        raise ValueError(f"{image.name!r} is animated: save one frame, or pass max_side=, which sends the first one")
    return media_type


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
