"""One worker against several that use one server, whose KV cache holds a quarter of the agents.

    python -m benchmarks.workers [--quick]

The engine is simulated (a 7B model on an H200, as calibrated in sim_vs_vllm.py), the clock is virtual, and everything
before the engine is real: each worker has its own admission controller, slots and ledger, and all workers use one
coordinator, whose replies take `LATENCY` seconds. Each round draws other tool times; every number of workers gets the
same. --quick runs one round and writes nothing. Two workloads:

- crowd: the agents of `benchmarks.gpu.workers`, which keep the engine busy.
- idle: tools of 8 to 12 s and short answers, so that the engine idles unless agents are admitted beyond the capacity.
"""

import asyncio
import statistics
import sys
from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any

from batch_agent import AgentResult, Tool
from batch_agent.cluster.memory.documents import MemoryDocuments
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.core.coordinator import Document
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.result_stream import ResultStream
from batch_agent.forecasting.simulation import SimulatedServer
from batch_agent.run import runner
from batch_agent.run.setup import RunSetup
from batch_agent.sim.kv_engine.sequence import Sequence
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import ScriptedBackend, call, run_virtual, say
from benchmarks import report
from benchmarks.sim_vs_vllm import H200, H200_WORK, ONCE, Workload

WORKERS = (1, 2, 4, 8)
ROUNDS = 5
LATENCY = 0.001
"""Seconds until the coordinator replies: that of Redis on another machine."""
CHARS_PER_TOKEN = 4
WORKLOADS = {"crowd": H200_WORK, "idle": replace(H200_WORK, answer_tokens=32, tool_s=(8.0, 12.0))}
LIMIT = 1.05
"""Wanted: seconds of four workers / those of one."""


class RemoteDocuments(MemoryDocuments):
    """Documents on another machine."""

    changes = 0

    async def read(self, name: str) -> Document:
        document = await super().read(name)
        await asyncio.sleep(LATENCY)
        return document

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        self.changes += 1
        is_done = await super().compare_and_set(name, old, new)
        await asyncio.sleep(LATENCY)
        return is_done


class RemoteCoordinator(MemoryCoordinator):
    """Coordinator of workers on several machines. It stays open while any of them comes and goes."""

    def __init__(self) -> None:
        store = MemoryStore()
        super().__init__(store)
        self.documents: RemoteDocuments = RemoteDocuments(store)

    async def open(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class SimulatedBackend(ScriptedBackend):
    """Simulated engine behind the script of a workload."""

    def __init__(self, work: Workload) -> None:
        capacity = H200.num_blocks * H200.block_size
        super().__init__(self._answer, name="vllm", inflight=32, kv_tokens=capacity, kv_running_tokens=capacity)
        self.later_turns = Usage()
        self._work = work
        self._server = SimulatedServer(H200)

    async def load(self) -> ServerLoad:
        return await self._server.load()

    async def _answer(self, request: Request) -> Reply:
        work = self._work
        if not request.agent:  # the prefix is warmed
            await self._server.answer(Sequence(work.shared_tokens, 1, self._hashes(-1, work.shared_tokens)))
            return say("")
        assert request.index is not None
        turn = request.turn
        prompt = work.first_prompt + turn * (work.answer_tokens + work.result_tokens)
        hashes = self._hashes(request.index, prompt + work.answer_tokens)
        sequence = Sequence(prompt, work.answer_tokens, hashes, emit_every=ONCE)
        await self._server.answer(sequence)
        usage = Usage(prompt, sequence.cached, work.answer_tokens)
        if turn:
            self.later_turns += usage
        is_last = turn + 1 == work.turns
        words = say("") if is_last else call("look", agent=request.index, turn=turn)
        return Reply("x" * CHARS_PER_TOKEN * work.answer_tokens, words.finish, usage, words.calls)

    def _hashes(self, agent: int, tokens: int) -> list[int]:
        size, shared = H200.block_size, self._work.shared_tokens // H200.block_size
        return [hash((-1 if index < shared else agent, index)) for index in range(tokens // size)]


def setup_of(work: Workload, backend: SimulatedBackend, seed: int, inputs: list[str]) -> RunSetup:
    @Tool.define(effect="write")
    async def look(agent: int, turn: int) -> str:
        """Looks something up."""
        await asyncio.sleep(Random(f"{seed}.{agent}.{turn}").uniform(*work.tool_s))
        return "x" * CHARS_PER_TOKEN * work.result_tokens

    system = "x" * CHARS_PER_TOKEN * work.shared_tokens
    return RunSetup.validate(
        BatchSpec.of(task="{it}", inputs=inputs, system_prompt=system, tools=[look], backend=backend), None
    )


async def measure(work: Workload, workers: int, seed: int) -> dict[str, Any]:
    coordinator, backend = RemoteCoordinator(), SimulatedBackend(work)
    own_chars = CHARS_PER_TOKEN * (work.first_prompt - work.shared_tokens)
    inputs = [f"{agent:04}" * (own_chars // 4) for agent in range(work.agents)]
    results: list[AgentResult[Any]] = []
    async with asyncio.TaskGroup() as group:
        shared = None if workers == 1 else coordinator
        run = partial(runner.run, setup_of(work, backend, seed, inputs), coordinator=shared)
        async with ResultStream(run) as stream:
            while workers > 1 and not await coordinator.work.pending_count():
                await asyncio.sleep(0.01)
            for _ in range(workers - 1):
                group.create_task(runner.work(setup_of(work, backend, seed, []), coordinator))
            results += [result async for result in stream]
            wall = asyncio.get_running_loop().time()
    if not all(result.ok and result.turns == work.turns for result in results) or len(results) != work.agents:
        raise SystemExit("Not all agents have taken all of their turns.")
    later = backend.later_turns
    return {
        "wall_s": round(wall, 2),
        "later_turns_cached": round(later.cached / later.input, 3),
        "computed_prompt_tokens": sum(result.usage.input - result.usage.cached for result in results),
        "document_changes_per_s": round(coordinator.documents.changes / wall, 1),
    }


def main(*, quick: bool) -> None:
    rounds: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for seed in range(1 if quick else ROUNDS):
        for case, work in WORKLOADS.items():
            for workers in WORKERS:
                numbers = run_virtual(measure(work, workers, seed))
                rounds.setdefault(case, {}).setdefault(workers, []).append(numbers)
                print(
                    f"{case} {seed}: {workers} workers", *(f"{name} {each}" for name, each in numbers.items()), sep="  "
                )
    medians = {
        case: {
            workers: {name: statistics.median(each[name] for each in taken) for name in taken[0]}
            for workers, taken in by_workers.items()
        }
        for case, by_workers in rounds.items()
    }
    ratios = {
        case: {workers: round(medians[case][workers]["wall_s"] / medians[case][1]["wall_s"], 3) for workers in WORKERS}
        for case in WORKLOADS
    }
    targets = [
        {"case": case, "target": "four workers / one <=", "limit": LIMIT, "ours": each[4], "is_met": each[4] <= LIMIT}
        for case, each in ratios.items()
    ]
    print("seconds / seconds of one worker:", ratios)
    if not quick:
        numbers = {
            "engine": asdict(H200),
            "works": {case: asdict(work) for case, work in WORKLOADS.items()},
            "coordinator_latency_s": LATENCY,
            "medians": medians,
            "ratios": ratios,
            "targets": targets,
            "all_rounds": rounds,
        }
        print(report.write("workers", numbers))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
