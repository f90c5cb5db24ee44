"""Pixels: Pillow images as PNG, and images reduced at the user's request."""

from io import BytesIO
from typing import Any

from ..core.errors import SpecError

_JPEG_QUALITY = 90


def pillow() -> Any:
    """The module PIL.Image. Raises SpecError if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SpecError("Reduced images and pages of PDFs need Pillow: pip install 'batch-agent[images]'.") from error
    return Image


def reduced_pixels(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Width and height of an image whose longer side is reduced to `max_side`."""
    longer = max(width, height)
    return max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer))


def reduce(data: bytes, max_side: int, media_type: str) -> bytes:
    """The image with its longer side reduced, as JPEG or PNG. Raises ValueError for an image that cannot be decoded."""
    opened = pillow()
    try:
        with opened.open(BytesIO(data)) as image:
            size = reduced_pixels(image.width, image.height, max_side)
            small = image.convert("RGB" if media_type == "image/jpeg" else "RGBA").resize(size)
    except (OSError, opened.DecompressionBombError) as error:
        raise ValueError(f"the image cannot be reduced: {error}") from error
    return _encoded(small, media_type)


def encode_pil(image: Any) -> bytes:
    """A Pillow image as PNG, converted to RGB from a color space that PNG lacks."""
    return _encoded(image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else image.convert("RGB"))


def _encoded(image: Any, media_type: str = "image/png") -> bytes:
    written = BytesIO()
    if media_type == "image/jpeg":
        image.save(written, "JPEG", quality=_JPEG_QUALITY)
    else:
        image.save(written, "PNG")
    return written.getvalue()
