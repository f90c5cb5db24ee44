"""What it costs to look on: a board and its dashboard on their own, and as a share of a real run's CPU.

    python -m benchmarks.dashboard

On their own: the events of 10,000 agents of three turns, and frames of three sizes. In a run: 2,000 agents of two turns
with a tool, on a server without latency, where all of the wall is the client's: the hardest case. Each measurement is a
process of its own, taken in turns; ratios are of medians, and all rounds are kept.
"""

import asyncio
import json
import os
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from batch_agent import BatchAgent, Tool
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    RunStarted,
    Sampled,
    TurnEnded,
    TurnStarted,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentResult, CallRecord
from batch_agent.observe.live.board import Board
from batch_agent.observe.live.dashboard import render
from batch_agent.observe.live.terminal import LiveProgress
from batch_agent.observe.recording import Recording
from batch_agent.observe.watching import Watchers
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report

AGENTS, TURNS = 10_000, 3
IN_A_RUN = 2_000
ROUNDS = 5
FRAMES = 200
SIZES = ((40, 10), (120, 40), (200, 60))
WAYS = ("nothing", "board", "dashboard", "log", "checkpoint")


@Tool.define(effect="read")
async def look(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


def life(index: int) -> Iterator[Event]:
    """An agent's, as it looks from outside."""
    key, calls = f"{index:024x}", (CallRecord("look", "", True, 0.1, "shared"), CallRecord("read", "", True, 0.2))
    yield AgentStarted(key, index)
    for turn in range(1, TURNS + 1):
        yield TurnStarted(key, turn)
        yield TurnEnded(key, turn, Usage(1000, 800, 60), "stop", 0.1, 1.0, None, 1)
        if turn < TURNS:
            yield CallsStarted(key, turn, ("look", "read"))
            yield CallsEnded(key, turn, calls, 0.2)
    result = AgentResult(index, key, output="An answer of some length. " * 8, usage=Usage(3000, 2400, 180), turns=TURNS)
    yield AgentFinished(result, resumed=False)


def on_their_own() -> dict[str, Any]:
    events = [event for index in range(AGENTS) for event in life(index)]
    board = Board()
    board.emit(RunStarted("vllm", "a-model", 256, 2 * AGENTS, prices=(1.0, 0.1, 2.0)))
    cpu = time.process_time()
    for event in events:
        board.emit(event)
    folding = time.process_time() - cpu
    board.emit(Sampled("vllm", 250, 256, 40, 900, 1_000_000, 1_600_000, 0.7, 250, 3))
    board.tick(10.0)
    console = Console(file=open(os.devnull, "w"), force_terminal=True, color_system="256")  # noqa: SIM115
    frames = {f"{width}x{height}": _frame_ms(board, console, width, height) for width, height in SIZES}
    return {
        "events": len(events),
        "us_per_event": round(folding / len(events) * 1e6, 3),
        "us_per_agent": round(folding / AGENTS * 1e6, 1),
        "ms_per_frame": frames,
    }


def _frame_ms(board: Board, console: Console, width: int, height: int) -> dict[str, float]:
    live = LiveProgress(console)
    cpu = time.process_time()
    for _ in range(FRAMES):
        lines = render(board, 60.0, width, height)
    rendered = time.process_time()
    for _ in range(FRAMES):
        live._show(lines)
    shown = time.process_time()
    return {
        "rendered": round((rendered - cpu) / FRAMES * 1e3, 3),
        "with_colors": round((shown - rendered) / FRAMES * 1e3, 3),
    }


async def run(url: str, agents: int, events: Watchers, folder: Path | None) -> int:
    results = await BatchAgent.run(
        task="Look up item {i}.",
        inputs=[{"i": index} for index in range(agents)],
        tools=[look],
        backend=url,
        model="sim",
        max_inflight=64,
        checkpoint_dir=folder,
        events=events,
    )
    return sum(result.ok and result.turns == 2 for result in results)


@contextmanager
def terminal() -> Iterator[Console]:
    """A pseudo-terminal of 120 by 40 whose output another process reads."""
    master, slave = pty.openpty()
    subprocess.run(["stty", "rows", "40", "cols", "120"], stdin=slave, check=True)
    with subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        os.close(master)
        with os.fdopen(slave, "w") as stream:
            yield Console(file=stream, force_terminal=True, color_system="256")
        reader.kill()


@contextmanager
def watching(way: str, scratch: Path) -> Iterator[Watchers]:
    match way:
        case "board":
            yield Board()
        case "dashboard":
            with terminal() as console:
                yield LiveProgress(console)
        case "log":
            yield Recording(scratch / "log")
        case _:
            yield None


def measure(way: str, url: str) -> dict[str, float]:
    with TemporaryDirectory() as name:
        scratch = Path(name)
        asyncio.run(run(url, 200, None, scratch / "warm-up" if way == "checkpoint" else None))
        with watching(way, scratch) as events:
            cpu, wall = time.process_time(), time.perf_counter()
            good = asyncio.run(run(url, IN_A_RUN, events, scratch / "run" if way == "checkpoint" else None))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if good != IN_A_RUN:
        raise SystemExit(f"{IN_A_RUN - good} of {IN_A_RUN} agents did not take two turns")
    return {"cpu_us_per_agent": cpu / IN_A_RUN * 1e6, "wall_s": wall}


def in_own_process(way: str, url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.dashboard", way, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def in_a_run() -> dict[str, Any]:
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with SimServer(SimConfig(zero_latency=True, prefix_caching=False), Script(answer_tokens=24)) as sim:
        for _ in range(ROUNDS):
            for way, taken in rounds.items():
                taken.append(in_own_process(way, sim.url))
    medians = {
        way: {name: round(statistics.median(each[name] for each in taken), 3) for name in taken[0]}
        for way, taken in rounds.items()
    }
    against_nothing = {
        way: {name: round(medians[way][name] / medians["nothing"][name], 3) for name in medians["nothing"]}
        for way in WAYS[1:]
    }
    return {"agents": IN_A_RUN, "medians": medians, "against_nothing": against_nothing, "all_rounds": rounds}


def main() -> None:
    numbers = {"agents": AGENTS, "turns": TURNS, "on_their_own": on_their_own(), "in_a_run": in_a_run()}
    shown = {**numbers, "in_a_run": {k: v for k, v in numbers["in_a_run"].items() if k != "all_rounds"}}  # type: ignore[attr-defined]
    print(json.dumps(shown, indent=2))
    print(report.write("dashboard", numbers))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        main()
