"""Backend for one HTTP endpoint. Errors of the transport are translated here: callers see BackendError only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..core.errors import BackendError, WebPage
from ..core.protocols.backend import PaceKind, ServerLoad, ServiceLimit, Traits
from ..core.requests import ContextHint, Delta, EncodedRequest, Request, RequestObserver
from ..lazy_imports import lazy_modules
from ..media.image_files import has_images, with_image_data
from .dialects.dialect import Dialect, StreamDecoder
from .dialects.response_body import billed_lane
from .http.client import RequestClient, ServerClient, display_url, redact_key
from .http.rate_limit_headers import read_rate_limits
from .http.transport import Headers, StaleConnection, TransportResponse
from .http_errors import translate_failure, translate_status
from .session_cleanup import SessionCloser

with lazy_modules(globals()):
    from .http import exchange_recorder

if TYPE_CHECKING:
    from .http.exchange_recorder import RecordedRequest
    from .http.late_abort import LateAbortRequest, LateAborts

_STALE_TIMEOUT = 1.0
"""Seconds. A server that closes the connection later had received the request, and failed on it."""
_STREAM_END_TIMEOUT = 0.5
_TIER_HEADER = "x-gemini-service-tier"
"""Header in which Gemini names the tier by which a request is billed. Others name it in the body."""
_STREAM_REJECTED = (400, 422, 501)


class HttpBackend:
    """Backend for one endpoint. Connections are reused; slots bound their number."""

    def __init__(
        self,
        server: ServerClient,
        dialect: Dialect,
        traits: Traits,
        session_closer: SessionCloser | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        read_load: Callable[[], Awaitable[ServerLoad | None]] | None = None,
        count_tokens: Callable[[str], Awaitable[int | None]] | None = None,
        observe: RequestObserver | None = None,
        send_hint: Callable[[ContextHint], Awaitable[object]] | None = None,
        daily_requests: bool = False,
        render_prompt: Callable[[Request], Awaitable[bytes | None]] | None = None,
        late_aborts: "LateAborts | None" = None,
    ) -> None:
        """`observe` is called with each exchange, here and in requests that others send to `server`. `daily_requests`:
        the limit of requests that it reports is per day. `late_aborts`: for a server that dies if a request is aborted
        before its first token."""
        self.traits = traits
        self.server = server
        self.dialect = dialect
        self._session_closer = session_closer
        self._on_close = on_close
        self._read_load = read_load
        self._count_tokens = count_tokens
        self._send_hint = send_hint
        self._render_prompt = render_prompt
        self._late_aborts = late_aborts
        self.observe = observe
        self._daily_requests = daily_requests
        self._streams = True
        self._limit_observers: list[Callable[[Mapping[PaceKind, ServiceLimit]], None]] = []

    def observe_rate_limits(self, observer: Callable[[Mapping[PaceKind, ServiceLimit]], None]) -> Callable[[], None]:
        self._limit_observers.append(observer)
        return lambda: self._limit_observers.remove(observer)

    def _on_response(self, headers: Headers) -> None:
        limits = read_rate_limits(headers)
        if self._daily_requests:
            limits.pop("requests", None)
        if limits:
            for observer in self._limit_observers:
                observer(limits)

    def stream(self, request: Request) -> "StreamingRequest | RecordedRequest | LateAbortRequest":
        if not self._streams and request.stream:
            request = replace(request, stream=False)
        if self._session_closer is not None:
            is_last = request.hint is not None and request.hint.is_last
            self._session_closer.register(request.agent, is_last=is_last)
        sent = self._request(self.server, request) if self.observe is None else self._recorded(request, self.observe)
        return sent if self._late_aborts is None else self._late_aborts.request(sent)

    def _request(self, server: RequestClient, request: Request) -> "StreamingRequest":
        on_response = self._on_response if self._limit_observers and self.traits.reports_rate_limits else None
        return StreamingRequest(server, self.dialect, request, self._stop_streaming, on_response)

    def encode(self, request: Request) -> EncodedRequest:
        """The request as `stream` sends it. Sends nothing."""
        sent = StreamingRequest(self.server, self.dialect, request, self._stop_streaming)
        return exchange_recorder.encoded(
            self.server, sent.url, sent.body, {**self.server.headers, **(sent.headers or {})}
        )

    def _recorded(self, request: Request, observe: RequestObserver) -> "RecordedRequest":
        recorder = exchange_recorder.ExchangeRecorder(self.server, request, observe)
        return exchange_recorder.RecordedRequest(self._request(recorder, request), recorder)

    def _stop_streaming(self) -> None:
        """The server rejects streaming requests: from now on requests do not stream."""
        self._streams = False

    async def load(self) -> ServerLoad | None:
        return await self._read_load() if self._read_load is not None else None

    async def count_tokens(self, text: str) -> int | None:
        return await self._count_tokens(text) if self._count_tokens is not None else None

    async def render_prompt(self, request: Request) -> bytes | None:
        return await self._render_prompt(request) if self._render_prompt is not None else None

    async def hint(self, hint: ContextHint) -> None:
        if self._send_hint is not None:
            await self._send_hint(hint)

    async def leave(self, agent: str) -> None:
        if self._session_closer is not None:
            await self._session_closer.close(agent)

    async def aclose(self) -> None:
        try:
            if self._late_aborts is not None:
                await self._late_aborts.wait()
            if self._session_closer is not None:
                await self._session_closer.close_all()
        finally:
            try:
                await self.server.aclose()
            finally:
                if self._on_close is not None:
                    await self._on_close()


class StreamingRequest(AsyncIterator[Delta]):
    """One request and its deltas. Exiting before the end closes the connection, which aborts the request."""

    __slots__ = (
        "_charge",
        "_decoder",
        "_dialect",
        "_fallback",
        "_is_accepted",
        "_is_streamed",
        "_lane",
        "_on_response",
        "_ready",
        "_response",
        "_server",
        "_with_images",
        "body",
        "headers",
        "url",
    )

    def __init__(
        self,
        server: RequestClient,
        dialect: Dialect,
        request: Request,
        on_stream_rejected: Callable[[], None],
        on_response: Callable[[Headers], None] | None = None,
    ) -> None:
        """`on_response`: called with the headers of each response."""
        self._server = server
        self._on_response = on_response
        self._fallback = (request, on_stream_rejected) if request.stream else None
        self._dialect = dialect
        self._with_images = request if has_images(request.messages) else None
        self._charge = request.charge
        self._lane = request.lane
        self._is_streamed = request.stream
        self.url = server.url(dialect.path(request))
        self.body = dialect.encode(request)
        self.headers = dialect.headers(request)
        self._decoder: StreamDecoder | None = None
        self._ready: list[Delta] = []
        self._response: TransportResponse | None = None
        self._is_accepted = False

    async def __aenter__(self) -> Self:
        dialect = self._dialect
        try:
            if self._with_images is not None:
                self.body = await asyncio.to_thread(_encode_with_images, dialect, self._with_images)
            started = asyncio.get_running_loop().time()
            try:
                response = await self._server.post(self.url, self.body, self.headers)
            except StaleConnection:
                if not self._may_resend(started):
                    raise
                response = await self._server.post(self.url, self.body, self.headers)
            self._response = response
            if self._on_response is not None:
                self._on_response(response.headers)
            if response.status != 200:
                body = redact_key(await response.read(), response.sent_headers)
                if self._fallback is not None and response.status in _STREAM_REJECTED and b"stream" in body.lower():
                    return await self._without_stream(*self._fallback)
                raise translate_status(response.status, response.headers, body, display_url(self.url), self._lane)
            self._is_accepted = True
            lane = (
                self._lane if self._lane == "standard" else billed_lane(self._lane, response.headers.get(_TIER_HEADER))
            )
            if self._is_streamed and response.content_type == dialect.stream_type:
                self._decoder = dialect.decoder(lane)
            else:
                body = await response.read()
                self._abort()  # the body was read to its end, so the connection can be reused
                self._ready = dialect.decode_reply(body, lane)
                self._ready.reverse()
        except WebPage as page:
            self._abort()
            raise self._server.redact(WebPage(page.kind, f"{display_url(self.url)}: {page}", status=200)) from None
        except BackendError as error:
            self._mark_billed(error)
            self._abort()
            raise self._server.redact(error) from None
        except OSError as error:
            failure = translate_failure(error, display_url(self.url))
            self._mark_billed(failure)
            self._abort()
            raise self._server.redact(failure) from None
        except BaseException:
            self._abort()
            raise
        return self

    async def _without_stream(self, request: Request, on_stream_rejected: Callable[[], None]) -> Self:
        on_stream_rejected()
        self._abort()
        request = replace(request, stream=False)
        self._fallback, self._is_streamed = None, False
        self.url, self.body = self._server.url(self._dialect.path(request)), self._dialect.encode(request)
        self._with_images = None if self._with_images is None else request
        return await self.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._response is not None and self._decoder is not None and self._decoder.ended:
                await _drain(self._response)
        finally:
            if self._response is not None:
                self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._response is None or self._decoder is None or self._decoder.ended:
                raise StopAsyncIteration
            await self._read_more(self._response, self._decoder)
        return self._ready.pop()

    async def _read_more(self, response: TransportResponse, decoder: StreamDecoder) -> None:
        try:
            chunk = await response.chunk()
            self._ready = list(decoder.feed(chunk) if chunk else decoder.close())
        except BackendError as error:
            self._mark_billed(error)
            raise self._server.redact(error) from None
        except OSError as error:
            failure = translate_failure(error, display_url(self.url))
            self._mark_billed(failure)
            raise self._server.redact(failure) from None
        self._ready.reverse()

    def _may_resend(self, started: float) -> bool:
        """Whether the request may be sent again on another connection. This does not count as a retry, but the budget
        is charged again: the server may have received the first request."""
        if asyncio.get_running_loop().time() - started >= _STALE_TIMEOUT:
            return False
        return self._charge is None or self._charge.again()

    def _mark_billed(self, error: BackendError) -> None:
        """A reply that started with status 200 and failed later was generated, and is billed, all the same."""
        if error.status is None and self._is_accepted:
            error.status = 200

    def _abort(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()


def _encode_with_images(dialect: Dialect, request: Request) -> bytes:
    """The body with the bytes of its images, which are read here and kept as long as the request. Blocks. Raises
    BackendError."""
    return dialect.encode(replace(request, messages=with_image_data(request.messages)))


async def _drain(response: TransportResponse) -> None:
    """Reads the end of a stream, which follows its last event in a packet of its own: only a connection that was read
    to the end is reused."""
    if response.is_complete:
        return
    with suppress(OSError):
        async with asyncio.timeout(_STREAM_END_TIMEOUT):
            while await response.chunk():
                pass
