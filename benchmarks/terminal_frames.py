"""Terminal frames compared: our own and `rich.live.Live` (ADR 23), at 1,000 agents on a pseudo-terminal of 120 by 40.

    python -m benchmarks.terminal_frames

Both draw the same lines; taken in turns, medians. `print` is one line that a tool prints while the frame is shown.
"""

import json
import os
import pty
import statistics
import subprocess
import sys
import threading
import time

from rich.console import Console

from batch_agent.core.events import AgentStarted, LoadSampled, RunStarted, TurnStarted
from batch_agent.observe.live import terminal
from benchmarks import report, rich_live_progress
from benchmarks.dashboard import life
from benchmarks.peers.call_count import Calls
from benchmarks.rounds import median_of

View = terminal.LiveProgress | rich_live_progress.LiveProgress

WAYS: dict[str, type[View]] = {"own": terminal.LiveProgress, "rich_live": rich_live_progress.LiveProgress}
AGENTS, RUNNING = 1000, 256
ROUNDS, FRAMES, LINES = 21, 24, 50
TIMES_A_SECOND = 8


class Sink:
    """A terminal whose output is read and counted."""

    def __init__(self) -> None:
        master, slave = pty.openpty()
        subprocess.run(["stty", "rows", "40", "cols", "120"], stdin=slave, check=True)
        self.stream = os.fdopen(slave, "w")
        self.bytes = 0
        self._master = master
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while data := os.read(self._master, 65536):
            self.bytes += len(data)


def fill(view: View) -> None:
    view.emit(RunStarted("vllm", "a-model", RUNNING, AGENTS, prices=(1.0, 0.1, 2.0)))
    for index in range(AGENTS - RUNNING):
        for event in life(index):
            view.emit(event)
    for index in range(AGENTS - RUNNING, AGENTS):
        view.emit(AgentStarted(f"{index:024x}", index))
        view.emit(TurnStarted(f"{index:024x}", 1))
    view.emit(LoadSampled("vllm", 250, 256, 40, 900, 1_000_000, 1_600_000, 0.7, 250, 3))


def measured(way: str) -> dict[str, float]:
    """CPU of the thread that draws, and of the one that prints."""
    sink, stderr = Sink(), sys.stderr
    view = WAYS[way](Console(file=sink.stream, force_terminal=True, color_system="256"))
    fill(view)
    sys.stderr = sink.stream
    try:
        with view:
            view._redraw_loop.stop()
            before, cpu = sink.bytes, time.thread_time()
            for _ in range(FRAMES):
                view._redraw_loop.redraw()
            drawn = time.thread_time() - cpu
            with Calls() as calls:
                view._redraw_loop.redraw()
            sent, cpu = sink.bytes - before, time.thread_time()
            for number in range(LINES):
                print("a line that a tool prints, number", number, file=sys.stderr)
            printed = time.thread_time() - cpu
    finally:
        sys.stderr = stderr
    frame_ms = drawn / FRAMES * 1e3
    return {
        "ms_per_frame": frame_ms,
        "calls_per_frame": calls.number,
        "bytes_per_frame": sent / (FRAMES + 1),
        "cpu_ms_per_second": frame_ms * TIMES_A_SECOND,
        "ms_per_print": printed / LINES * 1e3,
    }


def imports() -> dict[str, float]:
    """Milliseconds of CPU on top of what the view imports, in fresh interpreters."""
    script = (
        "import time, rich.console, rich.text; began = time.process_time();"
        "import rich.live; print((time.process_time() - began) * 1e3)"
    )
    taken = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(9)
    ]
    return {"rich_live_adds_ms": round(statistics.median(taken), 2)}


def main() -> None:
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(ROUNDS):
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            rounds[way].append(measured(way))
    ways = {way: median_of(taken) for way, taken in rounds.items()}
    ratios = {name: round(ways["rich_live"][name] / ways["own"][name], 3) for name in ways["own"]}
    numbers = {"agents": AGENTS, "rounds": ROUNDS, "imports": imports(), **ways, "rich_live_to_own": ratios}
    print(json.dumps(numbers, indent=2))
    print(report.write("terminal_frames", numbers))


if __name__ == "__main__":
    main()
