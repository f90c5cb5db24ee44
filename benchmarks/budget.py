"""Runs with a budget beside the same runs without one, over HTTP: a budget is never exceeded, and must not cost time.

    python -m benchmarks.budget [--rounds 3] [--out FILE]

Each case runs on a simulated engine in a process of its own, with and without its budget in turns, and without
`max_tokens`: the limits of answers are derived. What was spent is counted by the engine. In `tight`, the budget pays
few requests at once at first. `before` is the number of requests that the budget would have paid at once if each answer
might have filled the window.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from batch_agent import BatchAgent, Tool
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report

TARGET = 1.10
PRICE = (3.0, 0.3, 15.0)
"""Dollars per million tokens: input, cached input, output."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run and its budget."""

    name: str
    agents: int
    max_usd: float
    answer_tokens: int = 16
    tool_turns: int = 0
    window: int = 16_384
    inflight: int = 64
    has_checkpoint: bool = False


CASES = (
    Case("tiny", 200, 1.0),
    Case("tiny, tight", 200, 0.15),
    Case("tiny, 1,000 agents", 1_000, 1.0),
    Case("window of 400k", 100, 0.5, window=400_000, inflight=32),
    Case("tools", 100, 2.0, tool_turns=3, inflight=32),
    Case("long answers", 100, 10.0, answer_tokens=200, inflight=32),
    Case("with a checkpoint", 200, 1.0, has_checkpoint=True),
)


@Tool.define
async def look(key: str) -> str:
    """Looks a key up."""
    await asyncio.sleep(0.02)
    return f"{key}: " + "found " * 20


async def measure(case: Case, sim: SimServer, *, has_budget: bool, number: int) -> dict[str, float]:
    budget: dict[str, Any] = {"max_usd": case.max_usd, "prices": {"sim": PRICE}} if has_budget else {}
    before = _billed(sim)
    with tempfile.TemporaryDirectory() as folder:
        if case.has_checkpoint:
            budget["checkpoint_dir"] = folder
        began = time.monotonic()
        results = await BatchAgent.run(
            task="{it}",
            inputs=[f"round {number} {has_budget} case {agent}" for agent in range(case.agents)],
            backend=f"vllm://{sim.url.removeprefix('http://')}",
            tools=[look] if case.tool_turns else [],
            max_inflight=case.inflight,
            progress=False,
            **budget,
        )
        seconds = time.monotonic() - began
    return {"seconds": seconds, "usd": _billed(sim) - before, "answered": sum(result.ok for result in results)}


def _billed(sim: SimServer) -> float:
    """Dollars of everything that the engine was sent and wrote; cached input at the full price."""
    tokens = sim.metrics()
    prompt, output = (
        sum(count for name, count in tokens.items() if name.startswith(f"vllm:{kind}_tokens_total"))
        for kind in ("prompt", "generation")
    )
    return (prompt * PRICE[0] + output * PRICE[2]) / 1e6


def compared(case: Case, rounds: int) -> dict[str, Any]:
    config = SimConfig(max_model_len=case.window, num_blocks=max(7_168, case.window // 8))
    script = Script(tool_turns=case.tool_turns, answer_tokens=case.answer_tokens)
    with SimServer(config, script) as sim:
        asyncio.run(measure(case, sim, has_budget=False, number=-1))  # imports what a first run imports
        pairs = [
            [asyncio.run(measure(case, sim, has_budget=budget, number=number)) for budget in (False, True)]
            for number in range(rounds)
        ]
    without, with_budget = ([pair[at] for pair in pairs] for at in (0, 1))
    row: dict[str, Any] = {**asdict(case), "rounds": rounds}
    row["before"] = min(case.inflight, int(case.max_usd / (case.window * PRICE[2] / 1e6)))
    for name, seen in (("without_", without), ("budget_", with_budget)):
        row |= {name + key: round(statistics.median(each[key] for each in seen), 4) for key in seen[0]}
    row["max_usd_spent"] = round(max(each["usd"] for each in with_budget), 4)
    row["ratio"] = round(sum(each["seconds"] for each in with_budget) / sum(each["seconds"] for each in without), 3)
    print(
        f"{case.name:20} {row['without_seconds']:6.2f} s, with ${case.max_usd:g}: {row['budget_seconds']:6.2f} s, "
        f"ratio {row['ratio']:.3f}; answered {row['budget_answered']:.0f} of {case.agents}, "
        f"spent at most ${row['max_usd_spent']:.3f}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="cases whose name begins with it")
    given = parser.parse_args()
    rows = [compared(case, given.rounds) for case in CASES if case.name.startswith(given.only)]
    missed = [row["name"] for row in rows if row["ratio"] > TARGET]
    over = [row["name"] for row in rows if row["max_usd_spent"] > row["max_usd"]]
    print(report.write("budget", {"target": TARGET, "missed": missed, "over": over, "cases": rows}, given.out))


if __name__ == "__main__":
    main()
