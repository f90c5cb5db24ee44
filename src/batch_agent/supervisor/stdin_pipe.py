"""Standard input of a program, where it is a pipe."""

import asyncio
import os


class StdinPipe:
    """Pipe that a program reads from. One task writes at a time, and waits while the pipe is full."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._is_writable = asyncio.Event()
        os.set_blocking(descriptor, False)

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError once the program has closed its end."""
        rest = memoryview(data)
        while rest:
            if self._descriptor is None:
                raise BrokenPipeError("standard input is closed")
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                await self._wait(self._descriptor)

    def close(self) -> None:
        """The program reads to the end of what was written. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_writer(descriptor)
            os.close(descriptor)
            self._is_writable.set()

    async def _wait(self, descriptor: int) -> None:
        self._is_writable.clear()
        self._loop.add_writer(descriptor, self._is_writable.set)
        try:
            await self._is_writable.wait()
        finally:
            if self._descriptor is not None:
                self._loop.remove_writer(descriptor)
