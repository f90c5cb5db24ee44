"""What the dashboard costs on its own: the events of 10,000 agents of three turns, and frames of three sizes.

    python -m benchmarks.dashboard

What it costs a run is in benchmarks/observability.py.
"""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    LoadSampled,
    RunStarted,
    TurnEnded,
    TurnStarted,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentResult, CallRecord
from batch_agent.observe.live.dashboard import render
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.live.terminal import LiveProgress
from benchmarks import report

AGENTS, TURNS = 10_000, 3
FRAMES = 200
SIZES = ((40, 10), (120, 40), (200, 60))


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
    state = LiveState()
    state.emit(RunStarted("vllm", "a-model", 256, 2 * AGENTS, prices=(1.0, 0.1, 2.0)))
    cpu = time.process_time()
    for event in events:
        state.emit(event)
    folding = time.process_time() - cpu
    state.emit(LoadSampled("vllm", 250, 256, 40, 900, 1_000_000, 1_600_000, 0.7, 250, 3))
    state.tick(10.0)
    console = Console(file=open(os.devnull, "w"), force_terminal=True, color_system="256")  # noqa: SIM115
    frames = {f"{width}x{height}": _frame_ms(state, console, width, height) for width, height in SIZES}
    return {
        "events": len(events),
        "us_per_event": round(folding / len(events) * 1e6, 3),
        "us_per_agent": round(folding / AGENTS * 1e6, 1),
        "ms_per_frame": frames,
    }


def _frame_ms(state: LiveState, console: Console, width: int, height: int) -> dict[str, float]:
    live = LiveProgress(console)
    cpu = time.process_time()
    for _ in range(FRAMES):
        lines = render(state, 60.0, width, height)
    rendered = time.process_time()
    for _ in range(FRAMES):
        live._show(lines)
    shown = time.process_time()
    return {
        "rendered": round((rendered - cpu) / FRAMES * 1e3, 3),
        "with_colors": round((shown - rendered) / FRAMES * 1e3, 3),
    }


def main() -> None:
    numbers = {"agents": AGENTS, "turns": TURNS, **on_their_own()}
    print(json.dumps(numbers, indent=2))
    print(report.write("dashboard", numbers))


if __name__ == "__main__":
    main()
