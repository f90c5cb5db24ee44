"""Requests that are aborted only once their prompt is computed, for servers whose engine dies otherwise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Self

from ...core.errors import BackendError
from ...core.requests import Delta

_CLOSE_TIMEOUT = 30.0
"""Seconds that a backend waits for prompts of abandoned requests before it closes their connections."""

DeltaStream = AbstractAsyncContextManager[AsyncIterator[Delta]]


class LateAborts:
    """Abandoned requests of one backend, each read until its first token."""

    def __init__(self) -> None:
        self._abandoned: set[asyncio.Task[None]] = set()

    def request(self, deltas: DeltaStream) -> "LateAbortRequest":
        return LateAbortRequest(deltas, self)

    def add(self, request: "LateAbortRequest", beginning: "asyncio.Task[Delta | None]") -> None:
        task = asyncio.create_task(_end(request, beginning))
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def wait(self) -> None:
        if self._abandoned:
            _, slow = await asyncio.wait(self._abandoned, timeout=_CLOSE_TIMEOUT)
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)


class LateAbortRequest(AsyncIterator[Delta]):
    """A request whose caller may be cancelled at any time. It is sent, and read up to its first token, in a task of its
    own, which a cancelled caller leaves to `LateAborts`."""

    def __init__(self, deltas: DeltaStream, aborts: LateAborts) -> None:
        self.context = deltas
        self._aborts = aborts
        self._first: Delta | None = None

    async def __aenter__(self) -> Self:
        beginning = asyncio.create_task(self._begin())
        try:
            self._first = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            self._aborts.add(self, beginning)
            raise
        return self

    async def _begin(self) -> Delta | None:
        self._deltas = await self.context.__aenter__()
        try:
            return await anext(self._deltas, None)
        except BaseException as error:
            await self.context.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __anext__(self) -> Delta:
        first, self._first = self._first, None
        return await anext(self._deltas) if first is None else first

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.context.__aexit__(kind, error, trace)


async def _end(request: LateAbortRequest, beginning: "asyncio.Task[Delta | None]") -> None:
    with suppress(BackendError):
        await beginning
        cancelled = asyncio.CancelledError()
        await request.context.__aexit__(type(cancelled), cancelled, None)
