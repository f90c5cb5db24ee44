"""A server that is far away, behind TLS or a proxy: aiohttp carries the requests. `.netrc` is not read."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import aiohttp
from yarl import URL

from ...core.content_encoding import BadContent, decoder_for
from .transport import (
    LARGEST_BODY,
    LARGEST_STREAM,
    BodyTooLarge,
    ConnectError,
    ConnectionDropped,
    ConnectTimeout,
    Headers,
    InvalidUrl,
    StaleConnection,
    TlsError,
    TransportError,
    declared_size,
)

_DROPPED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)


class AiohttpTransport:
    """The connections of one aiohttp session."""

    def __init__(self, headers: Headers, *, keeps_alive: bool, proxy: URL | None = None) -> None:
        self.headers = headers
        self._proxy = proxy
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not keeps_alive),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
            auto_decompress=False,  # a few bytes may be packed gigabytes
            trace_configs=[_reuse_trace()] if keeps_alive else None,
        )

    @property
    def is_closed(self) -> bool:
        return self._session.closed

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> "AiohttpResponse":
        """Raises OSError."""
        connection = _Connection()
        with _in_our_words(connection):
            response = await self._session.request(
                method,
                url,
                data=body or None,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
                trace_request_ctx=connection,
            )
        try:
            return AiohttpResponse(response)
        except BaseException:
            response.close()
            raise

    async def aclose(self) -> None:
        await self._session.close()


class AiohttpResponse:
    """An answer that aiohttp brought."""

    __slots__ = ("_decoder", "_response", "_size")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._size = 0
        with _in_our_words():
            self._decoder = decoder_for(response.headers.get("Content-Encoding"))

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

    async def read(self, most: int = LARGEST_BODY) -> bytes:
        """Raises OSError."""
        parts = []
        while part := await self._chunk(most):
            parts.append(part)
        return b"".join(parts)

    async def chunk(self, most: int = LARGEST_STREAM) -> bytes:
        """Raises OSError."""
        return await self._chunk(most)

    async def _chunk(self, most: int) -> bytes:
        with _in_our_words():
            while data := await self._response.content.readany():
                if self._decoder is not None:
                    data = self._decoder.feed(data, most - self._size)
                self._size += len(data)
                if self._size > most:
                    self._response.close()
                    raise BodyTooLarge(f"its body has more than {declared_size(most)}")
                if data:
                    return data
            if self._decoder is not None:
                self._decoder.close()
        return b""

    def close(self) -> None:
        if self.is_whole:
            self._response.release()
        else:
            self._response.close()


class _Connection:
    """The connection that one request went out on."""

    __slots__ = ("was_used",)

    def __init__(self) -> None:
        self.was_used = False


def _reuse_trace() -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return trace


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.was_used = True


@contextmanager
def _in_our_words(connection: _Connection | None = None) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, ssl.SSLError, BadContent) as error:
        raise _translated(error, was_used=connection is not None and connection.was_used) from error


def _translated(error: Exception, *, was_used: bool) -> OSError:
    words = str(error) or type(error).__name__
    match error:
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return TlsError(words)
        case aiohttp.ClientProxyConnectionError():
            return ConnectError(
                f"the proxy {error.host}:{error.port} is not reached ({error.os_error}); a server that needs no proxy "
                "is to be named in NO_PROXY"
            )
        case aiohttp.ClientHttpProxyError():
            return ConnectError(f"the proxy answers with {error.status} {error.message}")
        case aiohttp.ClientConnectorError():
            return ConnectError(str(error.os_error))
        case aiohttp.InvalidURL():
            return InvalidUrl(words)
        case aiohttp.ConnectionTimeoutError():
            return ConnectTimeout(words)
        case TimeoutError():
            return error
        case aiohttp.ServerDisconnectedError() if not isinstance(error.message, str):
            return ConnectionDropped(words)  # a part of an answer had come
        case _ if isinstance(error, _DROPPED):
            return StaleConnection(words) if was_used else ConnectionDropped(words)
        case _:
            return TransportError(words)
