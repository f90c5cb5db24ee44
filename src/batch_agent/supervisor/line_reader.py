"""Lines of a program's stdout."""

from collections import deque
from typing import Self

from .command import ProgramLimits, TooMuchOutput
from .output_stream import OutputStream


class LineSplitter:
    """Splits chunks into lines. The lines, and the error after them, do not depend on how the output was chunked."""

    def __init__(self, name: str, limits: ProgramLimits) -> None:
        self._name = name
        self._max_line_bytes = limits.max_line_bytes
        self._max_bytes = self._room = limits.max_bytes
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._too_much = ""

    def feed(self, chunk: bytes) -> None:
        """Must not be called once `next` has raised."""
        for number, part in enumerate(chunk[: self._room].split(b"\n")):
            if number:
                self._finish_line()
            self._rest += part
            if len(self._rest) > self._max_line_bytes:
                self._fail(f"a line of more than {self._max_line_bytes} bytes")
                return
        if len(chunk) > self._room:
            self._fail(f"more than {self._max_bytes} bytes")
        self._room -= len(chunk)

    def finish(self) -> None:
        """Ends the last line, if it is not empty."""
        if self._rest:
            self._finish_line()

    def next(self) -> bytes | None:
        """The next line, without its end. Raises TooMuchOutput after the last one within the limits."""
        if self._lines:
            return self._lines.popleft()
        if self._too_much:
            raise TooMuchOutput(self._too_much)
        return None

    def _finish_line(self) -> None:
        self._lines.append(bytes(self._rest))
        self._rest.clear()

    def _fail(self, wrote: str) -> None:
        self._too_much = f"{self._name!r} wrote {wrote} to stdout and was stopped."
        self._rest.clear()


class LineReader:
    """Async iterator over the lines of stdout. A new loop continues where the last one stopped."""

    def __init__(self, out: OutputStream, splitter: LineSplitter) -> None:
        self._out = out
        self._splitter = splitter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while (line := self._splitter.next()) is None:
            chunk = await self._out.read()
            if chunk:
                self._splitter.feed(chunk)
            else:
                self._splitter.finish()
                if (line := self._splitter.next()) is None:
                    raise StopAsyncIteration
                return line
        return line
