"""batch-agent run."""

import shutil
import sys
import time
from pathlib import Path
from typing import Any, Literal

from ..api import BatchAgent
from ..core.interfaces import EventSink
from ..observe.progress import progress_for
from ..observe.summary import summary_lines
from .asked import Asked
from .command import KeepsCommand
from .data import ResultFile
from .ending import Stopped, exit_status, run_to_the_end, say
from .plan import compare
from .reducing import Reducing
from .run_reduced import run_reduced
from .stages import check_kind

_NO_REDUCE = Reducing()


def run(
    asked: Asked,
    *,
    reducing: Reducing = _NO_REDUCE,
    out: Path = Path("results.jsonl"),
    checkpoint: Path | None = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
) -> int:
    """Run one task over a list of inputs, and with --reduce make all results into one answer.

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
    options = {**asked.options(), "checkpoint_dir": folder, "plan_changed": plan_changed}
    reduce = reducing.options(out)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    if plan_changed == "stop":
        check_kind(folder, is_reduced=reduce is not None)
    command = {**asked.said(), **reducing.said(), "out": out}
    if reduce is not None:
        return run_reduced(options, reduce, out, command)
    return _run(options, out, command)


def _run(options: dict[str, Any], out: Path, command: dict[str, Any]) -> int:
    started, folder = time.monotonic(), options["checkpoint_dir"]
    progress = progress_for(sys.stderr)
    with ResultFile(out) as results:
        events = KeepsCommand(progress, folder, command)
        ended = run_to_the_end(_stream(options, results, events))
    seconds = time.monotonic() - started
    stopped = ended if isinstance(ended, Stopped) else None
    say(summary_lines(progress.tally, seconds))
    if stopped is None:
        say(compare(folder, progress.tally, seconds))
    say([f"Results: {out}"])
    return exit_status(stopped, folder, any_failed=progress.tally.failed > 0)


async def _stream(options: dict[str, Any], results: ResultFile, events: EventSink) -> None:
    async with BatchAgent.stream(events=events, **options) as stream:
        async for result in stream:
            results.write(result)
