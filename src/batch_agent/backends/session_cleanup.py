"""Cleanup of per-agent sessions on servers that keep state for each agent."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import orjson
from yarl import URL

from ..core.requests import ContextHint
from .dialects.openai.context_hints import hint_request

_REQUEST_TIMEOUT = 5.0
_CLOSE_ALL_TIMEOUT = 3.0
_BATCH_SIZE = 64


Post = Callable[[URL, bytes, float, Mapping[str, str] | None], Awaitable[object]]
"""Posts a body to a URL with a timeout in seconds and headers. Never raises."""


class CloseRequest(NamedTuple):
    """Request that closes the session of one agent."""

    url: URL
    body: bytes
    headers: Mapping[str, str] = {}


class SessionCloser:
    """Closes the session of each registered agent once. Waits are short, and failures are ignored."""

    def __init__(
        self, post: Post, close_request: Callable[[str], CloseRequest], *, last_request_closes: bool = False
    ) -> None:
        """`last_request_closes`: the last request of an agent says so itself."""
        self._post = post
        self._close_request = close_request
        self._last_request_closes = last_request_closes
        self._agents: set[str] = set()

    def register(self, agent: str, *, is_last: bool = False) -> None:
        """A request of the agent is sent. `is_last`: its hint says that no other follows."""
        if is_last and self._last_request_closes:
            self._agents.discard(agent)
        elif agent:
            self._agents.add(agent)

    async def close(self, agent: str) -> None:
        if agent in self._agents:
            await self._send(agent)
            self._agents.discard(agent)

    async def close_all(self) -> None:
        """Closes the remaining sessions of a run that ends early."""
        remaining, self._agents = sorted(self._agents), set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_ALL_TIMEOUT):
                for start in range(0, len(remaining), _BATCH_SIZE):
                    async with asyncio.TaskGroup() as group:
                        for agent in remaining[start : start + _BATCH_SIZE]:
                            group.create_task(self._send(agent))

    async def _send(self, agent: str) -> None:
        url, body, headers = self._close_request(agent)
        await self._post(url, body, _REQUEST_TIMEOUT, headers)


def close_session(url: URL) -> Callable[[str], CloseRequest]:
    """SGLang's session cache: the blocks of a session are evicted last, until the session is closed."""
    return lambda agent: CloseRequest(url, orjson.dumps({"session_id": agent}))


def drop_context(url: URL, model: str) -> Callable[[str], CloseRequest]:
    """vLLM with the plugin batch-agent-vllm: the blocks of the agent are the next ones to be reused."""
    return lambda agent: CloseRequest(url, hint_request(model, ContextHint(agent, is_last=True)))


def final_request(url: URL, model: str) -> Callable[[str], CloseRequest]:
    """Dynamo's ThunderAgent router counts an agent's tokens until a final request ends its session. Other routers treat
    it as an ordinary request, so it generates one token only."""
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1})
    return lambda agent: CloseRequest(url, body, {"x-dynamo-session-id": agent, "x-dynamo-session-final": "true"})
