"""TCP proxy whose connection can be cut and mended, like a network that carries nothing for a while."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future


class BreakableProxy:
    """Forwards bytes to a local port, in its own thread. While it is cut, it forwards none in either direction; bytes
    sent meanwhile arrive when it is mended, like TCP retransmissions."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._is_over = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> float:
        """When that was, as in what processes note."""
        return self._do(self._is_whole.clear)

    def mend(self) -> float:
        return self._do(self._is_whole.set)

    @contextlib.contextmanager
    def open(self) -> Iterator["BreakableProxy"]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        try:
            self._loop.result(10)
            yield self
        finally:
            self._do(self._is_over.set)
            thread.join()

    def _do(self, what: Callable[[], None]) -> float:
        at = time.monotonic()
        self._loop.result(10).call_soon_threadsafe(what)
        return at

    async def _serve(self) -> None:
        listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._loop.set_result(asyncio.get_running_loop())
        await self._is_over.wait()
        listener.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # all is over
            await self._is_whole.wait()
            with contextlib.suppress(OSError):  # the server is gone
                back, forth = await asyncio.open_connection("127.0.0.1", self._to)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(reader, forth))
                    group.create_task(self._pass_on(back, writer))
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one end is closed; then so is the other."""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._is_whole.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
