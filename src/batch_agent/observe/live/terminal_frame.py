"""Lines at the end of what a terminal shows, drawn again and again in the same place.

The cursor rests at their top and not, as usual, at their end: whatever the terminal does with lines that are too long
when it gets narrower, all of it is below the cursor, and gone with the next drawing. What others write meanwhile, past
Python's streams, comes to stand on an empty line there."""

import os
import threading
from collections.abc import Sequence
from typing import TextIO

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know these show nothing in between; the others pass over them."""
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""A character may be wider there than it is known to be here."""
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"
_CLEARED = f"\r {_REST_OF_SCREEN}\r"
"""From the second cell on: a screen that is cleared from its very first one is kept by some terminals, to scroll back
to."""
_USUAL = os.terminal_size((80, 24))


class Frame:
    """All of its methods may be called from any thread. A terminal that is gone is written to no more."""

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
        """Leaves nothing behind."""
        with self._lock:
            if self._is_open:
                self._write(f"{_CLEARED}{_WRAP}{_SHOW_CURSOR}")
            self._is_open = False

    def draw(self, lines: Sequence[str]) -> None:
        """Each must fit the width of the terminal, less one, and all of them its height, less one."""
        with self._lock:
            self._lines = lines
            self._write(f"{_BEGIN}{self._drawn()}{_END}")

    def above(self, text: str, stream: TextIO) -> None:
        """Writes whole lines where the frame was, and the frame below them. `stream`: another way to the terminal."""
        with self._lock:
            self._write(f"{_BEGIN}{_CLEARED}{_WRAP}")
            stream.write(text)
            stream.flush()
            self._write(f"{self._drawn()}{_END}")

    @property
    def size(self) -> os.terminal_size:
        """Of the terminal, now."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):  # it is no terminal, but was said to be one
            return _USUAL
        return size if size.columns and size.lines else _USUAL

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
