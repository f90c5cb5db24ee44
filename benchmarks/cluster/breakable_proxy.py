"""A way to a server that can be cut, as a network is: who is on it hears nothing, and what was sent arrives later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Way:
    """To a server; whole, until it is cut."""

    def __init__(self, url: str) -> None:
        to = urlsplit(url)
        self._host, self._port = to.hostname or "127.0.0.1", to.port or 6379
        self._path = to.path
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Way"]:
        async with await asyncio.start_server(self._carry, "127.0.0.1", 0) as listener:
            self.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}{self._path}"
            try:
                yield self
            finally:
                self.mend()

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_whole.wait()
        try:
            back, forth = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, forth))
                group.create_task(self._pass_on(back, writer))
        except* OSError:  # one end is gone
            pass
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._is_whole.wait()
                writer.write(data)
        finally:
            writer.close()
