"""The lane batch beside the lane standard: the same agents on the same scripted model, over HTTP.

    python -m benchmarks.lanes [--agents 200] [--out FILE]

Agents have 1 to 6 turns, with a tool call in each but the last. The simulated service works off a batch in a second;
a real one takes minutes to hours. Waves are the batches that it counts, cost is what it has billed at the prices of
each lane.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from batch_agent import BatchAgent, Results, Tool
from batch_agent.core.options.price import parse_price
from batch_agent.core.requests import Lane, Usage
from batch_agent.sim import BatchConfig, SimConfig, SimServer
from benchmarks import report

LONGEST = 6
PRICES = {"sim": (2.0, 2.0, 8.0)}
CALL = '{"calls": [{"name": "look", "arguments": {"key": "a"}}]}'
TARGET = (0.50, 0.55)
Scheme = Literal["openai", "anthropic"]


@Tool.define
async def look(key: str) -> str:
    """Looks up a key."""
    await asyncio.sleep(0.05)
    return f"value of {key}"


def task_of(number: int) -> str:
    turns = number % LONGEST + 1
    replies = ", ".join([CALL] * (turns - 1) + [f'{{"text": "number {number} after {turns} turns"}}'])
    return f"Item {number}. [[sim: [{replies}]]]"


async def run(sim: SimServer, scheme: Scheme, lane: Lane, agents: int, folder: Path) -> Results[str]:
    url = sim.url if scheme == "openai" else sim.url.replace("http", "anthropic", 1)
    return await BatchAgent.run(
        task="{it}",
        inputs=[task_of(number) for number in range(agents)],
        tools=[look],
        backend=f"{url}/v1",
        lane=lane,
        prices=PRICES,
        checkpoint_dir=folder,
        max_turns=LONGEST + 1,
        progress=False,
    )


def billed(sim: SimServer, lane: Lane) -> float:
    """Dollars at the price of a lane."""
    tokens = sim.billed(lane)
    usage = Usage(tokens["prompt_tokens"], 0, tokens["completion_tokens"])
    return parse_price(PRICES["sim"]).in_lane(lane).of(usage)


async def compared(scheme: Scheme, agents: int) -> dict[str, Any]:
    row: dict[str, Any] = {"service": scheme, "agents": agents, "longest_turns": LONGEST}
    outputs: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for lane in ("standard", "batch"):
            with SimServer(SimConfig(zero_latency=True, batches=BatchConfig(seconds=1.0))) as sim:
                began = time.monotonic()
                results = await run(sim, scheme, lane, agents, Path(folder) / lane)
                outputs[lane] = [result.output for result in results]
                row[lane] = {
                    "seconds": round(time.monotonic() - began, 2),
                    "failed": sum(not result.ok for result in results),
                    "requests": sim.billed(lane)["requests"],
                    "billed_usd": round(billed(sim, lane), 6),
                    "reported_usd": round(sum(result.cost or 0.0 for result in results), 6),
                    "waves": int(sim.metrics()["sim:batch_submissions_total"]),
                }
    row["same_results"] = outputs["standard"] == outputs["batch"]
    row["cost_ratio"] = round(row["batch"]["billed_usd"] / row["standard"]["billed_usd"], 4)
    met = row["same_results"] and row["batch"]["waves"] <= LONGEST + 1 and TARGET[0] <= row["cost_ratio"] <= TARGET[1]
    row["meets_target"] = met
    print(
        f"{scheme:10} {agents} agents: {row['batch']['waves']} waves, cost ratio {row['cost_ratio']:.3f}, "
        f"same results: {row['same_results']}; {row['batch']['seconds']} s, live {row['standard']['seconds']} s",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = [asyncio.run(compared(scheme, given.agents)) for scheme in ("openai", "anthropic")]
    print(report.write("lanes", {"target_cost_ratio": TARGET, "max_waves": LONGEST + 1, "cases": rows}, given.out))


if __name__ == "__main__":
    main()
