"""What was forecast of a run, beside what it was.

    python -m benchmarks.forecast [--quick] [--out PATH]

The server is simulated, in real time and over HTTP, as in scheduling.py: a 7B model on an H200. For each work, first
`BatchAgent.plan` with a canary, which is told nothing else of the server than what a connection shows; then the whole
run, with nothing set. Both are
of the same kind of engine, so this says how well a canary and a rehearsal do, not how well the simulator does: that is
in sim_vs_vllm.py. Prices are made up. --quick runs the first work once and writes nothing.
"""

import argparse
import asyncio
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from batch_agent import BatchAgent, Forecast
from batch_agent.core.options.price import parse_price
from batch_agent.core.requests import NO_USAGE
from batch_agent.data.results import Results
from batch_agent.forecasting.forecast_text import compared_lines, forecast_lines
from batch_agent.sim import SimConfig, SimServer
from benchmarks import report
from benchmarks.scheduling import CROWD, IDLE, SHORT, SYSTEM, TASK, Diary, Sizes, Work, tool_of
from benchmarks.sim_vs_vllm import H200

ROUNDS = 2
AIMS = {"prompt tokens": 0.1, "seconds": 0.25}
"""How far the forecast may be off, as a share of the fact."""
_SHOWN = ("prompt tokens", "cached", "computed", "output tokens", "seconds", "cost")
PRICES = (0.15, 0.075, 0.6)
MANY = Work(1_200, 2, document_tokens=400, answer_tokens=(32, 96), result_tokens=96, tool_s=(1.0, 3.0))


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    work: Work
    ratio: float | None = None
    """Working set to KV capacity; None: as much as the card has."""
    canary: int = 4

    def config(self) -> SimConfig:
        if self.ratio is None:
            return H200
        return replace(H200, num_blocks=math.ceil(Sizes.of(self.work).capacity(self.ratio) / H200.block_size))


CASES = (
    Case("short", SHORT),
    Case("short, canary of 16", SHORT, canary=16),
    Case("crowd 0.5", CROWD, 0.5),
    Case("crowd 1.5", CROWD, 1.5),
    Case("idle 1.5", IDLE, 1.5),
    Case("many", MANY),
)


def options(address: str, work: Work) -> dict[str, Any]:
    return {
        "task": TASK,
        "system_prompt": SYSTEM,
        "inputs": [{"document": work.document(agent)} for agent in range(work.agents)],
        "tools": [tool_of(work, Diary(work))] if work.turns > 1 else [],
        "backend": f"vllm://{address}",
        "prices": {"sim": PRICES},
    }


async def plan(address: str, work: Work, canary: int) -> Forecast:
    return await BatchAgent.plan(canary=canary, **options(address, work))


async def run(address: str, work: Work) -> Results:
    results: Results = await BatchAgent.run(progress=False, **options(address, work))
    return results


def measure(case: Case) -> dict[str, Any]:
    work = case.work
    with SimServer(case.config()) as sim:
        address = f"127.0.0.1:{sim.port}"
        began, cpu = time.perf_counter(), time.process_time()
        expected = asyncio.run(plan(address, work, case.canary))
        plan_s, plan_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        blind = asyncio.run(plan(address, work, 0))
        began = time.perf_counter()
        results = asyncio.run(run(address, work))
        seconds = time.perf_counter() - began
    if not all(result.ok and result.turns == work.turns for result in results):
        raise SystemExit(f"{case.name}: not all agents took {work.turns} turns")
    cost = parse_price(PRICES).of(sum((result.usage for result in results), NO_USAGE))
    compared = expected.compare(results, seconds, cost)
    print(f"\n{case.name}", *forecast_lines(expected), *compared_lines(compared), sep="\n  ", flush=True)
    return {
        "agents": work.agents,
        "plan_s": round(plan_s, 2),
        "plan_cpu_s": round(plan_cpu_s, 2),
        "compared": {row.name: [_short(row.forecast), _short(row.fact), _short(row.ratio)] for row in compared.rows},
        "without_canary": {row.name: _short(row.ratio) for row in blind.compare(results, seconds, cost).rows},
        "basis": expected.basis,
        "scheduling": {"inflight": results.scheduling.inflight, "overcommitted": results.scheduling.overcommitted},
    }


def _ratios(rounds: list[dict[str, Any]], name: str) -> list[float | None]:
    return [each["compared"][name][2] for each in rounds]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", help="names of works")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.only or case.name in options.only][: 1 if options.quick else None]
    found: dict[str, list[dict[str, Any]]] = {case.name: [] for case in cases}
    for _ in range(1 if options.quick else ROUNDS):
        for case in cases:
            found[case.name].append(measure(case))
    for name, rounds in found.items():
        print(name, *(f"{word} {_ratios(rounds, word)}" for word in _SHOWN), sep="; ")
    if not options.quick:
        works = {case.name: {**asdict(case.work), "ratio": case.ratio, "canary": case.canary} for case in cases}
        ratios = {name: {word: _ratios(rounds, word) for word in _SHOWN} for name, rounds in found.items()}
        numbers = {"aims": AIMS, "works": works, "ratios": ratios, "rounds": found}
        print(report.write("forecast", numbers, options.out))


if __name__ == "__main__":
    main()
