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
from ..options.command_options import CommandOptions
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import ReduceArguments
from ..remote_run import RemoteRun
from ..saved_command import CommandSaver, check_same_location
from ..signals import StoppedBySignal, exit_status, print_lines, run_until_signal
from ..worker_manifest import WorkerManifest
from .plan import compare
from .report import report_lines
from .run_reduce import run_reduced

_NO_REDUCE = ReduceArguments()
_NOT_DISTRIBUTED = ClusterOptions()
_NO_TELEMETRY = TelemetryOptions()


def run(
    options: CommandOptions,
    *,
    reducer: ReduceArguments = _NO_REDUCE,
    cluster: ClusterOptions = _NOT_DISTRIBUTED,
    out: Path = Path("results.jsonl"),
    checkpoint: Path | None = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
    dashboard: Dashboard = None,
    telemetry: TelemetryOptions = _NO_TELEMETRY,
) -> int:
    """Runs the task, and returns the exit status. Raises SpecError, BackendError and StoreError.

    Parameters
    ----------
    out
        Results file, written as agents finish: .jsonl (one JSON object per line), .csv or .parquet.
    checkpoint
        Checkpoint directory. By default, OUT.checkpoint.
    plan_changed
        If the task, the model or similar changed since the checkpoint: stop with an error, or rerun all agents.
    fresh
        Discard the progress of an earlier run and start over.
    """
    folder = checkpoint or checkpoint_of(out)
    options.check_apart(out, "--out")
    options.check_apart(folder, "--checkpoint")
    kwargs = {**options.to_kwargs(), "checkpoint_dir": folder, "plan_changed": plan_changed}
    reduce = reducer.settings(out)
    if reduce is not None:
        options.check_apart(reduce.summary, "--summary")
        cluster.check_not_distributed()
    BatchSpec.of(**kwargs, **cluster.to_dict())  # validated before an earlier run is deleted
    remote = _remote_run(kwargs["task"], cluster)
    if fresh:
        if remote is not None:
            asyncio.run(remote.delete())
        delete_checkpoint(folder)
    if plan_changed == "stop":
        check_same_location(folder, is_shared=remote is not None)
        check_kind(folder, is_reduced=reduce is not None)
    named = {} if remote is None else {"run_id": remote.name}
    command = {**options.to_dict(), **reducer.to_dict(), **cluster.to_dict(), **named, "out": out}
    progress = progress_for(sys.stderr, dashboard)
    events: EventSinks = [CommandSaver(progress, folder, command), *telemetry.sinks()]
    if reduce is not None:
        return run_reduced(kwargs, reduce, out, progress, events)
    published = None if remote is None else _PublishedRun(remote, WorkerManifest.of(options, cluster.lease))
    return _run({**kwargs, **cluster.to_dict()}, out, progress, events, published)


@dataclass(frozen=True, slots=True)
class _PublishedRun:
    """A run that workers can join."""

    run: RemoteRun
    manifest: WorkerManifest


def _remote_run(task: Any, cluster: ClusterOptions) -> RemoteRun | None:
    return None if cluster.store is None else RemoteRun(cluster.store, cluster.run_id, task, cluster.lease)


def _run(
    kwargs: dict[str, Any], out: Path, progress: Progress, events: EventSinks, published: _PublishedRun | None
) -> int:
    started, folder = time.monotonic(), kwargs["checkpoint_dir"]
    if published is not None:
        print_lines(published.run.join_hint(published.manifest.flags()))
    ended = run_until_signal(_stream(kwargs, out, events, published))
    seconds = time.monotonic() - started
    stopped = ended if isinstance(ended, StoppedBySignal) else None
    print_lines(summary_lines(progress.state, seconds))
    if stopped is None:
        print_lines(compare(folder, progress.state.run_stats, seconds))
    print_lines([f"Results: {out}", *report_lines(folder)])
    return exit_status(stopped, folder, any_failed=progress.state.failed > 0)


async def _stream(kwargs: dict[str, Any], out: Path, events: EventSinks, published: _PublishedRun | None) -> None:
    publication = nullcontext() if published is None else published.run.publish(published.manifest.to_json())
    stream = BatchAgent.stream(events=events, **kwargs)
    with open_results(out, "--out") as results:
        try:
            async with publication, stream:
                async for result in stream:
                    results.write(result)
        except asyncio.CancelledError:  # by Ctrl-C: results that are already there are written too
            for result in stream.unread():
                results.write(result)
            raise
