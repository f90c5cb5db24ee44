"""batch-agent run."""

import sys
import time
from pathlib import Path
from typing import Any, Literal

from ..api import BatchAgent
from ..data import open_results
from ..observe.live.progress import Progress, progress_for
from ..observe.summary import summary_lines
from ..observe.watching import Watchers
from .asked import Asked
from .ending import Stopped, exit_status, run_to_the_end, say
from .kept_command import KeepsCommand
from .plan import compare
from .reducing import Reducing
from .report import report_lines
from .run_reduced import run_reduced
from .shown import Dashboard
from .stages import check_kind, checkpoint_of, forget
from .watchers import Watching

_NO_REDUCE = Reducing()
_UNWATCHED = Watching()


def run(
    asked: Asked,
    *,
    reducing: Reducing = _NO_REDUCE,
    out: Path = Path("results.jsonl"),
    checkpoint: Path | None = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
    dashboard: Dashboard = None,
    watching: Watching = _UNWATCHED,
) -> int:
    """Runs it, and returns the exit status. Raises SpecError, BackendError and StoreError.

    Parameters
    ----------
    out
        Where results are written as they come: a .jsonl file (one JSON object per line), .csv or .parquet.
    checkpoint
        Where progress is kept; if not given, beside the results.
    plan_changed
        If the task, the model or the like changed since: stop and say so, or ask everything anew.
    fresh
        Forget an earlier run's progress and start over.
    """
    folder = checkpoint or checkpoint_of(out)
    asked.check_apart(out, "--out")
    asked.check_apart(folder, "--checkpoint")
    options = {**asked.options(), "checkpoint_dir": folder, "plan_changed": plan_changed}
    reduce = reducing.options(out)
    if reduce is not None:
        asked.check_apart(reduce.summary, "--summary")
    if fresh:
        forget(folder)
    if plan_changed == "stop":
        check_kind(folder, is_reduced=reduce is not None)
    command = {**asked.said(), **reducing.said(), "out": out}
    progress = progress_for(sys.stderr, dashboard)
    events: Watchers = [KeepsCommand(progress, folder, command), *watching.sinks()]
    if reduce is not None:
        return run_reduced(options, reduce, out, progress, events)
    return _run(options, out, progress, events)


def _run(options: dict[str, Any], out: Path, progress: Progress, events: Watchers) -> int:
    started, folder = time.monotonic(), options["checkpoint_dir"]
    ended = run_to_the_end(_stream(options, out, events))
    seconds = time.monotonic() - started
    stopped = ended if isinstance(ended, Stopped) else None
    say(summary_lines(progress.board, seconds))
    if stopped is None:
        say(compare(folder, progress.board.alone, seconds))
    say([f"Results: {out}", *report_lines(folder)])
    return exit_status(stopped, folder, any_failed=progress.board.failed > 0)


async def _stream(options: dict[str, Any], out: Path, events: Watchers) -> None:
    with open_results(out, "--out") as results:
        async with BatchAgent.stream(events=events, **options) as stream:
            async for result in stream:
                results.write(result)
