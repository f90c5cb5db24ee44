"""Output stream of a program: buffered for one reader, by chunks or lines, or discarded except for an excerpt."""

import asyncio
import os
from collections import deque
from contextlib import suppress
from typing import Self

from .command import ProgramLimits, TooMuchOutput

_EXCERPT_BYTES = 4_000


class HeadTailBuffer:
    """The first and last bytes of a stream, with the number of omitted bytes in between."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = bytearray()
        self._written = 0

    def add(self, chunk: bytes) -> None:
        self._written += len(chunk)
        room = _EXCERPT_BYTES - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[:-_EXCERPT_BYTES]

    def __bytes__(self) -> bytes:
        omitted = self._written - len(self._head) - len(self._tail)
        gap = b"\n[... %d bytes left out ...]\n" % omitted if omitted else b""
        return self._head + gap + bytes(self._tail)

    def __str__(self) -> str:
        return bytes(self).decode(errors="replace")


_CHUNK_BYTES = 65_536
_MAX_BUFFERED_BYTES = 4 * _CHUNK_BYTES
_MAX_PIPE_CHUNKS = 1_048_576 // _CHUNK_BYTES  # the largest capacity that an unprivileged user can set


class OutputStream:
    """Stdout or stderr of a program, buffered for one reader. The program blocks while the buffer is full. Once output
    is discarded, the program never blocks, and only an excerpt of the unread output is kept."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._buffer = bytearray()
        self._is_discarding = False
        self._changed = asyncio.Event()
        self.excerpt = HeadTailBuffer()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._on_readable)

    async def read(self) -> bytes:
        """Waits for output since the last call and returns it; empty at the end."""
        while not self._buffer and not self._is_discarding and self._descriptor is not None:
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._on_readable)
        return data

    def discard(self) -> None:
        if not self._is_discarding:
            self._is_discarding = True
            self.excerpt.add(bytes(self._buffer))
            self._buffer.clear()
            self._changed.set()
            if self._descriptor is not None:
                self._loop.add_reader(self._descriptor, self._on_readable)

    def end(self) -> None:
        """Reads the rest of the pipe after all processes of the program have died. The pipe may have no end of file, if
        another process has inherited the stream."""
        with suppress(BlockingIOError):
            for _ in range(_MAX_PIPE_CHUNKS):
                if self._descriptor is None:
                    return
                self._add(os.read(self._descriptor, _CHUNK_BYTES))
        self._close()

    def _on_readable(self) -> None:
        assert self._descriptor is not None
        with suppress(BlockingIOError):
            self._add(os.read(self._descriptor, _CHUNK_BYTES))
        if len(self._buffer) > _MAX_BUFFERED_BYTES and self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)

    def _add(self, chunk: bytes) -> None:
        if not chunk:
            self._close()
        elif self._is_discarding:
            self.excerpt.add(chunk)
        else:
            self._buffer += chunk
        self._changed.set()

    def _close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            self._changed.set()


class LineSplitter:
    """Splits chunks into lines. The lines, and a subsequent error, do not depend on how the output was chunked."""

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
        """Ends the last line, unless it is empty."""
        if self._rest:
            self._finish_line()

    def next(self) -> bytes | None:
        """The next line without its end. Raises TooMuchOutput after the last line within the limits."""
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
