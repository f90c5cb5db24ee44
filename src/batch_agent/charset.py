"""Encoding of text files: by their byte order mark, UTF-8, or as declared; and files that are not text."""

import codecs
from typing import IO

HEAD_BYTES = 4096
"""Bytes at the beginning of a file that tell whether it is text."""
_CHUNK_BYTES = 1024 * 1024
_BOMS = {  # longer ones first, because shorter ones are their prefixes
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SIGNATURES = (
    b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"PK\x03\x04", b"\x1f\x8b", b"\xd0\xcf\x11\xe0", b"RIFF",
    b"\x7fELF", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!", b"OggS", b"ID3",
)  # fmt: skip
"""First bytes of documents, images, archives and recordings; some have no zero byte for a long time."""
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")


def bom_encoding(head: bytes) -> str | None:
    """Encoding that a byte order mark names; None without one."""
    return next((encoding for bom, encoding in _BOMS.items() if head.startswith(bom)), None)


def is_binary(head: bytes, declared: str | None = None) -> bool:
    """Whether a file that begins with `head` is not text. `declared`: the encoding that the caller declares."""
    if bom_encoding(head) is not None:
        return False
    if head.startswith(_SIGNATURES):
        return True
    if declared is not None and b"\0" in "a".encode(declared):  # UTF-16 and UTF-32 are full of zeros
        return False
    return b"\0" in head or (not _CONTROLS.isdisjoint(head) and not is_utf8(head))


def is_utf8(data: bytes) -> bool:
    """Whether these are UTF-8, as far as they go: the last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True


def file_encoding(file: IO[bytes], declared: str | None = None) -> str:
    """Encoding of an open file, which is read from its beginning. `declared` is for files that are neither marked nor
    UTF-8: other files in a folder usually are. Leaves the file at its beginning."""
    encoding = bom_encoding(file.read(len(codecs.BOM_UTF32_LE)))
    file.seek(0)
    if encoding is not None or declared is None:
        return encoding or "utf-8"
    is_known = _is_more_than_ascii_utf8(file)
    file.seek(0)
    return "utf-8" if is_known else declared


def _is_more_than_ascii_utf8(file: IO[bytes]) -> bool:
    """Pure ASCII is not enough: ISO-2022-JP and UTF-7 consist of it too."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        while chunk := file.read(_CHUNK_BYTES):
            decoder.decode(chunk)
            is_ascii = is_ascii and chunk.isascii()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return not is_ascii
