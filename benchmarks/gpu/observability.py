"""The same agents watched by nobody, with a log and a report, and with the dashboard as well."""

import io
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from batch_agent.observe.live.terminal import LiveProgress

from .runs import run_ours
from .scenario import between
from .workloads import Sizes, Stage, scene_of

SIZES = Sizes(agents=1_000, turns=3, shared=1_000, own=800, output=60, result=150)
_KEYS = 400
_ROUNDS = 2


async def watching(stage: Stage) -> None:
    """Log and report of the last round are put beside the numbers."""
    scale = stage.scale
    sizes = Sizes(
        scale.of_agents(SIZES.agents),
        SIZES.turns,
        *(scale.of_tokens(each) for each in (SIZES.shared, SIZES.own, SIZES.output, SIZES.result)),
    )
    stage.notes.put({**await stage.server.about(), "sizes": asdict(sizes), "keys": _KEYS}, "watching", "setup")
    folder = Path(tempfile.mkdtemp())
    for round_ in range(_ROUNDS):
        for way in ("nobody", "log", "log_and_dashboard"):
            kept = folder / f"{way}_{round_}"
            numbers = await _run(stage, sizes, way, kept)
            stage.notes.put(numbers, "watching", way, f"round_{round_}")
        if not numbers["was_cut_off"]:
            stage.notes.keep(kept / "events.jsonl", kept / "report.html")


async def _run(stage: Stage, sizes: Sizes, way: str, folder: Path) -> dict[str, Any]:
    scene = scene_of(
        stage.words,
        sizes,
        f"watching {way}",
        key=lambda agent, turn: f"key {(agent * sizes.turns + turn) % _KEYS}",
        seconds=between(0.5 * stage.scale.seconds, 2.0 * stage.scale.seconds),
        shares_tools=True,
    )
    options: dict[str, Any] = {} if way == "nobody" else {"checkpoint_dir": folder}
    if way == "log_and_dashboard":
        console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
        options["events"] = LiveProgress(console)
    cpu = time.process_time()
    numbers = await run_ours(stage.server, scene, stage.limit, **options)
    return {**numbers, "client_cpu_s": round(time.process_time() - cpu, 3)}
