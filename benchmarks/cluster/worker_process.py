"""One process of the cluster benchmark: `python -m benchmarks.cluster.worker_process ERRAND`, where ERRAND is JSON.

It says that it is ready when it has loaded everything, begins when it is told to, and says at its end what it took. A
worker goes on until it is told to stop."""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, Self

from batch_agent import AgentResult, BatchAgent
from batch_agent.cluster.coordinator_address import coordinator_of
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.result_stream import ResultStream
from batch_agent.run import runner
from batch_agent.run.setup import RunSetup
from batch_agent.store.memory_store import MemoryStore
from benchmarks.cluster.agents import TASK, Agents
from benchmarks.cluster.gather_loop import gather
from benchmarks.peers.work import memory_kb


@dataclass(frozen=True, slots=True)
class Errand:
    """What a process is to do."""

    role: Literal["caller", "collector", "worker", "gather"]
    """A caller works too; a collector leaves that to the workers."""
    agents: Agents
    backend: str
    redis: str | None = None
    in_memory: bool = False
    """The hub is in this process."""
    checkpoint_dir: str | None = None
    run: str = "run"
    max_inflight: int | None = None
    max_dispatched: int = 10_000
    lease: float = 15.0
    shard: tuple[int, int] = (0, 1)
    """Of a gather loop."""
    tool_notes: str | None = None
    result_notes: str | None = None
    """A file that gets a line for each result, as it comes."""
    warm_up: int = 0
    """Agents that are run before, alone and elsewhere."""
    copies: int = 1
    """Workers in this process."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        found: dict[str, Any] = json.loads(text)
        return cls(**{**found, "agents": Agents(**found["agents"]), "shard": tuple(found["shard"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def spec(self, inputs: list[dict[str, str]]) -> BatchSpec:
        return BatchSpec.of(
            task=TASK,
            inputs=inputs,
            tools=[self.agents.tool(self.tool_notes)],
            backend=self.backend,
            model="sim",
            max_inflight=self.max_inflight,
            max_agents=self.max_dispatched,
            checkpoint_dir=self.checkpoint_dir,
            store=self.redis,
            run_id=None if self.redis is None else self.run,
            lease=self.lease,
        )

    def alone(self) -> "Errand":
        """A few agents in a run of their own."""
        return replace(
            self,
            role="gather" if self.role == "gather" else "caller",
            agents=replace(self.agents, number=self.warm_up),
            checkpoint_dir=self.checkpoint_dir and f"{self.checkpoint_dir}-warm-up",
            run=f"{self.run}-{os.getpid()}",
            tool_notes=None,
            result_notes=None,
            shard=(0, 1),
        )


class Delivered:
    """What came of the agents."""

    def __init__(self, errand: Errand) -> None:
        self._agents = errand.agents
        self._notes = None if errand.result_notes is None else open(errand.result_notes, "a", buffering=1)  # noqa: SIM115
        self._found: set[int] = set()
        self._numbers = {"results": 0, "right": 0, "twice": 0}

    def tell(self, agent: int, answer: Any) -> None:
        self._numbers["results"] += 1
        self._numbers["right"] += self._agents.is_right(agent, answer)
        self._numbers["twice"] += agent in self._found
        self._found.add(agent)
        if self._notes is not None:
            self._notes.write(f"{agent}\n")

    def numbers(self) -> dict[str, int]:
        return self._numbers


async def call(errand: Errand, delivered: Delivered) -> None:
    async with _asked(errand) as stream:
        async for result in stream:
            delivered.tell(result.index, _answer(result))


def _asked(errand: Errand) -> ResultStream:
    spec = errand.spec(errand.agents.inputs())
    if errand.role == "caller" and not errand.in_memory:
        return BatchAgent.stream(spec, progress=False)
    coordinator = MemoryCoordinator(MemoryStore()) if errand.in_memory else coordinator_of(spec)
    return ResultStream(
        partial(runner.run, RunSetup.validate(spec, None), coordinator=coordinator, runs_agents=errand.role == "caller")
    )


def _answer(result: AgentResult) -> Any:
    return result.output if result.ok and result.turns == 2 else None


async def work(errand: Errand, delivered: Delivered) -> None:
    async with asyncio.TaskGroup() as group:
        working = [group.create_task(_work(errand)) for _ in range(errand.copies)]
        await asyncio.to_thread(sys.stdin.readline)
        for task in working:
            task.cancel()


async def _work(errand: Errand) -> None:
    while True:  # until it is told to stop; before a caller has come there is nothing to do
        spec = errand.spec([])
        coordinator = coordinator_of(spec)
        assert coordinator is not None
        await runner.work(RunSetup.validate(spec, None), coordinator)


async def loop(errand: Errand, delivered: Delivered) -> None:
    agents, (first, step) = errand.agents, errand.shard
    tasks = {agent: agents.text(agent) for agent in range(first, agents.number, step)}
    at_once = errand.max_inflight or errand.max_dispatched
    await gather(errand.backend, tasks, agents.tool(errand.tool_notes), at_once, delivered.tell)


_ROLES = {"caller": call, "collector": call, "worker": work, "gather": loop}


async def _warm_up(errand: Errand) -> None:
    """Nothing of it is left."""
    alone = errand.alone()
    await _ROLES[alone.role](alone, Delivered(alone))
    if alone.redis is not None:
        coordinator = RedisCoordinator(alone.redis, alone.run)
        await coordinator.delete_run()
        await coordinator.aclose()


def _rss_mb() -> float:
    """The most that this process has had."""
    return memory_kb("VmHWM", os.getpid()) / 2**10


def main() -> None:
    errand = Errand.from_json(sys.argv[1])
    if errand.warm_up:
        asyncio.run(_warm_up(errand))
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    delivered = Delivered(errand)
    began, cpu = time.time(), time.process_time()
    asyncio.run(_ROLES[errand.role](errand, delivered))
    spent = {"cpu_s": time.process_time() - cpu, "began": began, "ended": time.time(), "rss_mb": _rss_mb()}
    print(json.dumps({**spent, **delivered.numbers()}), flush=True)


if __name__ == "__main__":
    main()
