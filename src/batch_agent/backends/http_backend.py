"""Any HTTP server behind a dialect. Foreign exceptions end here: callers see BackendError only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from ..core.errors import BackendError
from ..core.protocols import ServerLoad, Traits
from ..core.requests import Delta, Request
from .dialects.dialect import Dialect, StreamDecoder
from .error_mapping import translate_failure, translate_status
from .http.client import ServerClient, display_url, redact_key
from .http.transport import StaleConnection, TransportResponse
from .session_cleanup import SessionCloser

_STALE_WITHIN = 1.0
"""Seconds: who hangs up later had the request, and died of it."""
_END_COMES_WITHIN = 0.5
_NO_STREAMS = (400, 422, 501)


class HttpBackend:
    """One endpoint. Connections are reused; their number is bounded by the slots, not here."""

    def __init__(
        self,
        server: ServerClient,
        dialect: Dialect,
        traits: Traits,
        farewells: SessionCloser | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        loads: Callable[[], Awaitable[ServerLoad | None]] | None = None,
        counts: Callable[[str], Awaitable[int | None]] | None = None,
    ) -> None:
        self.traits = traits
        self.server = server
        self._dialect = dialect
        self._farewells = farewells
        self._on_close = on_close
        self._loads = loads
        self._counts = counts
        self._streams = True

    def stream(self, request: Request) -> "StreamingRequest":
        if not self._streams and request.stream:
            request = replace(request, stream=False)
        if self._farewells is not None:
            self._farewells.greet(request.agent)
        return StreamingRequest(self.server, self._dialect, request, self._stop_streaming)

    def _stop_streaming(self) -> None:
        """The server refuses streams: from now on it is asked for whole answers."""
        self._streams = False

    async def load(self) -> ServerLoad | None:
        return await self._loads() if self._loads is not None else None

    async def count_tokens(self, text: str) -> int | None:
        return await self._counts(text) if self._counts is not None else None

    async def leave(self, agent: str) -> None:
        if self._farewells is not None:
            await self._farewells.leave(agent)

    async def aclose(self) -> None:
        try:
            if self._farewells is not None:
                await self._farewells.leave_all()
        finally:
            try:
                await self.server.aclose()
            finally:
                if self._on_close is not None:
                    await self._on_close()


class StreamingRequest(AsyncIterator[Delta]):
    """One request and its deltas. Leaving it before the end closes the connection, which aborts the request."""

    __slots__ = (
        "_answer",
        "_body",
        "_charge",
        "_decoder",
        "_dialect",
        "_headers",
        "_is_answered",
        "_plain",
        "_ready",
        "_server",
        "_streamed",
        "_url",
    )

    def __init__(
        self, server: ServerClient, dialect: Dialect, request: Request, on_no_streams: Callable[[], None]
    ) -> None:
        self._server = server
        self._plain = (replace(request, stream=False), on_no_streams) if request.stream else None
        self._dialect = dialect
        self._charge = request.charge
        self._streamed = request.stream
        self._url = server.url(dialect.path(request))
        self._body = dialect.encode(request)
        self._headers = dialect.headers(request)
        self._decoder: StreamDecoder | None = None
        self._ready: list[Delta] = []
        self._answer: TransportResponse | None = None
        self._is_answered = False

    async def __aenter__(self) -> Self:
        dialect = self._dialect
        try:
            started = asyncio.get_running_loop().time()
            try:
                answer = await self._server.ask(self._url, self._body, self._headers)
            except StaleConnection:
                if not self._may_resend(started):
                    raise
                answer = await self._server.ask(self._url, self._body, self._headers)
            self._answer = answer
            if answer.status != 200:
                said = redact_key(await answer.read(), answer.sent_headers)
                if self._plain is not None and answer.status in _NO_STREAMS and b"stream" in said.lower():
                    return await self._without_stream(*self._plain)
                raise translate_status(answer.status, answer.headers, said, display_url(self._url))
            self._is_answered = True
            if self._streamed and answer.content_type == dialect.stream_type:
                self._decoder = dialect.decoder()
            else:
                body = await answer.read()
                self._abort()  # read to its end: the connection is free for the next request
                self._ready = dialect.decode_reply(body)
                self._ready.reverse()
        except BackendError as error:
            self._blame(error)
            self._abort()
            raise self._server.without_secrets(error) from None
        except OSError as error:
            failure = translate_failure(error, display_url(self._url))
            self._blame(failure)
            self._abort()
            raise self._server.without_secrets(failure) from None
        except BaseException:
            self._abort()
            raise
        return self

    async def _without_stream(self, request: Request, on_no_streams: Callable[[], None]) -> Self:
        on_no_streams()
        self._abort()
        self._plain, self._streamed = None, False
        self._url, self._body = self._server.url(self._dialect.path(request)), self._dialect.encode(request)
        return await self.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._answer is not None and self._decoder is not None and self._decoder.ended:
                await _read_to_the_end(self._answer)
        finally:
            self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._answer is None or self._decoder is None or self._decoder.ended:
                raise StopAsyncIteration
            await self._read_more(self._answer, self._decoder)
        return self._ready.pop()

    async def _read_more(self, answer: TransportResponse, decoder: StreamDecoder) -> None:
        try:
            chunk = await answer.chunk()
            self._ready = list(decoder.feed(chunk) if chunk else decoder.close())
        except BackendError as error:
            self._blame(error)
            raise self._server.without_secrets(error) from None
        except OSError as error:
            failure = translate_failure(error, display_url(self._url))
            self._blame(failure)
            raise self._server.without_secrets(failure) from None
        self._ready.reverse()

    def _may_resend(self, started: float) -> bool:
        """Sending again on another connection is no retry, but the server may have had the request: it is paid for."""
        if asyncio.get_running_loop().time() - started >= _STALE_WITHIN:
            return False
        return self._charge is None or self._charge.again()

    def _blame(self, error: BackendError) -> None:
        """An answer that began well and came to nothing was generated all the same."""
        if error.status is None and self._is_answered:
            error.status = 200

    def _abort(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


async def _read_to_the_end(answer: TransportResponse) -> None:
    """The end of a stream comes a packet after its last event; only a connection that was read so far is reused."""
    if answer.is_whole:
        return
    with suppress(OSError):
        async with asyncio.timeout(_END_COMES_WITHIN):
            while await answer.chunk():
                pass
