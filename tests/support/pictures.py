"""Small images and PDFs for tests, made with the libraries of the extras."""

import io
from pathlib import Path
from typing import Any

from PIL import Image as Pillow


def picture(width: int = 40, height: int = 30, kind: str = "PNG", color: int = 0, **options: Any) -> bytes:
    written = io.BytesIO()
    Pillow.new("RGB", (width, height), (color, 0, 0)).save(written, kind, **options)
    return written.getvalue()


def animation(kind: str) -> bytes:
    written = io.BytesIO()
    frames = [Pillow.new("RGB", (20, 10), (color, 0, 0)) for color in (0, 100, 200)]
    frames[0].save(written, kind, save_all=True, append_images=frames[1:])
    return written.getvalue()


def pdf(*texts: str) -> bytes:
    """A PDF with one line of text on each page; an empty one has a page without text."""
    pages = [_page(text) for text in texts]
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(pages)))
    objects = [
        b"<</Type /Catalog /Pages 2 0 R>>",
        f"<</Type /Pages /Kids [{kids}] /Count {len(pages)}>>".encode(),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
    ]
    for at, content in enumerate(pages):
        size = b"/MediaBox [0 0 144 72] /Resources <</Font <</F1 3 0 R>>>>"
        objects.append(b"<</Type /Page /Parent 2 0 R %s /Contents %d 0 R>>" % (size, 5 + 2 * at))
        objects.append(b"<</Length %d>> stream\n%s\nendstream" % (len(content), content))
    body, offsets = b"%PDF-1.4\n", []
    for number, written in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj %s endobj\n" % (number, written)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    return body + head + b"trailer <</Size %d /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(body))


def _page(text: str) -> bytes:
    return f"BT /F1 12 Tf 10 40 Td ({text}) Tj ET".encode() if text else b""


def saved(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
