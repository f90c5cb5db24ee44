"""Agents on an engine whose KV cache has a host tier, simulated in virtual time, beside a gather loop.

    python -m benchmarks.kv_tiers

The engine is the simulated H200 of sim_vs_vllm.py with vLLM's native host tier: inclusive, LRU, and copies delay the
steps. The agents are those of the GPU measurement (128 agents, 4 turns, 8,000 tokens); in `uneven` they have 1 to 8
turns. Ours is the real admission controller; the gather loop sends everything at once. What was measured on the H200 is
shown beside it. Minutes of engine time take seconds, and every run gives the same numbers.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from batch_agent import aio
from batch_agent.core.agent_config import Job
from batch_agent.core.facts import Replied
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import Reply, Usage
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.monitor import monitor_load
from batch_agent.engine.residency import Residency
from batch_agent.engine.slots import HeldSlot, Slots
from batch_agent.forecasting.simulation import SimulatedServer
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.kv_tiers import KvTiers
from batch_agent.sim import SimConfig
from batch_agent.sim.kv_engine.sequence import Sequence
from batch_agent.sim.sim_config import KV_BYTES_PER_TOKEN
from batch_agent.virtual_time import run_virtual
from benchmarks import report
from benchmarks.sim_vs_vllm import H200, H200_WORK, ONCE, Workload

REQUEST_SECONDS = 0.01
"""Of a request outside the engine."""
MEASURED = {
    "none": {"gather_loop": 97.4, "ours_before": 63.6},
    "16 GiB": {"gather_loop": 103.7, "ours_before": 75.2},
    "64 GiB": {"gather_loop": 47.7, "ours_before": 52.3},
    "everything fits": {"gather_loop": 37.2, "ours_before": 37.3},
}
"""Seconds on one H200 with vLLM 0.26, before residency knew host tiers."""
_TOOL = ToolCall("", "look_up", "{}")


@dataclass(frozen=True, slots=True)
class Uneven(Workload):
    """Agents of 1 to 8 turns."""

    def turns_of(self, agent: int) -> int:
        return Random(agent).choice((1, 2, 3, 4, 5, 8))


def turns_of(work: Workload, agent: int) -> int:
    return work.turns_of(agent) if isinstance(work, Uneven) else work.turns


def host_blocks(gib: float, config: SimConfig = H200) -> int:
    return int(gib * 2**30 / KV_BYTES_PER_TOKEN / config.block_size)


class GatherLoop:
    """All agents at once."""

    def __init__(self, config: SimConfig, work: Workload) -> None:
        self.config = config
        self.work = work
        self.server = SimulatedServer(config, REQUEST_SECONDS)
        self.ended_at: list[float] = []
        self.later_turns = Usage(0, 0, 0)
        self.first_token_s: list[float] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for agent in range(self.work.agents):
                group.create_task(self.agent(agent))

    async def agent(self, agent: int) -> None:
        for turn in range(turns_of(self.work, agent)):
            if turn:
                await asyncio.sleep(self.tool_seconds(agent, turn - 1))
            await self.turn(agent, turn)
        self.ended_at.append(aio.now())

    def tool_seconds(self, agent: int, turn: int) -> float:
        return self.work.tool_seconds(agent, turn)

    async def turn(self, agent: int, turn: int) -> tuple[Usage, float, float]:
        """Usage, seconds until the first token, and seconds in all."""
        began, sequence = aio.now(), sequence_of(self.work, agent, turn, self.config.block_size)
        decoding = await self.server.answer(sequence)
        seconds = aio.now() - began
        usage = Usage(sequence.prompt_tokens, sequence.cached, sequence.output_tokens)
        if turn:
            self.later_turns += usage
            self.first_token_s.append(seconds - decoding)
        return usage, seconds - decoding, seconds

    def numbers(self) -> dict[str, float]:
        waits = sorted(self.first_token_s)
        host = self.server.engine.host
        return {
            "wall_s": round(self.ended_at[-1], 1),
            "first_result_s": round(self.ended_at[0], 1),
            "mean_result_s": round(sum(self.ended_at) / len(self.ended_at), 1),
            "later_turns_cached": round(self.later_turns.cached / self.later_turns.input, 3),
            "later_turns_ttft_p50_s": round(waits[len(waits) // 2], 3),
            "preemptions": self.server.engine.scheduler.preemptions,
            "loaded_tokens": host.loaded_blocks * self.config.block_size if host is not None else 0,
        }


class Ours(GatherLoop):
    """The same agents, admitted by the admission controller."""

    async def run(self) -> None:
        self.admission = self.controller()
        own = "x" * (self.work.first_prompt - self.work.shared_tokens)
        async with monitor_load(self.server, self.admission), asyncio.TaskGroup() as group:
            for agent in range(self.work.agents):
                job = Job(agent, str(agent), None, own)
                slot = await self.admission.admit(job, ())
                group.create_task(self._run(job, slot))

    def controller(self) -> AdmissionController:
        return admission_of(self.config, self.work)

    async def _run(self, job: Job, slot: HeldSlot) -> None:
        turns = turns_of(self.work, job.index)
        for turn in range(turns):
            if turn:
                slot = await self.admission.readmit(job, turns - turn)
            usage, first, seconds = await self.turn(job.index, turn)
            self.admission.on_reply(job.key, Replied(Reply("", "stop", usage), 0.0, seconds, first))
            slot.release()
            if turn + 1 < turns:
                with self.admission.tool_wait(job.key, [_TOOL], None):
                    await asyncio.sleep(self.tool_seconds(job.index, turn))
        self.admission.release(job.key)
        self.ended_at.append(aio.now())

    def numbers(self) -> dict[str, float]:
        how = self.admission.report()
        return {
            **super().numbers(),
            "max_residents": how.max_residents or 0,
            "evictions": how.evictions or 0,
            "cache_misses": how.cache_misses or 0,
        }


class Scheduled(GatherLoop):
    """Agent n starts after `starts[n]` turns of all agents have ended, or later if it must wait for the one before: a
    schedule, found by search, that no scheduler could know."""

    def __init__(self, config: SimConfig, work: Workload, starts: tuple[int, ...]) -> None:
        super().__init__(config, work)
        self._starts = starts
        self._ended_turns = 0
        self._turn_ended = asyncio.Condition()

    async def agent(self, agent: int) -> None:
        async with self._turn_ended:
            await self._turn_ended.wait_for(lambda: self._ended_turns >= self._starts[agent])
        await super().agent(agent)

    async def turn(self, agent: int, turn: int) -> tuple[Usage, float, float]:
        numbers = await super().turn(agent, turn)
        async with self._turn_ended:
            self._ended_turns += 1
            self._turn_ended.notify_all()
        return numbers


def admission_of(config: SimConfig, work: Workload) -> AdmissionController:
    tiers = KvTiers(config.kv_tokens, config.host_blocks * config.block_size, is_exclusive=True)
    capacity = tiers.retained if config.host_exclusive else tiers.device  # an inclusive tier shows its size later
    residency = Residency(KvLedger(capacity), work.shared_tokens, chars_per_token=1.0)
    return AdmissionController(
        Slots(InflightLimit(32, fixed=False)),
        residency,
        device_tokens=config.kv_tokens,
        shared_chars=work.shared_tokens,
        agents=work.agents,
    )


def sequence_of(work: Workload, agent: int, turn: int, block_size: int) -> Sequence:
    """A turn. The next prompt spells an answer with other tokens than the model did, so what was generated is not found
    again."""
    prompt = work.first_prompt + turn * (work.answer_tokens + work.result_tokens)
    shared, generated = work.shared_tokens // block_size, prompt // block_size
    hashes = [
        hash((0 if index < shared else agent + 1, turn if index >= generated else -1, index))
        for index in range((prompt + work.answer_tokens) // block_size)
    ]
    is_last = turn + 1 == turns_of(work, agent)
    return Sequence(prompt, work.answer_tokens, hashes, agent=str(agent), is_last=is_last, emit_every=ONCE)


def simulate(kind: type[GatherLoop], config: SimConfig, work: Workload) -> GatherLoop:
    return run_to_end(lambda: kind(config, work))


def run_to_end(make: Callable[[], GatherLoop]) -> GatherLoop:
    async def main() -> GatherLoop:
        run = make()
        await run.run()
        return run

    return run_virtual(main())


def best_schedule(config: SimConfig, work: Workload) -> float:
    """The shortest run of all schedules of starts. For few agents: their number grows exponentially."""
    return min(
        run_to_end(lambda starts=starts: Scheduled(config, work, starts)).ended_at[-1]  # type: ignore[misc]
        for starts in _schedules(work)
    )


def _schedules(work: Workload) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(0,)]
    for agent in range(1, work.agents):
        ends = agent * work.turns
        found = [(*starts, at) for starts in found for at in range(starts[-1], ends + 1)]
    return found


SERVERS = {
    "none": H200,
    "16 GiB": replace(H200, host_blocks=host_blocks(16)),
    "16 GiB, exclusive": replace(H200, host_blocks=host_blocks(16), host_exclusive=True),
    "32 GiB": replace(H200, host_blocks=host_blocks(32)),
    "64 GiB": replace(H200, host_blocks=host_blocks(64)),
    "everything fits": replace(H200, num_blocks=80_000),
}


def main() -> None:
    works = {"even": H200_WORK, "uneven": Uneven(**{name: getattr(H200_WORK, name) for name in _FIELDS})}
    numbers: dict[str, Any] = {}
    for name, config in SERVERS.items():
        numbers[name] = {"measured": MEASURED[name]} if name in MEASURED else {}
        for kind, work in works.items():
            loop, ours = simulate(GatherLoop, config, work).numbers(), simulate(Ours, config, work).numbers()
            numbers[name][kind] = {
                "gather_loop": loop,
                "ours": ours,
                "ratio": round(ours["wall_s"] / loop["wall_s"], 3),
            }
            print(f"{name:16} {kind:7} loop {loop['wall_s']:6.1f} s, ours {ours['wall_s']:6.1f} s", flush=True)
    print(json.dumps(numbers, indent=1))
    print(report.write("kv_tiers", {"host_tiers": numbers}))


_FIELDS = ("agents", "turns", "first_prompt", "shared_tokens", "answer_tokens", "result_tokens", "tool_s")

if __name__ == "__main__":
    main()
