"""What becomes of agents whose conversations outgrow the model's window, without and with compaction.

    python -m benchmarks.compaction [--quick] [--out PATH]

The engine is simulated, in real time and over HTTP: a 7B model on an H200 with a window of 16,384 tokens, running
`SPEED` times faster than what it models, tools and steps alike. Agents take 20 turns, 19 of them tool calls that bring
1,500 tokens each: at their ends they would have read twice what the window holds. Four ways, each on a server of its
own:

- none: compact_at=None. Agents go on until the server refuses them.
- elide: the default. Old results become a line.
- summarize: old results become summaries of an eighth, which the same model makes.
- wide: none of it, on a server with a window four times as big. Nothing is lost there but memory: its KV cache is no
  bigger.

`input_tokens` and `cached_share` are of the agents' own turns, `computed_tokens` is what the server computed for all
prompts, summaries too. --quick runs one round and writes nothing.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from batch_agent import BatchAgent, ErrorKind, Tool
from batch_agent.core.events import Event, ToolsUsed
from batch_agent.core.requests import Usage
from batch_agent.core.results import Results
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.sim.tokens import TOKEN_BYTES
from benchmarks import report
from benchmarks.scheduling import PROSE, SYSTEM, faster
from benchmarks.sim_vs_vllm import H200

SPEED = 4.0
ROUNDS = 3
AGENTS = 24
TURNS = 20
RESULT_TOKENS = 1_500
TOOL_S = (0.5, 1.5)
WINDOW = replace(H200, max_model_len=16_384)
WIDE = replace(H200, max_model_len=65_536)
SCRIPT = Script(tool_turns=TURNS - 1, answer_tokens=150)
WAYS: dict[str, tuple[SimConfig, dict[str, Any]]] = {
    "none": (WINDOW, {"compact_at": None}),
    "elide": (WINDOW, {}),
    "summarize": (WINDOW, {"compact_with": "summarize"}),
    "wide": (WIDE, {"compact_at": None}),
}

Numbers = dict[str, float]


class Summaries:
    """Hears what the summaries took."""

    def __init__(self) -> None:
        self.usage = Usage()

    def emit(self, event: Event) -> None:
        if isinstance(event, ToolsUsed):
            self.usage = event.summaries


def reader() -> Tool:
    numbers, random = itertools.count(), Random("tools")

    @Tool.define(effect="stateful")
    async def read(key: str) -> str:
        """Reads the next chapter."""
        await asyncio.sleep(random.uniform(*TOOL_S) / SPEED)
        text = f"Chapter {next(numbers)}, {key}. " + PROSE * (RESULT_TOKENS * TOKEN_BYTES // len(PROSE) + 1)
        return text[: RESULT_TOKENS * TOKEN_BYTES]

    return read


def measure(config: SimConfig, options: dict[str, Any]) -> Numbers:
    """One run on a server of its own, whose cache is empty."""
    with SimServer(faster(config, SPEED), SCRIPT) as sim:
        before = sim.metrics()
        summaries, started = Summaries(), time.perf_counter()
        results = asyncio.run(agents(f"vllm://127.0.0.1:{sim.port}", summaries, options))
        wall = time.perf_counter() - started
        after = sim.metrics()
    done = {name: after[name] - before[name] for name in after}
    used = sum((result.usage for result in results), Usage())
    overflowed = sum(result.error is not None and result.error.kind is ErrorKind.CONTEXT_OVERFLOW for result in results)
    return {
        "agents": len(results),
        "finished": sum(result.ok and result.turns == TURNS for result in results),
        "overflowed": overflowed,
        "turns": sum(result.turns for result in results),
        "compactions": sum(result.compactions for result in results),
        "input_tokens": used.input,
        "cached_share": round(used.cached / used.input, 3),
        "summary_tokens": summaries.usage.input + summaries.usage.output,
        "computed_tokens": done["vllm:prefix_cache_queries_total"] - done["vllm:prefix_cache_hits_total"],
        "most_residents": results.scheduling.most_residents or 0,
        "lost": results.scheduling.cache_misses or 0,
        "wall_s": round(wall, 2),
    }


async def agents(backend: str, summaries: Summaries, options: dict[str, Any]) -> Results:
    results: Results = await BatchAgent.run(
        task="Read the book {it} chapter by chapter, then say how it ends.",
        system_prompt=SYSTEM,
        inputs=[f"no. {number}" for number in range(AGENTS)],
        tools=[reader()],
        backend=backend,
        max_turns=TURNS,
        events=summaries,
        **options,
    )
    return results


def main(*, quick: bool, out: Path | None) -> None:
    taken: dict[str, list[Numbers]] = {}
    for _ in range(1 if quick else ROUNDS):
        for way, (config, options) in WAYS.items():
            numbers = measure(config, options)
            if not taken:
                print(f"{'':>10}" + "".join(f"{name:>16}" for name in numbers))
            taken.setdefault(way, []).append(numbers)
            print(f"{way:>10}" + "".join(f"{_shown(value):>16}" for value in numbers.values()), flush=True)
    if not quick:
        medians = {
            way: {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
            for way, rounds in taken.items()
        }
        work = {"agents": AGENTS, "turns": TURNS, "result_tokens": RESULT_TOKENS, "tool_s": TOOL_S, "speed": SPEED}
        ways = {way: {"server": asdict(config), "options": options} for way, (config, options) in WAYS.items()}
        print(report.write("compaction", {"work": work, "ways": ways, "medians": medians, "all_rounds": taken}, out))


def _shown(value: float) -> str:
    return f"{value:.3f}" if value % 1 else f"{value:,.0f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--out", type=Path, help="where to write the JSON (default: benchmarks/results/compaction.json)"
    )
    given = parser.parse_args()
    main(quick=given.quick, out=given.out)
