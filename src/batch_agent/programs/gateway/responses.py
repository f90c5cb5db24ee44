"""Writer of responses to programs, with keep-alives while the model generates."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from ...core.fast_dataclass import dataclass
from ...core.requests import Reply
from .api_protocol import ApiProtocol, ResponseMeta
from .gateway_error import GatewayError

_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class StreamPace:
    """Timing of a streamed response, in seconds."""

    start_after: float = 5.0
    """Time after which a stream begins even without a reply. An earlier error is reported by the status."""
    heartbeat: float = 5.0
    """Interval of keep-alives, for programs that time out on a silent server."""


@dataclass(frozen=True, slots=True)
class ResponseWriter:
    """Writes one response in the API of the request."""

    protocol: ApiProtocol
    meta: ResponseMeta

    async def write(self, answer: Coroutine[Any, Any, Reply | GatewayError]) -> web.StreamResponse:
        outcome = await answer
        if isinstance(outcome, GatewayError):
            raise outcome
        return web.Response(body=self.protocol.reply(outcome, self.meta), content_type="application/json")

    async def stream(
        self, answer: Coroutine[Any, Any, Reply | GatewayError], request: web.Request, pace: StreamPace
    ) -> web.StreamResponse:
        async with asyncio.TaskGroup() as group:
            outcome = group.create_task(answer)
            await asyncio.wait([outcome], timeout=pace.start_after)
            if not outcome.done():
                return await self._stream_later(outcome, request, pace.heartbeat)
        result = outcome.result()
        if isinstance(result, GatewayError):
            raise result
        return web.Response(body=self.protocol.events(result, self.meta), content_type=_STREAM)

    async def _stream_later(
        self, outcome: asyncio.Task[Reply | GatewayError], request: web.Request, heartbeat: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": _STREAM, "Cache-Control": "no-cache"})
        try:
            await response.prepare(request)
            while not outcome.done():
                await response.write(self.protocol.keep_alive)
                await asyncio.wait([outcome], timeout=heartbeat)
            await response.write(self._final_chunk(outcome.result()))
        except ConnectionError:
            outcome.cancel()  # the client has disconnected
        return response

    def _final_chunk(self, result: Reply | GatewayError) -> bytes:
        if isinstance(result, GatewayError):
            return self.protocol.error_event(result, self.meta)
        return self.protocol.events(result, self.meta)
