"""Any HTTP server behind a dialect. Foreign exceptions end here: callers see BackendError only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self

import aiohttp
import orjson
from yarl import URL

from ..core.errors import BackendError, ErrorKind
from ..core.interfaces import Traits
from ..core.requests import Delta, Request
from .dialects.openai_chat import OpenAIChat, StreamDecoder, decode_reply, error_message

_KINDS = {
    400: ErrorKind.BAD_REQUEST,
    401: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.SERVER,
    409: ErrorKind.SERVER,
    413: ErrorKind.CONTEXT_OVERFLOW,
    422: ErrorKind.BAD_REQUEST,
    425: ErrorKind.SERVER,
    429: ErrorKind.RATE_LIMITED,
}
_OVERFLOW_WORDS = (
    "maximum context length",
    "context_length_exceeded",
    "exceed_context_size",
    "context size",
    "context window",
)
_FREE_RESENDS = 2
"""A server may close an idle connection just as a request goes out on it: sending again is not a retry."""


class HttpBackend:
    """One endpoint. Connections are reused; their number is bounded by the slots, not here."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: URL,
        dialect: OpenAIChat,
        traits: Traits,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.traits = traits
        self._session = session
        self._url = url
        self._dialect = dialect
        self._on_close = on_close

    def stream(self, request: Request) -> "Exchange":
        return Exchange(self._session, self._url, self._dialect.encode(request), request.stream)

    async def aclose(self) -> None:
        await self._session.close()
        if self._on_close is not None:
            await self._on_close()


class Exchange(AsyncIterator[Delta]):
    """One request and its deltas. Leaving it before the end closes the connection, which aborts the request."""

    __slots__ = ("_body", "_chunks", "_decoder", "_ready", "_response", "_session", "_streamed", "_url")

    def __init__(self, session: aiohttp.ClientSession, url: URL, body: bytes, streamed: bool) -> None:
        self._session = session
        self._url = url
        self._body = body
        self._streamed = streamed
        self._decoder = StreamDecoder() if streamed else None
        self._ready: list[Delta] = []
        self._response: aiohttp.ClientResponse | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def __aenter__(self) -> Self:
        try:
            response = self._response = await self._send()
            if response.status != 200:
                raise translate_status(response.status, response.headers, await response.read(), str(self._url))
            if self._streamed and response.content_type == "text/event-stream":
                self._chunks = aiter(response.content.iter_any())
            else:
                self._ready = decode_reply(await response.read())
                self._ready.reverse()
        except (aiohttp.ClientError, OSError) as error:
            self._abort()
            raise translate_failure(error, str(self._url)) from error
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._chunks is None or self._decoder is None or self._decoder.ended:
                raise StopAsyncIteration
            await self._read_more(self._chunks, self._decoder)
        return self._ready.pop()

    async def _read_more(self, chunks: AsyncIterator[bytes], decoder: StreamDecoder) -> None:
        try:
            chunk = await anext(chunks, b"")
        except (aiohttp.ClientError, OSError) as error:
            raise translate_failure(error, str(self._url)) from error
        deltas = decoder.feed(chunk) if chunk else decoder.close()
        self._ready = list(deltas)
        self._ready.reverse()

    async def _send(self) -> aiohttp.ClientResponse:
        for _ in range(_FREE_RESENDS):
            try:
                return await self._session.post(self._url, data=self._body)
            except aiohttp.ServerDisconnectedError:
                continue
            except aiohttp.ClientOSError as error:
                if isinstance(error, aiohttp.ClientConnectorError):
                    raise
        return await self._session.post(self._url, data=self._body)

    def _abort(self) -> None:
        if self._response is not None:
            self._response.close() if not self._response.content.at_eof() else self._response.release()


def translate_status(status: int, headers: Mapping[str, str], body: bytes, url: str) -> BackendError:
    """What an error answer means for the caller, in the server's own words."""
    try:
        parsed = orjson.loads(body)
        message = error_message(parsed) if isinstance(parsed, dict) else str(parsed)
    except orjson.JSONDecodeError:
        message = body.decode(errors="replace").strip() or "no further words"
    kind = _KINDS.get(status, ErrorKind.SERVER if status >= 500 else ErrorKind.BAD_REQUEST)
    lowered = message.lower() + body[:2000].decode(errors="replace").lower()
    if kind is ErrorKind.BAD_REQUEST and any(words in lowered for words in _OVERFLOW_WORDS):
        kind = ErrorKind.CONTEXT_OVERFLOW
    if kind is ErrorKind.RATE_LIMITED and "insufficient_quota" in lowered:
        kind = ErrorKind.AUTH
    return BackendError(kind, f"HTTP {status} from {url}: {message[:1000]}", retry_after=_retry_after(headers))


def translate_failure(error: Exception, url: str) -> BackendError:
    if isinstance(error, aiohttp.ClientConnectorError):
        return BackendError(ErrorKind.CONNECTION, f"Cannot connect to {url}: {error.os_error}.")
    if isinstance(error, aiohttp.InvalidURL):
        return BackendError(ErrorKind.BAD_REQUEST, f"{url} is not a URL that can be used.")
    return BackendError(ErrorKind.CONNECTION, f"The connection to {url} broke: {error or type(error).__name__}.")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def open_session(key: str | None, *, keeps_alive: bool, use_proxy: bool) -> aiohttp.ClientSession:
    """A session without limits of its own: slots bound the connections, the turn timeout bounds the waiting."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connector = aiohttp.TCPConnector(limit=0, force_close=True) if not keeps_alive else aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
        trust_env=use_proxy,
    )
