"""Agents on several endpoints with KV caches of their own: a ledger for each endpoint, beside one ledger of their sum.

    python -m benchmarks.kv_pools

Simulated engines in virtual time, the real admission controller and the real routing. With one ledger, agents are
admitted by the sum of the caches, and routing chooses an endpoint by load and keeps agents where they began, as runs
did before each endpoint had a ledger. Agents have 4 turns and 2,000 to 3,500 tokens; each of five rounds has other tool
times and routes, and the numbers are medians.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Any, Literal

from batch_agent import aio
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import Usage
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.pool_residency import PoolResidency
from batch_agent.engine.residency import Residency
from batch_agent.engine.slots import Slots
from batch_agent.forecasting.simulation import SimulatedServer
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.endpoints.routing import Routing
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.sim import SimConfig
from benchmarks import report
from benchmarks.kv_tiers import REQUEST_SECONDS, Ours, run_to_end, sequence_of
from benchmarks.sim_vs_vllm import Workload

Ledgers = Literal["one", "each"]
ENGINE = SimConfig(
    max_model_len=16_384, step_base_ms=15, step_us_per_seq=100, prefill_us_per_token=150, step_ns_per_kv_token=50
)
AGENTS = Workload(
    agents=60, turns=4, first_prompt=2_000, shared_tokens=200, answer_tokens=150, result_tokens=350, tool_s=(1.0, 4.0)
)
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    caches: tuple[int, ...]
    """Thousands of tokens."""
    agents: int
    tool_s: tuple[float, float]
    slowdowns: tuple[float, ...] = ()

    @property
    def engines(self) -> list[SimConfig]:
        slowdowns = self.slowdowns or (1.0,) * len(self.caches)
        return [
            replace(ENGINE, num_blocks=1_000 * cache // ENGINE.block_size, slowdown=slowdown)
            for cache, slowdown in zip(self.caches, slowdowns, strict=True)
        ]


CASES = {
    "one large, two small": Case((100, 20, 20), 120, (0.5, 2.0)),
    "large and small, short tools": Case((60, 20), 60, (0.2, 0.6)),
    "large and small": Case((40, 10), 60, (1.0, 4.0)),
    "equal": Case((40, 40), 60, (1.0, 4.0)),
    "all fit": Case((200, 100), 24, (1.0, 4.0)),
    "equal, the second a third as fast": Case((100, 100), 60, (1.0, 4.0), (1.0, 3.0)),
    "all fit, the second a third as fast": Case((200, 200), 24, (1.0, 4.0), (1.0, 3.0)),
}


class SimulatedPool:
    """Endpoints behind the routing of an endpoint pool."""

    def __init__(self, engines: list[SimConfig], random: Random) -> None:
        self.on_routed: Callable[[str, str], None] | None = None
        self.servers = [SimulatedServer(engine, REQUEST_SECONDS) for engine in engines]
        self.kv_capacities = {str(index): engine.kv_tokens for index, engine in enumerate(engines)}
        self.routing = Routing(list(self.kv_capacities))
        self._random = random

    def assign(self, agent: str, endpoint: str) -> None:
        self.routing.assign(agent, int(endpoint))

    def is_available(self, endpoint: str) -> bool:
        return self.routing.is_available(int(endpoint), aio.now())

    def expected_wait(self, endpoint: str, requests: int) -> float:
        further = max(1, requests - self.routing.requests(int(endpoint)))
        return self.routing.expected_wait(int(endpoint), float(further), aio.now())

    async def answer(self, agent: str, sequence: Any) -> float:
        draw = self._random.random(), self._random.random()
        index = self.routing.choose(1.0, aio.now(), prefixes=(), origin=agent, exclude=set(), draw=draw)
        assert index is not None
        if self.on_routed is not None:
            self.on_routed(agent, str(index))
        ticket = self.routing.sent(index, 1.0, aio.now())
        decoding = await self.servers[index].answer(sequence)
        self.routing.done(ticket, aio.now())
        return decoding

    async def load(self) -> ServerLoad:
        loads = [await server.load() for server in self.servers]
        usages = [load.kv_usage or 0.0 for load in loads]
        return ServerLoad(
            sum(load.running for load in loads),
            sum(load.waiting for load in loads),
            sum(usages) / len(usages),
            sum(load.preemptions for load in loads),
            sum(load.computed for load in loads),
        )


class PooledAgents(Ours):
    """The agents of a case on its endpoints."""

    def __init__(self, case: Case, ledgers: Ledgers, round_: int) -> None:
        work = replace(AGENTS, agents=case.agents, tool_s=case.tool_s)
        super().__init__(case.engines[0], work)
        self._round = round_
        self.pool = SimulatedPool(case.engines, Random(round_))
        self.server = self.pool  # type: ignore[assignment]
        capacity = sum(self.pool.kv_capacities.values())
        residency: Residency | PoolResidency
        if ledgers == "each":
            residency = PoolResidency(self.pool, self.pool.kv_capacities, work.shared_tokens, 1.0)
        else:
            residency = Residency(KvLedger(capacity), work.shared_tokens, 1.0)
        self._controller = AdmissionController(
            Slots(InflightLimit(32, fixed=False)),
            residency,
            device_tokens=capacity,
            shared_chars=work.shared_tokens,
            agents=work.agents,
        )

    def controller(self) -> AdmissionController:
        return self._controller

    def tool_seconds(self, agent: int, turn: int) -> float:
        return Random(f"{self._round}.{agent}.{turn}").uniform(*self.work.tool_s)

    async def turn(self, agent: int, turn: int) -> tuple[Usage, float, float]:
        began, sequence = aio.now(), sequence_of(self.work, agent, turn, self.config.block_size)
        decoding = await self.pool.answer(str(agent), sequence)
        seconds = aio.now() - began
        usage = Usage(sequence.prompt_tokens, sequence.cached, sequence.output_tokens)
        if turn:
            self.later_turns += usage
        return usage, seconds - decoding, seconds


def measure(case: Case, ledgers: Ledgers) -> dict[str, Any]:
    runs = [run_to_end(lambda round_=round_: PooledAgents(case, ledgers, round_)) for round_ in range(ROUNDS)]  # type: ignore[misc]
    walls = [round(run.ended_at[-1], 1) for run in runs]
    return {
        "wall_s": median(walls),
        "walls_s": walls,
        "later_turns_cached": round(median(run.later_turns.cached / run.later_turns.input for run in runs), 3),
        "overcommitted": median(run.admission.report().overcommitted or 0 for run in runs),  # type: ignore[attr-defined]
    }


def main() -> None:
    numbers: dict[str, Any] = {}
    for name, case in CASES.items():
        one, each = measure(case, "one"), measure(case, "each")
        ratio = round(each["wall_s"] / one["wall_s"], 3)
        numbers[name] = {"caches_k": case.caches, "agents": case.agents, "one": one, "each": each, "ratio": ratio}
        print(f"{name:36} one {one['wall_s']:6.1f} s, each {each['wall_s']:6.1f} s, {ratio}", flush=True)
    print(json.dumps(numbers, indent=1))
    print(report.write("kv_pools", {"pools": numbers}))


if __name__ == "__main__":
    main()
