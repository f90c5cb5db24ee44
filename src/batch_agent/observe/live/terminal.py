"""Live dashboard in a frame at the bottom of a terminal; printed and logged lines appear above it."""

import io
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console
from rich.text import Text

from ...core.events import Event
from ..text.run_outputs import RunOutputs
from .dashboard import render
from .redraw_loop import RedrawLoop
from .state import LiveState
from .view_rows import stage_prefix

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized update: supporting terminals show nothing in between, others ignore it."""
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""Disables line wrapping, because a character may be wider than Python assumes."""
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"
_CLEARED = f"\r {_REST_OF_SCREEN}\r"
"""Clears from the second cell on: if a screen is cleared from the first one, some terminals copy it to the
scrollback."""
_DEFAULT_SIZE = os.terminal_size((80, 24))


class Frame:
    """Frame on a terminal. Thread-safe. Writes nothing more after a write error."""

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
        """Draws lines, which must be shorter than the width of the terminal and fewer than its height."""
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


class RedirectedStream:
    """Replacement for a stream to the frame's terminal. Complete lines are written above the frame."""

    def __init__(self, stream: TextIO, frame: Frame) -> None:
        self._stream = stream
        self._frame = frame
        self._partial: dict[int, str] = {}
        """Incomplete line of each thread, because tools may print concurrently."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        complete, end, partial = (self._partial.pop(thread, "") + text).rpartition("\n")
        if partial:
            self._partial[thread] = partial
        if end:
            self._frame.above(complete + end, self._stream)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Does nothing: an incomplete line waits until it is complete."""

    def finish(self) -> None:
        """Writes incomplete lines, after the frame has been closed."""
        with suppress(OSError, ValueError):  # the terminal may be closed
            self._stream.write("".join(self._partial.values()))
            self._stream.flush()
        self._partial.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class StreamRedirect:
    """Redirection of `sys.stdout`, `sys.stderr` and log handlers that write to the terminal. A stream that other code
    has replaced meanwhile is left alone."""

    def __init__(self, stream: TextIO, frame: Frame) -> None:
        """`stream`: the stream of the frame."""
        self._stream = stream
        self._frame = frame
        self._replaced: list[tuple[str, TextIO, RedirectedStream]] = []

    def start(self) -> None:
        for name in ("stdout", "stderr"):
            stream: TextIO | None = getattr(sys, name)
            if stream is None or not (stream is self._stream or stream.isatty()):
                continue  # files and pipes do not disturb the frame
            redirected = RedirectedStream(stream, self._frame)
            self._replaced.append((name, stream, redirected))
            _replace(name, stream, cast("TextIO", redirected))

    def stop(self) -> None:
        while self._replaced:
            name, stream, redirected = self._replaced.pop()
            _replace(name, cast("TextIO", redirected), stream)
            redirected.finish()


def is_redirected() -> bool:
    """Whether a frame is being shown."""
    return isinstance(cast("object", sys.stderr), RedirectedStream) or isinstance(
        cast("object", sys.stdout), RedirectedStream
    )


def _replace(name: str, old: TextIO, new: TextIO) -> None:
    if getattr(sys, name) is old:
        setattr(sys, name, new)
    for handler in _stream_handlers():
        if handler.stream is old:
            handler.setStream(new)


def _stream_handlers() -> "Iterator[logging.StreamHandler[TextIO]]":
    known = logging.root.manager.loggerDict.values()
    for logger in [logging.root, *(each for each in list(known) if isinstance(each, logging.Logger))]:
        yield from (handler for handler in logger.handlers if isinstance(handler, logging.StreamHandler))


_UPDATES_PER_SECOND = 8


class LiveProgress:
    """Progress as a dashboard below other output. Shows nothing while the process shows another one."""

    def __init__(self, console: Console, outputs: RunOutputs | None = None) -> None:
        """`outputs`: shown at the end, with the summary of the run; None: the caller prints a summary."""
        # Not `console` itself, which flushes its file and redirects standard output to the null device if that fails.
        colors = cast("Any", console.color_system)
        self._painter = Console(file=io.StringIO(), force_terminal=True, color_system=colors, no_color=console.no_color)
        self._stream = cast("TextIO", console.file)
        self._frame = Frame(self._stream)
        self._redirect = StreamRedirect(self._stream, self._frame)
        self._redraw_loop = RedrawLoop(self._render, self._show, _UPDATES_PER_SECOND)
        self._is_shown = False
        self._outputs = outputs

    @property
    def state(self) -> LiveState:
        return self._redraw_loop.state

    def emit(self, event: Event) -> None:
        self._redraw_loop.emit(event)
        if self._is_shown and (lines := stage_prefix(event)):
            styled = self._styled([Text(line, "dim") for line in lines])
            with suppress(OSError, ValueError):  # the run continues without its terminal
                self._frame.above("".join(f"{line}\n" for line in styled), self._stream)

    def __enter__(self) -> Self:
        if not is_redirected():
            self._is_shown = True
            self._frame.open()
            self._redirect.start()
            self._redraw_loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._is_shown = False
            try:
                self._redraw_loop.stop()
            finally:  # a second Ctrl-C must not leave a terminal without a cursor
                self._frame.close()
                self._redirect.stop()
            if self._outputs is not None:
                self._outputs.print_end(self._stream, self.state, self._redraw_loop.seconds, error)

    def _render(self, state: LiveState, seconds: float) -> list[Text]:
        columns, lines = self._frame.size
        return render(state, seconds, columns - 1, lines - 2)

    def _show(self, lines: list[Text]) -> None:
        self._frame.draw(["", *self._styled(lines)])

    def _styled(self, lines: Sequence[Text]) -> list[str]:
        """Lines with the escape codes for the terminal's colors."""
        with self._painter.capture() as captured:
            self._painter.print(Text("\n").join(lines), end="", soft_wrap=True)
        return captured.get().split("\n")
