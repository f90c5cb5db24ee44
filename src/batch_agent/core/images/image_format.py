"""Formats of images: media type, size in pixels and animation, from the bytes."""

SUPPORTED = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Formats that every dialect takes."""
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
)
_BMP_HEADER = 14
_HEIF_BRANDS = {b"heic": "image/heic", b"heix": "image/heic", b"mif1": "image/heif", b"avif": "image/avif"}
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG that hold its size."""
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a length."""


def media_type_of(head: bytes) -> str | None:
    """Media type of data that begins with `head`; None if it is not an image. Models may not take its format."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:8] == b"ftyp":
        return _HEIF_BRANDS.get(head[8:12])
    if head.startswith(b"BM"):  # two letters may begin a text as well
        return "image/bmp" if head[6:10] == b"\0\0\0\0" and len(head) > _BMP_HEADER else None
    return next((media_type for mark, media_type in _SIGNATURES if head.startswith(mark)), None)


def pixels_of(data: bytes, media_type: str) -> tuple[int, int] | None:
    """Width and height of a PNG, JPEG, GIF or WebP; None if the data ends before them."""
    match media_type:
        case "image/png" if len(data) >= 24 and data[12:16] == b"IHDR":
            return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        case "image/gif" if len(data) >= 10:
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp":
            return _webp_pixels(data)
        case "image/jpeg":
            return _jpeg_pixels(data)
        case _:
            return None


def is_animated(data: bytes, media_type: str) -> bool:
    """Whether a PNG, GIF or WebP has more than one frame."""
    match media_type:
        case "image/png":
            return 0 <= data.find(b"acTL", 0, 4096) < (data.find(b"IDAT") + 1 or len(data))
        case "image/webp":
            return data[12:16] == b"VP8X" and len(data) > 20 and bool(data[20] & 2)
        case "image/gif":
            return _gif_frames(data) > 1
        case _:
            return False


def _webp_pixels(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case _:
            return None


def _jpeg_pixels(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF or marker in _JPEG_ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _JPEG_SIZES:
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def _gif_frames(data: bytes) -> int:
    """Frames of a GIF, counted up to two."""
    frames, at = 0, 13 + _gif_colors(data, 10)
    while at < len(data) and frames < 2:
        match data[at]:
            case 0x21:  # an extension
                at = _after_blocks(data, at + 2)
            case 0x2C:  # a frame
                frames += 1
                at = _after_blocks(data, at + 11 + _gif_colors(data, at + 9))
            case _:
                break
    return frames


def _gif_colors(data: bytes, at: int) -> int:
    """Bytes of the color table that the flags at `at` announce."""
    flags = data[at] if at < len(data) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += data[at] + 1
    return at + 1
