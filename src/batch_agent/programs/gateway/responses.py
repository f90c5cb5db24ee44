"""How an answer reaches a program, which may have to wait for minutes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from ...core.fast_dataclass import dataclass
from ...core.requests import Reply
from .errors import GatewayError
from .protocol import ApiProtocol, ResponseMeta

_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class StreamPace:
    """Seconds."""

    patience: float = 5.0
    """A stream begins after so long, even without an answer: what fails before can still be told by a status."""
    heartbeat: float = 5.0
    """Between signs of life, for programs that give up on a server which is silent."""


@dataclass(frozen=True, slots=True)
class ResponseWriter:
    """One answer, in the words of the program that asked."""

    words: ApiProtocol
    envelope: ResponseMeta

    async def whole(self, answer: Coroutine[Any, Any, Reply | GatewayError]) -> web.StreamResponse:
        outcome = await answer
        if isinstance(outcome, GatewayError):
            raise outcome
        return web.Response(body=self.words.reply(outcome, self.envelope), content_type="application/json")

    async def streamed(
        self, answer: Coroutine[Any, Any, Reply | GatewayError], request: web.Request, pace: StreamPace
    ) -> web.StreamResponse:
        async with asyncio.TaskGroup() as group:
            outcome = group.create_task(answer)
            await asyncio.wait([outcome], timeout=pace.patience)
            if not outcome.done():
                return await self._awaited(outcome, request, pace.heartbeat)
        ready = outcome.result()
        if isinstance(ready, GatewayError):
            raise ready
        return web.Response(body=self.words.events(ready, self.envelope), content_type=_STREAM)

    async def _awaited(
        self, outcome: asyncio.Task[Reply | GatewayError], request: web.Request, heartbeat: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": _STREAM, "Cache-Control": "no-cache"})
        try:
            await response.prepare(request)
            while not outcome.done():
                await response.write(self.words.waiting)
                await asyncio.wait([outcome], timeout=heartbeat)
            await response.write(self._last(outcome.result()))
        except ConnectionError:
            outcome.cancel()  # who asked has left
        return response

    def _last(self, ready: Reply | GatewayError) -> bytes:
        if isinstance(ready, GatewayError):
            return self.words.refusal_event(ready)
        return self.words.events(ready, self.envelope)
