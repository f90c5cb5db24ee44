"""Many endpoints that come and go under a run, in virtual time: nothing is lost, and agents stay where they are."""

import asyncio
import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from batch_agent import Backend, BackendError, BatchAgent, ErrorKind, Tool
from batch_agent.backends.endpoints.endpoint_watcher import open_watched_pool
from batch_agent.core.events import EndpointChanged
from batch_agent.core.options.backend_settings import NamedBackend, settings_of
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import ScriptedBackend, call, run_virtual, say

TURNS = 3
PERIOD = 1.0
"""Seconds between two versions of the hostfile."""


class Engine(ScriptedBackend):
    """Answers within a second or so, until it is dead."""

    def __init__(self, fleet: "Fleet", name: str, kv_tokens: int | None) -> None:
        super().__init__(self._answer, name="vllm", inflight=4, kv_tokens=kv_tokens, kv_running_tokens=kv_tokens)
        self.is_dead = False
        self._fleet = fleet
        self._name = name

    async def _answer(self, request: Request) -> Reply:
        if not request.agent or request.index is None:
            return say("")
        fleet = self._fleet
        if self.is_dead:
            raise BackendError(ErrorKind.UNAVAILABLE, "Connection refused.")
        assert self._name not in fleet.draining, "a request was sent to an endpoint that drains"
        fleet.path[request.agent].append(self._name)
        await asyncio.sleep(0.3 + fleet.dice.random())
        if self.is_dead:
            raise BackendError(ErrorKind.CONNECTION, "Connection reset.")
        words = say("done") if request.turn + 1 == TURNS else call("look", agent=request.index, turn=request.turn)
        return replace(words, usage=Usage(500 * (request.turn + 1), 0, 20))


class Fleet:
    """Endpoints in a hostfile. Each second some are replaced by new ones, and half of those that go die."""

    def __init__(self, file: Path, endpoints: int, kv_tokens: int | None) -> None:
        self.file = file
        self.dice = random.Random(0)
        self.path: dict[str, list[str]] = defaultdict(list)
        self.changes: Counter[str] = Counter()
        self.draining: set[str] = set()
        self.died = 0
        self._kv_tokens = kv_tokens
        self._engines: dict[str, Engine] = {}
        self._names = [f"gpu{index}:8000" for index in range(endpoints)]
        self._made = endpoints
        self._publish()

    async def open(self, named: NamedBackend) -> Engine:
        name = settings_of(named).label
        return self._engines.setdefault(name, Engine(self, name, self._kv_tokens))

    def on_change(self, change: EndpointChanged) -> None:
        self.changes[change.state] += 1
        (self.draining.add if change.state == "draining" else self.draining.discard)(change.endpoint)

    async def replace(self, share: float) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            for _ in range(max(1, round(share * len(self._names)))):
                gone = self._names.pop(self.dice.randrange(len(self._names)))
                if self.dice.random() < 0.5 and (engine := self._engines.get(f"vllm://{gone}")) is not None:
                    engine.is_dead = True
                    self.died += 1
                self._names.append(f"gpu{self._made}:8000")
                self._made += 1
            self._publish()

    def _publish(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(self._names))
        os.replace(new, self.file)


def run_agents(file: Path, endpoints: int, agents: int, kv_tokens: int | None) -> Fleet:
    fleet, calls = Fleet(file, endpoints, kv_tokens), Counter[tuple[int, int]]()

    @Tool.define(effect="write")
    async def look(agent: int, turn: int) -> str:
        """Looks it up."""
        calls[agent, turn] += 1
        await asyncio.sleep(fleet.dice.random())
        return "seen"

    async def scene() -> None:
        given = [Backend(f"hostfile://{file}", refresh=0.5)]
        pool = await open_watched_pool(given, fleet.open, list[str]().append)
        pool.observe_endpoints(fleet.on_change)
        replacing = asyncio.create_task(fleet.replace(0.02))
        inputs = [f"case {number}" for number in range(agents)]
        results = await BatchAgent.run(
            task="{it}", inputs=inputs, tools=[look], backend=pool, max_turns=TURNS + 2, progress=False
        )
        replacing.cancel()
        await pool.aclose()
        assert all(result.ok for result in results)

    run_virtual(scene())
    assert calls == {(agent, turn): 1 for agent in range(agents) for turn in range(TURNS - 1)}
    return fleet


@pytest.mark.parametrize("kv_tokens", [None, 20_000])
@pytest.mark.parametrize(
    ("endpoints", "agents"), [(40, 120), pytest.param(1000, 600, marks=pytest.mark.slow)], ids=["40", "1000"]
)
def test_endpoints_that_come_and_go_lose_nothing_and_keep_their_agents(
    tmp_path: Path, endpoints: int, agents: int, kv_tokens: int | None
) -> None:
    fleet = run_agents(tmp_path / "hosts", endpoints, agents, kv_tokens)
    requests = sum(map(len, fleet.path.values()))
    assert agents * TURNS <= requests <= agents * TURNS + 8 * fleet.died
    assert fleet.changes["joined"] >= 0.02 * endpoints
    assert fleet.changes["draining"] >= 0.02 * endpoints
    pairs = [pair for path in fleet.path.values() for pair in pairwise(path)]
    assert sum(one == other for one, other in pairs) >= 0.85 * len(pairs)
