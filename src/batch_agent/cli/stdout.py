"""Standard output of a command: exact bytes for files and pipes, no control characters for a terminal."""

import os
import sys
from collections.abc import Iterable

from ..core.safe_text import safe_text


def write_stdout(pieces: Iterable[bytes]) -> bool:
    """Writes to standard output. Returns False if its reader, such as `head`, closed the pipe."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(map(_safe, pieces) if sys.stdout.isatty() else pieces)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushing at exit must not fail
        return False
    return True


def _safe(piece: bytes) -> bytes:
    return safe_text(piece.decode(errors="replace").replace("\r\n", "\n")).encode()
