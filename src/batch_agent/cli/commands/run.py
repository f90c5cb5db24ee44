"""batch-agent run."""

import asyncio
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from ...api import BatchAgent
from ...core.fast_dataclass import dataclass
from ...core.protocols import EventSinks
from ...core.spec import BatchSpec
from ...data import open_results
from ...observe.live.progress import Progress, progress_for
from ...observe.text.summary import summary_lines
from ..checkpoint import check_kind, checkpoint_of, delete_checkpoint
from ..options.cluster import ClusterOptions
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import ReduceArguments
from ..options.run import CommandOptions
from ..remote_run import RemoteRun
from ..saved_command import CommandSaver, check_same_location
from ..signals import StoppedBySignal, exit_status, print_lines, run_until_signal
from ..worker_manifest import WorkerManifest
from .plan import compare
from .report import report_lines
from .run_reduce import run_reduced

_NO_REDUCE = ReduceArguments()
_ALONE = ClusterOptions()
_UNWATCHED = TelemetryOptions()


def run(
    asked: CommandOptions,
    *,
    reducing: ReduceArguments = _NO_REDUCE,
    sharing: ClusterOptions = _ALONE,
    out: Path = Path("results.jsonl"),
    checkpoint: Path | None = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
    dashboard: Dashboard = None,
    watching: TelemetryOptions = _UNWATCHED,
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
        sharing.check_unsaid()
    BatchSpec.of(**options, **sharing.options())  # or it is refused only after an earlier run was forgotten
    shared = _shared(options["task"], sharing)
    if fresh:
        if shared is not None:
            asyncio.run(shared.forget())
        delete_checkpoint(folder)
    if plan_changed == "stop":
        check_same_location(folder, is_shared=shared is not None)
        check_kind(folder, is_reduced=reduce is not None)
    named = {} if shared is None else {"run_id": shared.name}
    command = {**asked.said(), **reducing.said(), **sharing.said(), **named, "out": out}
    progress = progress_for(sys.stderr, dashboard)
    events: EventSinks = [CommandSaver(progress, folder, command), *watching.sinks()]
    if reduce is not None:
        return run_reduced(options, reduce, out, progress, events)
    offer = None if shared is None else _Offer(shared, WorkerManifest.of(asked, sharing.lease))
    return _run({**options, **sharing.options()}, out, progress, events, offer)


@dataclass(frozen=True, slots=True)
class _Offer:
    """To others, to join the run."""

    run: RemoteRun
    command: WorkerManifest


def _shared(task: Any, sharing: ClusterOptions) -> RemoteRun | None:
    return None if sharing.store is None else RemoteRun(sharing.store, sharing.run_id, task, sharing.lease)


def _run(options: dict[str, Any], out: Path, progress: Progress, events: EventSinks, offer: _Offer | None) -> int:
    started, folder = time.monotonic(), options["checkpoint_dir"]
    if offer is not None:
        print_lines(offer.run.how_to_join(offer.command.flags()))
    ended = run_until_signal(_stream(options, out, events, offer))
    seconds = time.monotonic() - started
    stopped = ended if isinstance(ended, StoppedBySignal) else None
    print_lines(summary_lines(progress.board, seconds))
    if stopped is None:
        print_lines(compare(folder, progress.board.alone, seconds))
    print_lines([f"Results: {out}", *report_lines(folder)])
    return exit_status(stopped, folder, any_failed=progress.board.failed > 0)


async def _stream(options: dict[str, Any], out: Path, events: EventSinks, offer: _Offer | None) -> None:
    offering = nullcontext() if offer is None else offer.run.offering(offer.command.written())
    stream = BatchAgent.stream(events=events, **options)
    with open_results(out, "--out") as results:
        try:
            async with offering, stream:
                async for result in stream:
                    results.write(result)
        except asyncio.CancelledError:  # by Ctrl-C: what came since is written too
            for result in stream.unread():
                results.write(result)
            raise
