"""Any HTTP server behind a dialect. Foreign exceptions end here: callers see BackendError only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from ..core.interfaces import Traits
from ..core.requests import Delta, Request
from .dialects.openai_answers import StreamDecoder, decode_reply
from .dialects.openai_chat import OpenAIChat
from .failures import translate_failure, translate_status

_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
_STALE_SHOWS_WITHIN = 1.0
_FREE_RESENDS = 2
"""A server may close an idle connection just as a request goes out on it: sending again is not a retry."""
_END_COMES_WITHIN = 0.5


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
        try:
            await self._session.close()
        finally:
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
            started = asyncio.get_running_loop().time()
            try:
                response = await self._session.post(self._url, data=self._body)
            except _STALE as error:
                response = await self._resend(error, started)
            self._response = response
            if response.status != 200:
                said = without_key(await response.read(), self._session)
                raise translate_status(response.status, response.headers, said, shown(self._url))
            if self._streamed and response.content_type == "text/event-stream":
                self._chunks = aiter(response.content.iter_any())
            else:
                self._ready = decode_reply(await response.read())
                self._ready.reverse()
                self._response = None  # read to its end: the connection is already free for the next request
        except (aiohttp.ClientError, OSError) as error:
            self._abort()
            raise translate_failure(error, shown(self._url)) from error
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._chunks is not None and self._decoder is not None and self._decoder.ended:
                await self._read_to_the_end(self._chunks)
        finally:
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
            raise translate_failure(error, shown(self._url)) from error
        deltas = decoder.feed(chunk) if chunk else decoder.close()
        self._ready = list(deltas)
        self._ready.reverse()

    async def _read_to_the_end(self, chunks: AsyncIterator[bytes]) -> None:
        """The end of a stream comes a packet after its last event; only a connection that was read so far is reused."""
        if self._response is None or self._response.content.at_eof():
            return
        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(_END_COMES_WITHIN):
                async for _ in chunks:
                    pass

    async def _resend(self, error: Exception, started: float) -> aiohttp.ClientResponse:
        now = asyncio.get_running_loop().time
        for _ in range(_FREE_RESENDS):
            if isinstance(error, aiohttp.ClientConnectorError) or now() - started >= _STALE_SHOWS_WITHIN:
                break
            started = now()
            try:
                return await self._session.post(self._url, data=self._body)
            except _STALE as again:
                error = again
        raise error

    def _abort(self) -> None:
        if self._response is not None:
            self._response.close() if not self._response.content.at_eof() else self._response.release()


def shown(url: URL) -> str:
    """A URL as it may be shown: without what may be secret in it."""
    return str(url.with_user(None).with_query(None)) if url.absolute else str(url)


def without_key(said: bytes, session: aiohttp.ClientSession) -> bytes:
    """A server's words, in case that it quotes the key which it was sent."""
    key = session.headers.get("Authorization", "").removeprefix("Bearer ").encode()
    return said.replace(key, b"***") if key else said


def open_session(key: str | None, *, keeps_alive: bool, use_proxy: bool) -> aiohttp.ClientSession:
    """A session without limits of its own: slots bound the connections, the turn timeout bounds the waiting."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=not keeps_alive),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(loop=asyncio.get_running_loop()),
        trust_env=use_proxy,
    )
