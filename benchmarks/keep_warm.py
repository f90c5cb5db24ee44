"""What `kvflow=True` does for agents with long tools while others fill the same server's KV cache.

    python -m benchmarks.keep_warm [--quick]

The engine is simulated, in real time and over HTTP, as in scheduling.py; it runs `SPEED` times faster than the H200
that it models, tools, steps and others alike, while the client looks at its load as often as ever. The same agents run
without and with kvflow, each time on a server of its own:

- idle: others send prompts of 2,000 tokens at random times, which takes the engine a third of its time and turns its
  cache over while an agent waits for a tool. Resumed turns find their contexts gone, unless they are kept.
- light: others send half as much, so that a context often lives as long as its agent waits.
- busy: 24 others send their next prompt as soon as they have the answer to their last, so that the engine never rests.
- alone: nobody else is there, and the agents themselves fill the engine and more than its cache.

In the last two kvflow should change nothing; how long the agents take on the busy one varies by half from run to run,
with and without it. `computed_tokens` counts what the agents' prompts and touches made the engine compute; `others_*`
is how long the others waited. --quick runs one round and writes nothing.
"""

import asyncio
import itertools
import math
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from random import Random

import aiohttp

from batch_agent import BatchAgent
from batch_agent.core.run_reports import KeepWarmStats
from batch_agent.sim import SimConfig, SimServer
from batch_agent.sim.tokens import TOKEN_BYTES
from benchmarks import report
from benchmarks.scheduling import PROSE, SYSTEM, TASK, Diary, Numbers, Work, faster, hurried, tool_of
from benchmarks.sim_vs_vllm import H200

SPEED = 4.0
OTHERS_TOKENS = 2_000
OTHERS_ANSWER = 16


@dataclass(frozen=True, slots=True)
class Case:
    work: Work
    config: SimConfig = H200
    others_per_s: float = 0.0
    """In the time of the machine that is modelled."""
    others_at_once: int = 0
    rounds: int = 2


PATIENT = Work(20, 3, document_tokens=6_000, answer_tokens=(24, 40), result_tokens=256, tool_s=(25.0, 40.0))
CROWD = Work(64, 4, document_tokens=6_000, answer_tokens=(96, 160), result_tokens=256, tool_s=(1.0, 3.0))
CASES = {
    "idle": Case(PATIENT, others_per_s=5.0),
    "light": Case(PATIENT, others_per_s=2.5, rounds=1),
    "busy": Case(replace(PATIENT, tool_s=(8.0, 16.0)), others_at_once=24, rounds=5),
    "alone": Case(CROWD, replace(H200, num_blocks=18_000)),
}


class Others:
    """Whoever else uses the server: prompts that share nothing with each other and are asked once."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.waits: list[float] = []
        self._url = f"http://{address}/v1/chat/completions"
        self._session = session
        self._numbers = itertools.count()

    async def arrive(self, per_second: float) -> None:
        random = Random("arrivals")
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(random.expovariate(per_second))
                group.create_task(self._ask())

    async def insist(self) -> None:
        while True:
            await self._ask()

    async def _ask(self) -> None:
        text = f"{next(self._numbers)}. " + PROSE * (OTHERS_TOKENS * TOKEN_BYTES // len(PROSE))
        message = {"role": "user", "content": f'{text}[[sim: {{"tokens": {OTHERS_ANSWER}}}]]'}
        started = time.perf_counter()
        async with self._session.post(self._url, json={"model": "sim", "messages": [message]}) as response:
            await response.read()
        self.waits.append(time.perf_counter() - started)


@asynccontextmanager
async def others(address: str, case: Case) -> AsyncIterator[Others]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), raise_for_status=True) as session,
        asyncio.TaskGroup() as group,
    ):
        crowd = Others(address, session)
        tasks = [group.create_task(crowd.insist()) for _ in range(case.others_at_once)]
        if case.others_per_s:
            tasks.append(group.create_task(crowd.arrive(case.others_per_s * SPEED)))
        try:
            yield crowd
        finally:
            for task in tasks:
                task.cancel()


async def agents(address: str, work: Work, diary: Diary, *, kvflow: bool) -> KeepWarmStats:
    results = await BatchAgent.run(
        task=TASK,
        system_prompt=SYSTEM,
        inputs=[{"document": work.document(agent)} for agent in range(work.agents)],
        tools=[tool_of(work, diary)],
        backend=f"vllm://{address}",
        on_result=lambda result: diary.answered(result.index),
        progress=False,
        kvflow=kvflow,
    )
    if not all(result.ok and result.turns == work.turns for result in results):
        raise SystemExit("Not all agents took all of their turns.")
    for result in results:
        diary.used(result.usage.input, result.usage.cached)
    return results.scheduling.keep_warm or KeepWarmStats()


def measure(case: Case, *, kvflow: bool) -> Numbers:
    """One run on a server of its own, whose cache is empty."""
    with SimServer(faster(case.config, SPEED)) as sim:
        return asyncio.run(_measured(f"127.0.0.1:{sim.port}", case, kvflow=kvflow))


async def _measured(address: str, case: Case, *, kvflow: bool) -> Numbers:
    work = hurried(case.work, SPEED)
    async with others(address, case) as crowd:
        diary, started = Diary(work), time.perf_counter()
        warmth = await agents(address, work, diary, kvflow=kvflow)
        wall = time.perf_counter() - started
    resumed = [wait for waits in diary.waits for wait in waits[1:]]
    return {
        "wall_s": round(wall, 3),
        "resumed_p50_s": _percentile(resumed, 0.5),
        "resumed_p95_s": _percentile(resumed, 0.95),
        "computed_tokens": diary.input_tokens - diary.cached_tokens + warmth.tokens,
        "touches": warmth.requests,
        "hits": warmth.hits,
        "touch_tokens": warmth.tokens,
        "others_asked": len(crowd.waits),
        "others_p50_s": _percentile(crowd.waits, 0.5),
        "others_p95_s": _percentile(crowd.waits, 0.95),
    }


def _percentile(values: list[float], share: float) -> float:
    return round(sorted(values)[math.ceil(share * len(values)) - 1], 4) if values else 0.0


_COLUMNS = {
    "wall": "wall_s",
    "resumed p50": "resumed_p50_s",
    "p95": "resumed_p95_s",
    "computed": "computed_tokens",
    "touches": "touches",
    "hits": "hits",
    "tokens": "touch_tokens",
    "others p50": "others_p50_s",
    "p95 ": "others_p95_s",
}


def main(*, quick: bool) -> None:
    taken: dict[str, dict[str, list[Numbers]]] = {}
    print(f"{'':>14}" + "".join(f"{title:>12}" for title in _COLUMNS))
    for name, case in CASES.items():
        for _ in range(1 if quick else case.rounds):
            for way in ("off", "on"):
                numbers = measure(case, kvflow=way == "on")
                taken.setdefault(name, {}).setdefault(way, []).append(numbers)
                cells = [f"{_shown(numbers[column]):>12}" for column in _COLUMNS.values()]
                print(f"{name:>10} {way:>3}", *cells, sep="", flush=True)
    if not quick:
        medians = {
            name: {
                way: {column: statistics.median(each[column] for each in rounds) for column in rounds[0]}
                for way, rounds in ways.items()
            }
            for name, ways in taken.items()
        }
        cases = {name: asdict(case) for name, case in CASES.items()}
        print(report.write("keep_warm", {"speed": SPEED, "cases": cases, "medians": medians, "all_rounds": taken}))


def _shown(value: float) -> str:
    return f"{value:.3f}" if value < 100 and value % 1 else f"{value:,.0f}"


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
