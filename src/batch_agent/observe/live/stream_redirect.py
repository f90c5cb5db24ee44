"""What is printed and logged while a frame is shown: it comes to stand above it."""

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TextIO, cast

from .terminal_frame import Frame


class RedirectedStream:
    """Stands in for a stream that goes to the terminal of a frame: whole lines of it are shown above the frame."""

    def __init__(self, stream: TextIO, frame: Frame) -> None:
        self._stream = stream
        self._frame = frame
        self._begun: dict[int, str] = {}
        """Of each thread, the line that it has not ended: tools may print at the same time."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        whole, end, begun = (self._begun.pop(thread, "") + text).rpartition("\n")
        if begun:
            self._begun[thread] = begun
        if end:
            self._frame.above(whole + end, self._stream)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """What is no whole line waits for its end."""

    def finish(self) -> None:
        """Once the frame is gone."""
        with suppress(OSError, ValueError):  # the terminal may be gone, too
            self._stream.write("".join(self._begun.values()))
            self._stream.flush()
        self._begun.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class StreamRedirect:
    """Of Python's own streams and of log handlers, as far as they write to the terminal. What others have replaced
    meanwhile is left as it is."""

    def __init__(self, stream: TextIO, frame: Frame) -> None:
        """`stream`: that of the frame."""
        self._stream = stream
        self._frame = frame
        self._replaced: list[tuple[str, TextIO, RedirectedStream]] = []

    def start(self) -> None:
        for name in ("stdout", "stderr"):
            stream: TextIO | None = getattr(sys, name)
            if stream is None or not (stream is self._stream or stream.isatty()):
                continue  # what goes to a file or a pipe is in nobody's way
            stand_in = RedirectedStream(stream, self._frame)
            self._replaced.append((name, stream, stand_in))
            _replace(name, stream, cast(TextIO, stand_in))

    def stop(self) -> None:
        while self._replaced:
            name, stream, stand_in = self._replaced.pop()
            _replace(name, cast(TextIO, stand_in), stream)
            stand_in.finish()


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
