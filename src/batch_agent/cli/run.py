"""batch-agent run."""

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Literal

from ..api import BatchAgent
from ..core.errors import RunStopped
from ..observe.progress import Progress, progress_for
from ..observe.summary import summary_lines
from .asked import Asked
from .command import KeepsCommand
from .data import ResultFile
from .plan import compare


def run(
    asked: Asked,
    *,
    out: Path = Path("results.jsonl"),
    checkpoint: Path | None = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
) -> int:
    """Run one task over a list of inputs.

    Results are written as they come. Stopped or killed, the same command goes on where it was.

    Parameters
    ----------
    out
        One JSON object per result and line.
    checkpoint
        Where progress is kept; by default beside the results.
    plan_changed
        If the task, the model or the like changed since: stop and say so, or ask everything anew.
    fresh
        Forget an earlier run's progress and start over.
    """
    folder = checkpoint or out.with_name(out.name + ".checkpoint")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    options = {**asked.options(), "checkpoint_dir": folder, "plan_changed": plan_changed}
    started = time.monotonic()
    with ResultFile(out) as results:
        progress = KeepsCommand(progress_for(sys.stderr), folder, {**asked.said(), "out": out})
        try:
            asyncio.run(_stream(options, results, progress))
            stopped = ""
        except KeyboardInterrupt:
            stopped = "Stopped."
        except RunStopped as error:
            stopped = f"Stopped. {error}"
    seconds = time.monotonic() - started
    _say(summary_lines(progress.tally, seconds))
    if not stopped:
        _say(compare(folder, progress.tally, seconds))
    _say([f"Results: {out}"])
    if stopped:
        _say([stopped, f"What is done is kept: run the same command again to go on, or batch-agent resume {folder}"])
        return 130 if stopped == "Stopped." else 2
    if progress.tally.failed:
        _say(["Run the same command again to try the failed ones once more."])
    return 1 if progress.tally.failed else 0


async def _stream(options: dict[str, Any], results: ResultFile, progress: Progress) -> None:
    async with BatchAgent.stream(events=progress, **options) as stream:
        async for result in stream:
            results.write(result)


def _say(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
