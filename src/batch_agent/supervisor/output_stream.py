"""What comes out of one of a program's streams.

The little that is kept of what nobody reads.
"""

import asyncio
import os
from contextlib import suppress

_END_BYTES = 4_000


class HeadTailBuffer:
    """The beginning and the end of what was written, with the length of what lay between."""

    def __init__(self) -> None:
        self._beginning = b""
        self._end = bytearray()
        self._written = 0

    def add(self, chunk: bytes) -> None:
        self._written += len(chunk)
        room = _END_BYTES - len(self._beginning)
        self._beginning += chunk[:room]
        self._end += chunk[room:]
        del self._end[:-_END_BYTES]

    def __bytes__(self) -> bytes:
        left_out = self._written - len(self._beginning) - len(self._end)
        gap = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return self._beginning + gap + bytes(self._end)

    def __str__(self) -> str:
        return bytes(self).decode(errors="replace")


_CHUNK_BYTES = 65_536
_MOST_HELD_BYTES = 4 * _CHUNK_BYTES
_MOST_IN_A_PIPE = 1_048_576 // _CHUNK_BYTES  # chunks; no user can make a pipe longer than that


class OutputStream:
    """What a program writes: held for one reader, while the program waits when there is too much of it. Once muted,
    the program never waits, while of what nobody has taken only an excerpt is kept."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._held = bytearray()
        self._is_muted = False
        self._news = asyncio.Event()
        self.excerpt = HeadTailBuffer()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    async def take(self) -> bytes:
        """What came since the last time, as soon as there is something; empty when nothing will come any more."""
        while not self._held and not self._is_muted and self._descriptor is not None:
            self._news.clear()
            await self._news.wait()
        taken = bytes(self._held)
        self._held.clear()
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._read)
        return taken

    def mute(self) -> None:
        if not self._is_muted:
            self._is_muted = True
            self.excerpt.add(bytes(self._held))
            self._held.clear()
            self._news.set()
            if self._descriptor is not None:
                self._loop.add_reader(self._descriptor, self._read)

    def end(self) -> None:
        """When all who could write are dead: takes what is still in the pipe. Its end need not come, where others were
        handed the stream."""
        with suppress(BlockingIOError):
            for _ in range(_MOST_IN_A_PIPE):
                if self._descriptor is None:
                    return
                self._add(os.read(self._descriptor, _CHUNK_BYTES))
        self._close()

    def _read(self) -> None:
        assert self._descriptor is not None
        with suppress(BlockingIOError):
            self._add(os.read(self._descriptor, _CHUNK_BYTES))
        if len(self._held) > _MOST_HELD_BYTES and self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)

    def _add(self, chunk: bytes) -> None:
        if not chunk:
            self._close()
        elif self._is_muted:
            self.excerpt.add(chunk)
        else:
            self._held += chunk
        self._news.set()

    def _close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            self._news.set()
