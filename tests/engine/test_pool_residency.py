"""Agents on several endpoints with KV caches of different sizes: each is resident on the endpoint that serves it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from batch_agent import BackendError, BatchAgent, ErrorKind, Tool
from batch_agent.backends.endpoints.endpoint_pool import EndpointPool
from batch_agent.core.protocols.backend import Backend, ServerLoad
from batch_agent.core.requests import NO_USAGE, Reply, Request, Usage
from batch_agent.data.results import Results
from batch_agent.forecasting.simulation import SimulatedServer
from batch_agent.sim import SimConfig
from batch_agent.sim.kv_engine import sequence as sim
from batch_agent.testing import ScriptedBackend, call, run_virtual, say

TURNS, FIRST, ANSWER, RESULT = 4, 2000, 50, 450
"""Turns of each agent, and tokens of its first prompt, of each answer and of each tool result."""
BLOCK = SimConfig().block_size


class Engine(ScriptedBackend):
    """Simulated engine: what it finds in its cache depends on what else it was asked."""

    def __init__(self, kv_tokens: int, slowdown: float = 1.0) -> None:
        super().__init__(self._answer, name="vllm", inflight=16, kv_tokens=kv_tokens, kv_running_tokens=kv_tokens)
        self.later = NO_USAGE
        """Usage of all turns but first ones."""
        self.agents: list[str] = []
        """Agent of each request."""
        self.is_dead = False
        self._server = SimulatedServer(SimConfig(num_blocks=kv_tokens // BLOCK, slowdown=slowdown))

    async def load(self) -> ServerLoad:
        return await self._server.load()

    async def _answer(self, request: Request) -> Reply:
        self._refuse_if_dead()
        if not request.agent or request.index is None:
            return say("")
        self.agents.append(request.agent)
        prompt = FIRST + request.turn * (ANSWER + RESULT)
        hashes = [hash((request.agent, index)) for index in range((prompt + ANSWER) // BLOCK)]
        sequence = sim.Sequence(prompt, ANSWER, hashes, emit_every=ANSWER)
        await self._server.answer(sequence)
        self._refuse_if_dead()
        usage = Usage(prompt, sequence.cached, ANSWER)
        if request.turn:
            self.later += usage
        words = say("done") if request.turn + 1 == TURNS else call("look", agent=request.index, turn=request.turn)
        return replace(words, usage=usage)

    def _refuse_if_dead(self) -> None:
        if self.is_dead:
            raise BackendError(ErrorKind.UNAVAILABLE, "Connection refused.")


@dataclass
class Fleet:
    engines: Sequence[Engine]
    pool: EndpointPool
    notices: list[str] = field(default_factory=list)

    @classmethod
    async def open(cls, *kv_tokens: int, slowdown: float = 1.0) -> "Fleet":
        engines = {
            f"http://{index}": Engine(tokens, 1.0 if index == 0 else slowdown) for index, tokens in enumerate(kv_tokens)
        }

        async def connected(url: str) -> Backend:
            return engines[url]

        notices: list[str] = []
        return cls(list(engines.values()), await EndpointPool.open(list(engines), connected, notices.append), notices)

    @property
    def cached(self) -> float:
        """Share of the prompts of returning turns that was found in the caches."""
        later = sum((engine.later for engine in self.engines), NO_USAGE)
        return later.cached / later.input

    async def run(self, agents: int, seed: int = 0, tool_s: tuple[float, float] = (1.0, 4.0)) -> Results:
        @Tool.define(effect="write")
        async def look(agent: int, turn: int) -> str:
            """Looks something up."""
            await asyncio.sleep(Random(f"{seed}.{agent}.{turn}").uniform(*tool_s))
            return "x" * 4 * RESULT

        inputs = [f"{agent:04}" * FIRST for agent in range(agents)]
        results: Results = await BatchAgent.run(
            task="{it}", inputs=inputs, tools=[look], backend=self.pool, max_turns=TURNS + 2, progress=False
        )
        return results


@pytest.mark.slow
def test_contexts_are_found_again_on_endpoints_of_different_sizes() -> None:
    async def scene() -> None:
        fleet = await Fleet.open(100_000, 20_000, 20_000)
        results = await fleet.run(120, tool_s=(0.5, 2.0))
        assert all(result.ok for result in results)
        assert fleet.cached > 0.65  # with one ledger for the sum of the caches: 0.52 to 0.58
        for engine in fleet.engines[1:]:
            assert engine.later.cached > 0.6 * engine.later.input  # before: 0.33 to 0.37

    run_virtual(scene())


def test_an_agent_stays_on_its_endpoint() -> None:
    async def scene() -> None:
        fleet = await Fleet.open(60_000, 20_000)
        assert all(result.ok for result in await fleet.run(40, tool_s=(0.2, 0.6)))
        first, second = (set(engine.agents) for engine in fleet.engines)
        assert first
        assert second
        assert not first & second

    run_virtual(scene())


def test_endpoints_that_have_room_for_all_agents_share_the_work_equally() -> None:
    async def scene() -> None:
        fleet = await Fleet.open(400_000, 100_000)
        assert all(result.ok for result in await fleet.run(24))
        assert all(len(engine.agents) >= 40 for engine in fleet.engines)  # of 96

    run_virtual(scene())


def test_the_scheduling_report_has_the_sums_of_all_endpoints() -> None:
    async def scene() -> None:
        fleet = await Fleet.open(40_000, 20_000)
        scheduling = (await fleet.run(30)).scheduling
        assert scheduling.kv_tokens == 60_000
        assert scheduling.kv_limit is not None
        assert 40_000 <= scheduling.kv_limit <= 60_000
        assert scheduling.max_residents is not None
        assert 10 <= scheduling.max_residents <= 30

    run_virtual(scene())


def test_no_agent_is_lost_when_an_endpoint_dies() -> None:
    async def scene() -> None:
        fleet = await Fleet.open(40_000, 40_000)

        async def die() -> None:
            await asyncio.sleep(8.0)
            fleet.engines[1].is_dead = True

        async with asyncio.TaskGroup() as group:
            group.create_task(die())
            results = await fleet.run(40)
        assert [result.error for result in results if not result.ok] == []
        assert all(result.turns == TURNS for result in results)
        assert len(fleet.engines[1].agents) > 10
        assert any("http://1" in notice for notice in fleet.notices)

    run_virtual(scene())
