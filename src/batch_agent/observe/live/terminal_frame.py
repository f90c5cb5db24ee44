"""Frame of lines at the bottom of a terminal that is redrawn on each update.

The cursor stays at the top of the frame: when a terminal gets narrower and wraps long lines, everything is still below
the cursor and is cleared by the next redraw. Output that bypasses Python's streams appears on an empty line there."""

import os
import threading
from collections.abc import Sequence
from typing import TextIO

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized update: terminals that support it show nothing in between, others ignore it."""
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""No wrapping: a character may be wider than Python assumes."""
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"
_CLEARED = f"\r {_REST_OF_SCREEN}\r"
"""Clears from the second cell on: some terminals copy a screen to the scrollback that is cleared from the first one."""
_DEFAULT_SIZE = os.terminal_size((80, 24))


class Frame:
    """Frame on a terminal. Thread-safe. After a write error, nothing more is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._lines: Sequence[str] = ()
        self._is_open = False

    def open(self) -> None:
        with self._lock:
            self._is_open = True
            self._write(_HIDE_CURSOR)

    def close(self) -> None:
        """Clears the frame."""
        with self._lock:
            if self._is_open:
                self._write(f"{_CLEARED}{_WRAP}{_SHOW_CURSOR}")
            self._is_open = False

    def draw(self, lines: Sequence[str]) -> None:
        """Lines must be shorter than the width of the terminal, and fewer than its height."""
        with self._lock:
            self._lines = lines
            self._write(f"{_BEGIN}{self._drawn()}{_END}")

    def above(self, text: str, stream: TextIO) -> None:
        """Writes complete lines above the frame. `stream`: a stream to the same terminal."""
        with self._lock:
            self._write(f"{_BEGIN}{_CLEARED}{_WRAP}")
            stream.write(text)
            stream.flush()
            self._write(f"{self._drawn()}{_END}")

    @property
    def size(self) -> os.terminal_size:
        """Current size of the terminal."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):  # not a terminal, although the caller requested a dashboard
            return _DEFAULT_SIZE
        return size if size.columns and size.lines else _DEFAULT_SIZE

    def _drawn(self) -> str:
        if not self._lines:
            return ""
        body = "\r\n".join(line + _REST_OF_LINE for line in self._lines)
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        return f"\r{_NO_WRAP}{body}{_REST_OF_SCREEN}{up}\r{_WRAP}"

    def _write(self, text: str) -> None:
        if self._is_open:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                self._is_open = False
