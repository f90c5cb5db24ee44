"""PDFs: the text of their pages, and pages as images."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO

from ..core.errors import SpecError
from .raster import encode_pil, reduced_pixels

if TYPE_CHECKING:
    from pypdf import PdfReader

_DPI = 150
_POINTS_PER_INCH = 72
_PDFIUM = Lock()
"""PDFium is not thread-safe: two concurrent documents crash the process."""


def pdf_text(source: bytes | BinaryIO, name: str) -> str:
    """The text of all pages, each headed by `[page N of M]`. A page that cannot be read is replaced by a note. Raises
    SpecError without pypdf, and ValueError for a file that is damaged, encrypted or without any text."""
    reader = _reader(source, name)
    try:
        count = len(reader.pages)
    except Exception as error:  # pypdf raises whatever a damaged file leads to
        raise ValueError(f"{name!r} is not a PDF that can be read: {error}") from error
    texts = [_page_text(reader, number) for number in range(count)]
    if not any(text.strip() for text in texts):
        raise ValueError(
            f"{name!r} has no text on its {count} pages: they are pictures, such as scans. Send pages as images: "
            "Image(path, page=1)"
        )
    return "\n\n".join(f"[page {number} of {count}]\n{text}" for number, text in enumerate(texts, 1))


def page_pixels(data: bytes, page: int, name: str, max_side: int | None) -> tuple[int, int]:
    """Width and height of a page as an image. Raises SpecError without pypdfium2, and ValueError for a page that does
    not exist."""
    with _opened_page(data, page, name) as opened:
        return _pixels(opened, max_side)


def render_page(data: bytes, page: int, name: str, max_side: int | None) -> bytes:
    """Renders a page as PNG. Raises like `page_pixels`."""
    with _opened_page(data, page, name) as opened:
        scale = max(_pixels(opened, max_side)) / max(opened.get_size())
        picture = opened.render(scale=scale).to_pil().copy()
    return encode_pil(picture)


def _pixels(opened: Any, max_side: int | None) -> tuple[int, int]:
    width, height = (round(side * _DPI / _POINTS_PER_INCH) for side in opened.get_size())
    is_reduced = max_side is not None and max(width, height) > max_side
    return reduced_pixels(width, height, max_side) if is_reduced and max_side is not None else (width, height)


@contextmanager
def _opened_page(data: bytes, page: int, name: str) -> Iterator[Any]:
    """Holds the lock of PDFium until the document is closed. Nothing made by PDFium may be used or freed after that."""
    try:
        import pypdfium2  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise SpecError("Pages of PDFs as images need pypdfium2: pip install 'batch-agent[images]'.") from error
    with _PDFIUM:
        try:
            document = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            raise ValueError(f"{name!r} is not a PDF that can be read: {error}") from error
        try:
            if page > len(document):
                raise ValueError(f"{name!r} has {len(document)} pages, and page {page} is asked for")
            yield document[page - 1]
        finally:
            document.close()


def _reader(source: bytes | BinaryIO, name: str) -> "PdfReader":
    try:
        from pypdf import PasswordType, PdfReader
    except ImportError as error:
        raise SpecError("PDFs need pypdf: pip install 'batch-agent[pdf]'.") from error
    try:
        reader = PdfReader(BytesIO(source) if isinstance(source, bytes) else source)
        if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
            raise ValueError(f"{name!r} is encrypted: save it without a password")
    except ValueError:
        raise
    except Exception as error:  # pypdf raises whatever a damaged file leads to
        raise ValueError(f"{name!r} is not a PDF that can be read: {error}") from error
    return reader


def _page_text(reader: "PdfReader", number: int) -> str:
    """Text of a page, with a note on characters without a known encoding: replacement characters would hide what the
    page says."""
    try:
        text = reader.pages[number].extract_text()
    except Exception as error:  # noqa: BLE001 - pypdf raises whatever a damaged page leads to
        return f"[this page cannot be read: {type(error).__name__}: {error}]"
    unknown = text.count("\ufffd")
    note = f"[{unknown} characters of this page have no known encoding]\n" if unknown else ""
    return note + text.strip()
