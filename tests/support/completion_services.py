"""Completion services that stand in for a run, and a client of the gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from batch_agent.core.program_runtime import CompletionRequest
from batch_agent.core.requests import Reply, Usage
from batch_agent.programs.gateway import Gateway, open_gateway
from batch_agent.programs.gateway.responses import StreamPace

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
_HI = [{"role": "user", "content": "Hi"}]
BODY: dict[str, Any] = {"model": "gpt", "max_tokens": 9, "messages": _HI, "input": _HI}
"""For any of the APIs."""
HELLO = Reply("Hello.", "stop", Usage(12, 8, 3))
STREAM_AT_ONCE = StreamPace(start_after=0, heartbeat=0.01)
"""A stream begins before the reply."""
NEVER_STREAM_EARLY = StreamPace(start_after=600, heartbeat=600)


@dataclass
class FakeService:
    """Returns the replies one after the other, the last one repeatedly; exceptions are raised. With `is_late`, each
    reply waits for `may_answer`."""

    replies: list[Reply | Exception] = field(default_factory=lambda: [HELLO])
    model: str = "the-model"
    received: list[tuple[str, CompletionRequest]] = field(default_factory=list)
    is_late: bool = False
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, agent: str, request: CompletionRequest) -> Reply:
        self.received.append((agent, request))
        if self.is_late:
            await self.may_answer.wait()
            self.may_answer.clear()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def request(self) -> CompletionRequest:
        return self.received[-1][1]


@dataclass
class BlockedService:
    """Replies only once `may_answer` is set."""

    ending: Callable[[], Reply]
    model: str = "the-model"
    is_requested: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, agent: str, request: CompletionRequest) -> Reply:
        self.is_requested.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        return self.ending()


@dataclass
class Caller:
    """The program of one agent."""

    gateway: Gateway
    session: aiohttp.ClientSession
    key: str

    async def post(self, path: str, body: object) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self.key}"}
        if isinstance(body, bytes):
            sent = self.session.post(self.gateway.url + path, data=body, headers=headers)
        else:
            sent = self.session.post(self.gateway.url + path, json=body, headers=headers)
        async with sent as response:
            return response.status, await response.read()


@asynccontextmanager
async def gateway_client(
    service: FakeService | BlockedService, pace: StreamPace = NEVER_STREAM_EARLY, hides: dict[str, str] | None = None
) -> AsyncIterator[Caller]:
    async with (
        asyncio.timeout(60),
        open_gateway(service, pace) as gateway,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        yield Caller(gateway, session, gateway.admit("agent-1", hides or {}))


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = orjson.loads(body)["error"]
    return error
