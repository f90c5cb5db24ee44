"""A router in front of several engines: one URL, and a header that keeps the requests of an agent together."""

import asyncio
from collections import defaultdict
from typing import Any

import orjson
import pytest
from tests.support.sim_hosts import CHAT, STEPS

from batch_agent import Backend, BatchAgent, SpecError, Tool
from batch_agent.sim import Script
from batch_agent.sim.http import ClientConnection
from batch_agent.sim.http_parser import HttpRequest
from batch_agent.sim.routes import SimRoutes


class Router:
    """Consistent hashing by the session of a request, as routers do it; without one, round robin."""

    def __init__(self, engines: int) -> None:
        loop = asyncio.get_running_loop()
        self._engines = [SimRoutes(STEPS, Script(tool_turns=2, answer_tokens=4), loop) for _ in range(engines)]
        self._connections: set[ClientConnection] = set()
        self._turn = 0
        self.engines_of: dict[str, set[int]] = defaultdict(set)
        self.sessions: set[bytes] = set()

    async def __aenter__(self) -> str:
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self._route, self._connections), "127.0.0.1", 0
        )
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/v1"

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for connection in list(self._connections):
            connection._reset_now()

    def _route(self, request: HttpRequest, connection: ClientConnection) -> None:
        session = request.header(b"x-session-id")
        self._turn += 1
        index = sum(session) % len(self._engines) if session else self._turn % len(self._engines)
        if request.path.decode() == CHAT and "case" in (text := str(orjson.loads(request.body)["messages"])):
            self.engines_of[text[text.find("case") :][:8]].add(index)
            self.sessions.add(session)
        self._engines[index].handle(request, connection)


async def run(url: str, **settings: Any) -> list[Any]:
    @Tool.define(effect="read")
    async def look(it: str = "") -> str:
        """Looks it up."""
        return "seen"

    inputs = [f"case {number:03}" for number in range(12)]
    backend = Backend(url, **settings)
    return list(await BatchAgent.run(task="Look at {it}", inputs=inputs, tools=[look], backend=backend, progress=False))


async def test_a_router_gets_the_agent_of_each_request_and_keeps_its_turns_together() -> None:
    router = Router(3)
    async with router as url:
        results = await run(url, session_header="X-Session-ID")
    assert all(result.ok for result in results)
    assert router.sessions == {result.key.encode() for result in results}
    assert all(len(engines) == 1 for engines in router.engines_of.values())
    assert set().union(*router.engines_of.values()) == {0, 1, 2}


async def test_without_it_the_router_knows_no_sessions() -> None:
    router = Router(3)
    async with router as url:
        assert all(result.ok for result in await run(url))
    assert router.sessions == {b""}
    assert any(len(engines) > 1 for engines in router.engines_of.values())


@pytest.mark.parametrize("name", ["", "two words", 7, "Content-Type"])
def test_it_must_be_the_name_of_a_header_that_is_free(name: Any) -> None:
    with pytest.raises(SpecError, match="header"):
        Backend("http://router/v1", session_header=name)


def test_it_must_not_be_one_of_the_given_headers() -> None:
    with pytest.raises(SpecError, match="is already set"):
        Backend("http://router/v1", session_header="x-id", headers={"X-ID": "${ME}"})
