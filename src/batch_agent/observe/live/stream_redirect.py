"""Redirection of printed and logged lines, so that they appear above the dashboard."""

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TextIO, cast

from .terminal_frame import Frame


class RedirectedStream:
    """Replacement for a stream to the frame's terminal. Complete lines are written above the frame."""

    def __init__(self, stream: TextIO, frame: Frame) -> None:
        self._stream = stream
        self._frame = frame
        self._partial: dict[int, str] = {}
        """Incomplete line of each thread: tools may print concurrently."""

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
        """Does nothing: an incomplete line waits for its end."""

    def finish(self) -> None:
        """Writes incomplete lines, after the frame was closed."""
        with suppress(OSError, ValueError):  # the terminal may be closed
            self._stream.write("".join(self._partial.values()))
            self._stream.flush()
        self._partial.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class StreamRedirect:
    """Redirection of `sys.stdout`, `sys.stderr` and log handlers that write to the terminal. A stream that was replaced
    by other code in the meantime is left alone."""

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
            _replace(name, stream, cast(TextIO, redirected))

    def stop(self) -> None:
        while self._replaced:
            name, stream, redirected = self._replaced.pop()
            _replace(name, cast(TextIO, redirected), stream)
            redirected.finish()


def is_redirected() -> bool:
    """Whether a frame is being shown."""
    return isinstance(cast(object, sys.stderr), RedirectedStream) or isinstance(
        cast(object, sys.stdout), RedirectedStream
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
