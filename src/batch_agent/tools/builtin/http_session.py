"""HTTP session and errors that the web tools share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache

import aiohttp

from ...content_decoder import BadContent, decoder_for
from ...version import __version__


class RequestFailed(Exception):
    """Permanent failure of a request, with a message for the model."""


class RequestMayPass(RequestFailed):
    """Transient failure of the server or the network, which is worth a retry."""


class SharedSession:
    """One session per event loop, open while a call uses it: overlapping calls share connections, and the last one
    closes the session."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        self._make = make
        self._open: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, int]] = {}

    @asynccontextmanager
    async def use(self) -> AsyncIterator[aiohttp.ClientSession]:
        loop = asyncio.get_running_loop()
        session, users = self._open.get(loop) or (self._make(), 0)
        self._open[loop] = session, users + 1
        try:
            yield session
        finally:
            users = self._open[loop][1] - 1
            if users:
                self._open[loop] = session, users
            else:
                del self._open[loop]
                await session.close()


async def read_up_to(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The decoded body, for a session without automatic decompression, where few bytes may expand to gigabytes. Returns
    at most one byte more than `limit`, which shows that there is more. Raises RequestFailed for invalid data."""
    data = bytearray()
    try:
        decoder = decoder_for(response.headers.get("Content-Encoding"))
        async for chunk in response.content.iter_any():
            data += chunk if decoder is None else decoder.feed(chunk, limit - len(data))
            if len(data) > limit:
                return bytes(data[: limit + 1])
        if decoder is not None:
            decoder.close()
    except BadContent as error:
        raise RequestFailed(f"{response.url} cannot be read: {error}; try another source") from error
    return bytes(data)


def first_chars(text: str, limit: int = 300) -> str:
    line = " ".join(text[: limit * 10].split())
    return line if len(line) <= limit else f"{line[:limit]}…"


@cache
def user_agent() -> str:
    return f"batch-agent/{__version__}"
