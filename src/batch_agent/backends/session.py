"""A server that is far away, behind TLS or a proxy: aiohttp carries the requests."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from yarl import URL

from .wire import BadAddress, Dropped, Headers, NoConnection, NoConnectionInTime, NotSecure, WireError

_DROPPED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)


class Session:
    """The connections of one aiohttp session."""

    def __init__(self, headers: Headers, *, keeps_alive: bool) -> None:
        self.headers = headers
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not keeps_alive),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
            trust_env=True,
        )

    @property
    def is_closed(self) -> bool:
        return self._session.closed

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> "SessionAnswer":
        """Raises OSError."""
        with _in_our_words():
            response = await self._session.request(
                method, url, data=body or None, headers=headers, allow_redirects=False
            )
        return SessionAnswer(response)

    async def aclose(self) -> None:
        await self._session.close()


class SessionAnswer:
    """An answer that aiohttp brought."""

    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.headers

    @property
    def sent_headers(self) -> Headers:
        return self._response.request_info.headers

    @property
    def content_type(self) -> str:
        return self._response.content_type

    @property
    def is_whole(self) -> bool:
        return self._response.content.at_eof()

    async def read(self) -> bytes:
        """Raises OSError."""
        with _in_our_words():
            return await self._response.read()

    async def chunk(self) -> bytes:
        """Raises OSError."""
        with _in_our_words():
            return await self._response.content.readany()

    def close(self) -> None:
        if self.is_whole:
            self._response.release()
        else:
            self._response.close()


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, ssl.SSLError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> OSError:
    words = str(error) or type(error).__name__
    match error:
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return NotSecure(words)
        case aiohttp.ClientConnectorError():
            return NoConnection(str(error.os_error))
        case aiohttp.InvalidURL():
            return BadAddress(words)
        case aiohttp.ConnectionTimeoutError():
            return NoConnectionInTime(words)
        case TimeoutError():
            return error
        case _:
            return Dropped(words) if isinstance(error, _DROPPED) else WireError(words)
