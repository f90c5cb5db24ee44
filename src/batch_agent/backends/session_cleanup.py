"""Telling a server that an agent is done, where the server keeps something for each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import orjson
from yarl import URL

_WITHIN = 5.0
_LAST_TIMEOUT = 3.0
_AT_ONCE = 64


Post = Callable[[URL, bytes, float, Mapping[str, str] | None], Awaitable[object]]
"""Posts a body to a URL with these headers, within so many seconds. Never fails."""


class CloseRequest(NamedTuple):
    """The request that lets an agent go."""

    url: URL
    body: bytes
    headers: Mapping[str, str] = {}


class SessionCloser:
    """Each agent that was greeted is said goodbye once. Nobody waits long for it, and no failure of it matters."""

    def __init__(self, post: Post, goodbye: Callable[[str], CloseRequest]) -> None:
        self._post = post
        self._goodbye = goodbye
        self._here: set[str] = set()

    def greet(self, agent: str) -> None:
        if agent:
            self._here.add(agent)

    async def leave(self, agent: str) -> None:
        if agent in self._here:
            await self._say(agent)
            self._here.discard(agent)

    async def leave_all(self) -> None:
        """For a run that ends early."""
        left, self._here = sorted(self._here), set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_TIMEOUT):
                for start in range(0, len(left), _AT_ONCE):
                    async with asyncio.TaskGroup() as group:
                        for agent in left[start : start + _AT_ONCE]:
                            group.create_task(self._say(agent))

    async def _say(self, agent: str) -> None:
        url, body, headers = self._goodbye(agent)
        await self._post(url, body, _WITHIN, headers)


def close_session(url: URL) -> Callable[[str], CloseRequest]:
    """SGLang's session cache: what belongs to a session is evicted last, until the session is closed."""
    return lambda agent: CloseRequest(url, orjson.dumps({"session_id": agent}))


def final_request(url: URL, model: str) -> Callable[[str], CloseRequest]:
    """Dynamo's ThunderAgent router counts an agent's tokens until a last request says that it is done. Other routers
    take it for an ordinary one, so it asks for as little as it can."""
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1})
    return lambda agent: CloseRequest(url, body, {"x-dynamo-session-id": agent, "x-dynamo-session-final": "true"})
