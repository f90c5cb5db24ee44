"""What the tools that ask web servers have in common."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version

import aiohttp

from ...core.content_encoding import BadContent, decoder_for


class RequestFailed(Exception):
    """Sending it again will not help; the message is written for the model."""


class RequestMayPass(RequestFailed):
    """The server, or the way to it, is in trouble for now."""


class SharedSession:
    """One session for each running loop, open while somebody uses it: calls that overlap share connections, and there
    is nothing left to close when the last is done."""

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


async def read_up_to(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, decoded, of a session that does not do so itself: a few bytes may stand for gigabytes. At most one
    byte more than `most`, which tells that there is more. Raises RequestFailed for what cannot be decoded."""
    data = bytearray()
    try:
        decoder = decoder_for(response.headers.get("Content-Encoding"))
        async for chunk in response.content.iter_any():
            data += chunk if decoder is None else decoder.feed(chunk, most - len(data))
            if len(data) > most:
                return bytes(data[: most + 1])
        if decoder is not None:
            decoder.close()
    except BadContent as error:
        raise RequestFailed(f"{response.url} cannot be read: {error}; try another source") from error
    return bytes(data)


def first_chars(text: str, most: int = 300) -> str:
    line = " ".join(text[: most * 10].split())
    return line if len(line) <= most else f"{line[:most]}…"


@cache
def user_agent() -> str:
    return f"batch-agent/{version('batch-agent')}"
