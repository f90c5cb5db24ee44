"""Transport over aiohttp, for servers behind TLS or a proxy. `.netrc` is not read."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import aiohttp
from yarl import URL

from ...content_decoder import BadContent, decoder_for
from .transport import (
    MAX_BODY_BYTES,
    MAX_STREAM_BYTES,
    BodyTooLarge,
    ConnectError,
    ConnectionDropped,
    ConnectTimeout,
    Headers,
    InvalidUrl,
    StaleConnection,
    TlsError,
    TransportError,
    format_size,
)

_DROP_ERRORS = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)


class AiohttpTransport:
    """Transport over one aiohttp session."""

    def __init__(self, headers: Headers, *, keep_alive: bool, proxy: URL | None = None) -> None:
        self.headers = headers
        self._proxy = proxy
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not keep_alive),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
            auto_decompress=False,  # a few bytes may decompress to gigabytes
            trace_configs=[_reuse_trace()] if keep_alive else None,
        )

    @property
    def is_closed(self) -> bool:
        return self._session.closed

    async def send(self, method: str, url: URL, body: bytes, headers: Headers | None) -> "AiohttpResponse":
        """Raises OSError."""
        connection = _ConnectionUse()
        with _translate_errors(connection):
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
    """Response of an aiohttp request."""

    __slots__ = ("_decoder", "_response", "_size")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._size = 0
        with _translate_errors():
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
    def is_complete(self) -> bool:
        return self._response.content.at_eof()

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Raises OSError."""
        parts = []
        while part := await self._chunk(limit):
            parts.append(part)
        return b"".join(parts)

    async def chunk(self, limit: int = MAX_STREAM_BYTES) -> bytes:
        """Raises OSError."""
        return await self._chunk(limit)

    async def _chunk(self, limit: int) -> bytes:
        with _translate_errors():
            while data := await self._response.content.readany():
                if self._decoder is not None:
                    data = self._decoder.feed(data, limit - self._size)
                self._size += len(data)
                if self._size > limit:
                    self._response.close()
                    raise BodyTooLarge(f"the body is larger than {format_size(limit)}")
                if data:
                    return data
            if self._decoder is not None:
                self._decoder.close()
        return b""

    def close(self) -> None:
        if self.is_complete:
            self._response.release()
        else:
            self._response.close()


class _ConnectionUse:
    """Whether one request was sent on a reused connection."""

    __slots__ = ("is_reused",)

    def __init__(self) -> None:
        self.is_reused = False


def _reuse_trace() -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return trace


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.is_reused = True


@contextmanager
def _translate_errors(connection: _ConnectionUse | None = None) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, ssl.SSLError, BadContent, UnicodeError) as error:
        raise _translated(error, is_reused=connection is not None and connection.is_reused) from error


def _translated(error: Exception, *, is_reused: bool) -> OSError:
    message = str(error) or type(error).__name__
    match error:
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return TlsError(message)
        case aiohttp.ClientProxyConnectionError():
            return ConnectError(
                f"the proxy {error.host}:{error.port} is unreachable ({error.os_error}); to connect without a proxy, "
                "add the server to NO_PROXY"
            )
        case aiohttp.ClientHttpProxyError():
            return ConnectError(f"the proxy responded with {error.status} {error.message}")
        case aiohttp.ClientConnectorError():
            return ConnectError(str(error.os_error))
        case UnicodeError():  # the URL of the server was checked
            return ConnectError("the name of the proxy cannot be a host name; see HTTP_PROXY and HTTPS_PROXY")
        case aiohttp.InvalidURL():
            return InvalidUrl(message)
        case aiohttp.ConnectionTimeoutError():
            return ConnectTimeout(message)
        case TimeoutError():
            return error
        case aiohttp.ServerDisconnectedError() if not isinstance(error.message, str):
            return ConnectionDropped(message)  # a part of the response had arrived
        case _ if isinstance(error, _DROP_ERRORS):
            return StaleConnection(message) if is_reused else ConnectionDropped(message)
        case _:
            return TransportError(message)
