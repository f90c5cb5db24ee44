"""Backends of runs whose requests are observed."""

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from ..core.messages import chat_messages, chat_tools
from ..core.protocols.backend import Backend, EncodesRequests, Traits
from ..core.requests import CallDelta, Delta, EncodedRequest, Exchange, Finished, Request, RequestObserver, TextDelta


def encoded_request(backend: Backend, request: Request) -> EncodedRequest:
    """The request as the backend sends it; the data that `Backend.stream` receives if the backend cannot tell."""
    if isinstance(backend, EncodesRequests):
        return backend.encode(request)
    prompt, sampling = request.prompt, request.sampling
    settings = {**asdict(sampling), "stop": list(sampling.stop), "extra": dict(sampling.extra)}
    body: dict[str, Any] = {
        "model": request.model,
        **{name: value for name, value in settings.items() if value not in (None, [], {})},
        "tools": chat_tools(prompt.tools),
        "messages": chat_messages(prompt, request.messages),
        "answer_schema": request.answer_schema,
        "may_call_tools": request.may_call_tools,
        "stream": request.stream,
    }
    return EncodedRequest("", "", {}, body)


class ObservedBackend:
    """Backend that the caller has opened. What it sends is unknown, so an exchange has the data of the request, and the
    text and calls of the reply."""

    def __init__(self, backend: Backend, observe: RequestObserver) -> None:
        self._backend = backend
        self._observe = observe

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        recorded = _Recorded()
        sent, at, started, error = encoded_request(self._backend, request), time.time(), time.monotonic(), None
        try:
            async with self._backend.stream(request) as deltas:
                yield recorded.read(deltas)
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self._observe(
                Exchange(
                    request,
                    sent,
                    at,
                    time.monotonic() - started,
                    response=recorded.reply(),
                    usage=None if recorded.finished is None else recorded.finished.usage,
                    error=error,
                )
            )

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        await self._backend.aclose()


class StageBackend:
    """Backend of one stage of a flow. Labels its requests with the name of the stage."""

    def __init__(self, backend: Backend, stage: str) -> None:
        self._backend = backend
        self._stage = stage

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        return self._backend.stream(replace(request, stage=self._stage))

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        await self._backend.aclose()


class _Recorded:
    """The reply, as far as it has been read."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self.finished: Finished | None = None

    async def read(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            match delta:
                case TextDelta(text):
                    self._texts.append(text)
                case CallDelta(call):
                    self._calls.append(asdict(call))
                case Finished():
                    self.finished = delta
            yield delta

    def reply(self) -> dict[str, Any] | None:
        if self.finished is None and not self._texts and not self._calls:
            return None
        finish = None if self.finished is None else self.finished.reason
        return {"text": "".join(self._texts), "calls": self._calls, "finish": finish}
