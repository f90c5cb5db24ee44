"""batch-agent run. With --reduce, the run is a flow of two stages that also writes the combined answer."""

import asyncio
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic_core import to_jsonable_python

from ...api import BatchAgent
from ...atomic_file import atomic_write
from ...cluster.coordinator_address import run_id_of
from ...core.errors import ErrorKind, SpecError
from ...core.fast_dataclass import dataclass
from ...core.options.fallback_entry import stage_names
from ...core.protocols.event_sink import EventSinks
from ...core.results import AgentResult
from ...core.safe_text import safe_text
from ...core.spec import BatchSpec
from ...data import ResultWriter, open_results
from ...evaluation.outcome import check_judges, compare_models, complete, has_outcome
from ...flows.result import FlowResult
from ...flows.summary import flow_summary_lines
from ...observe.live.progress import Progress, progress_for
from ...observe.live.state import LiveState
from ...observe.score_file import metric_lines
from ...observe.text.flow_summary import flow_tool_lines, partial_flow_summary_lines, usage_parts
from ...observe.text.run_outputs import RunOutputs
from ...observe.text.summary import steered_lines, summary_lines
from ...observe.text.text_format import plural
from ...run.checkpoint_table import read_results
from ...scores.comparison import comparison_lines
from ...scores.judge import is_judge
from ..checkpoint import MAP, REDUCE, check_kind, checkpoint_of, delete_checkpoint
from ..object_files import Location, OptionalLocation
from ..options.cluster import ClusterOptions
from ..options.command_options import CommandOptions
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import ReduceArguments, ReduceSettings, reduced_flow
from ..run_address import OpenRun, open_folder
from ..saved_command import CommandSaver, check_same_location, command_json
from ..shared_run import SharedRun
from ..signals import StoppedBySignal, exit_status, print_lines, run_until_signal
from ..worker_manifest import WorkerManifest
from .plan import compare


def run_reduced(
    options: dict[str, Any],
    reduce: ReduceSettings,
    out: Path | str,
    progress: Progress,
    events: EventSinks,
    published: "_PublishedRun | None",
    opened: OpenRun,
) -> int:
    """Runs both stages and returns the exit status. Raises SpecError, BackendError and StoreError.

    `options`: options of the map stage. `events`: all event sinks, including `progress`. `published`: the run for
    workers to join."""
    started, folder = time.monotonic(), opened.folder
    if published is not None:
        print_lines(published.run.join_hint(published.manifest.flags()))
    ended = run_until_signal(_flow(options, reduce, out, events, published, opened))
    seconds, state = time.monotonic() - started, progress.state
    if isinstance(ended, StoppedBySignal):
        print_lines(
            [*partial_flow_summary_lines(state, seconds), *_resumed(state), f"Results: {out}", *opened.report_lines()]
        )
        return exit_status(ended, _outputs(opened, published), state, any_failed=False)
    outcome, problem = ended
    print_lines(
        [*flow_summary_lines(outcome, seconds), *flow_tool_lines(state), *_resumed(state), *steered_lines(state)]
    )
    print_lines(compare(folder, state.stages[MAP].stats, outcome.stages[MAP].seconds))
    print_lines([f"Results: {out}", *opened.report_lines()])
    status = _finish(outcome, reduce, opened, state)
    if problem is not None:
        raise problem
    return status


class _ResultCallback:
    """Callback that writes each result. The flow continues after a write error; the first one is kept for the end."""

    def __init__(self, file: ResultWriter) -> None:
        self._file = file
        self.error: SpecError | None = None

    def __call__(self, result: AgentResult) -> None:
        if self.error is None:
            try:
                self._file.write(result)
            except SpecError as error:
                self.error = error


async def _flow(
    options: dict[str, Any],
    reduce: ReduceSettings,
    out: Path | str,
    events: EventSinks,
    published: "_PublishedRun | None",
    opened: OpenRun,
) -> tuple[FlowResult, SpecError | None]:
    """The result of the flow, and the error of writing results, if any. Unlike in `BatchAgent.run_with_reduce`, a
    failed reduce counts as a failed agent."""
    with open_results(out, "--out") as file:
        callback = _ResultCallback(file)
        async with opened.guard, _publication(published):
            return await reduced_flow(options, reduce.options, callback).run(events=events), callback.error


def _finish(outcome: FlowResult, reduce: ReduceSettings, opened: OpenRun, state: LiveState) -> int:
    """Writes the summary and returns the exit status. Only the answer goes to standard output, after all messages."""
    [item] = outcome.items
    any_failed = any(map(_has_failed, outcome.stages[MAP].results))
    if item.error is not None:
        print_lines([f"The reduce failed: {item.error}"])
        return exit_status(None, _outputs(opened), state, any_failed=True)
    text = item[REDUCE] if reduce.is_text else _pretty(item[REDUCE])
    with atomic_write(reduce.summary) as file:
        file.write(f"{text}\n".encode())
    print_lines([f"Summary: {reduce.summary}"])
    status = exit_status(None, _outputs(opened), state, any_failed=any_failed)
    print(safe_text(text) if sys.stdout.isatty() else text)
    return status


def _pretty(answer: Any) -> str:
    return orjson.dumps(to_jsonable_python(answer, fallback=str), option=orjson.OPT_INDENT_2).decode()


def _resumed(state: LiveState) -> list[str]:
    return [f"{state.resumed:,} answers restored from the checkpoint."] if state.resumed else []


_NO_REDUCE = ReduceArguments()
_NOT_DISTRIBUTED = ClusterOptions()
_NO_TELEMETRY = TelemetryOptions()


def run(
    options: CommandOptions,
    *,
    reducer: ReduceArguments = _NO_REDUCE,
    cluster: ClusterOptions = _NOT_DISTRIBUTED,
    out: Location = Path("results.jsonl"),
    checkpoint: OptionalLocation = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
    dashboard: Dashboard = None,
    telemetry: TelemetryOptions = _NO_TELEMETRY,
) -> int:
    """Runs the task, and returns the exit status. Raises SpecError, BackendError and StoreError.

    Parameters
    ----------
    out
        Results file, written as agents finish: .jsonl (one JSON object per line), .csv or .parquet; or a folder in an
        object store, such as s3://bucket/out/.
    checkpoint
        Checkpoint directory, also in an object store. By default, OUT.checkpoint.
    plan_changed
        If the task, the model or similar changed since the checkpoint: stop with an error, or rerun all agents.
    fresh
        Discard the progress of an earlier run and the files that its tools made, and start over.
    """
    location = checkpoint or checkpoint_of(out)
    options.check_output_path(out, "--out")
    options.check_output_path(location, "--checkpoint")
    kwargs = {**options.to_kwargs(), "plan_changed": plan_changed}
    reduce = reducer.settings(out)
    if reduce is not None:
        options.check_output_path(reduce.summary, "--summary")
    check_judges(BatchSpec.of(**kwargs, checkpoint_dir=Path("-"), **cluster.to_dict()))  # before a run is deleted
    fallbacks = stage_names(len(kwargs["fallback"])) if kwargs["fallback"] else ()
    remote = _remote_run(kwargs["task"], cluster, fallbacks if reduce is None else (MAP, REDUCE))
    if remote is not None and any(map(is_judge, kwargs["score"])):
        raise SpecError(
            f"A judge scores answers after the last one, which --store does not wait for. Run without it, then: "
            f"batch-agent score {remote.url} --run {remote.name} --score judge:..."
        )
    if remote is not None and options.mcp:
        raise SpecError(
            "--mcp cannot be used with --store: workers would have to start the same servers. In Python, pass "
            "tools=[MCP(...)] to BatchAgent.run and to BatchAgent.work."
        )
    if remote is not None and options.models is not None:
        raise SpecError(
            "--models cannot be used with --store: workers would have to know the backends of all models. In Python, "
            "pass models= to BatchAgent.run and to BatchAgent.work; or use --cluster ray."
        )
    with open_folder(location) as opened:
        folder = opened.folder
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
        published = (
            None
            if remote is None
            else _PublishedRun(
                remote,
                WorkerManifest.of(options, cluster.lease, reducer),
                command_json({**command, "checkpoint": location}),
            )
        )
        kwargs |= {"checkpoint_dir": folder, **cluster.to_dict()}
        if reduce is not None:
            return run_reduced({**kwargs, **named}, reduce, out, progress, events, published, opened)
        return _run(kwargs, out, progress, events, published, opened)


@dataclass(frozen=True, slots=True)
class _PublishedRun:
    """A run that workers can join."""

    run: SharedRun
    manifest: WorkerManifest
    command: bytes
    """The complete command, for `batch-agent resume`."""


def _remote_run(task: Any, cluster: ClusterOptions, stages: Sequence[str]) -> SharedRun | None:
    if cluster.store is None:
        return None
    name = run_id_of(BatchSpec.of(task=task, inputs=[], store=cluster.store, run_id=cluster.run_id))
    return SharedRun(cluster.store, name, lease=cluster.lease, stages=stages)


def _publication(published: _PublishedRun | None) -> AbstractAsyncContextManager[None]:
    return (
        nullcontext() if published is None else published.run.publish(published.manifest.to_json(), published.command)
    )


def _run(
    kwargs: dict[str, Any],
    out: Path | str,
    progress: Progress,
    events: EventSinks,
    published: _PublishedRun | None,
    opened: OpenRun,
) -> int:
    started, folder = time.monotonic(), opened.folder
    if published is not None:
        print_lines(published.run.join_hint(published.manifest.flags()))
    failed: list[int] = []
    ended = run_until_signal(_stream(kwargs, out, events, published, failed, opened))
    seconds = time.monotonic() - started
    has_models = kwargs["models"] is not None or bool(kwargs["fallback"])
    stopped = ended if isinstance(ended, StoppedBySignal) else None
    if has_models:
        print_lines(partial_flow_summary_lines(progress.state, seconds))
    else:
        print_lines(summary_lines(progress.state, seconds, is_stopped=stopped is not None))
    if stopped is None and not has_models:
        print_lines(compare(folder, progress.state.run_stats, seconds))
    if kwargs["score"]:
        print_lines(metric_lines(folder))
    if not isinstance(ended, StoppedBySignal):
        print_lines(ended)
    print_lines([f"Results: {out}", *opened.report_lines()])
    return exit_status(stopped, _outputs(opened, published), progress.state, any_failed=bool(failed))


def _outputs(opened: OpenRun, published: _PublishedRun | None = None) -> RunOutputs:
    resume = f"run the same command again, or batch-agent resume {shlex.quote(opened.title)}"
    store, name = (None, "") if published is None else (published.run.url, published.run.name)
    return RunOutputs(opened.title, store, name, resume=resume)


async def _stream(
    kwargs: dict[str, Any],
    out: Path | str,
    events: EventSinks,
    published: _PublishedRun | None,
    failed: list[int],
    opened: OpenRun,
) -> list[str]:
    """Runs the agents, then the judges. Returns lines to print after the last answer. `failed`: receives the indices of
    failed results, except for those that a fallback has answered or the user has cancelled."""
    began = time.monotonic()
    answered = {**kwargs, "score": [each for each in kwargs["score"] if not is_judge(each)]}
    stream = BatchAgent.stream(events=events, **answered)
    with open_results(out, "--out") as results:
        try:
            async with opened.guard, _publication(published), stream:
                async for result in stream:
                    results.write(result)
                    if _has_failed(result):
                        failed.append(result.index)
        except asyncio.CancelledError:  # by Ctrl-C: results that have already arrived are written too
            for result in stream.unread():
                results.write(result)
            raise
    spec = BatchSpec.of(**kwargs, out=out)
    return await _complete(spec, began) if has_outcome(spec) else []


def _has_failed(result: AgentResult) -> bool:
    """Whether an agent failed. An agent that the user has cancelled did not."""
    return result.error is not None and result.error.kind is not ErrorKind.CANCELLED


async def _complete(spec: BatchSpec, began: float) -> list[str]:
    assert spec.checkpoint_dir is not None
    found = await asyncio.to_thread(read_results, spec.checkpoint_dir, spec.output_schema, spec.retry.max_retries)
    results = await complete(spec, found, began)
    lines = [
        f"Judge {name}: {plural(len(verdicts), 'verdict')}; {'; '.join(usage_parts(verdicts.usage, verdicts.cost))}."
        for name, verdicts in results.judges.items()
    ]
    if spec.evaluation.models is not None:
        with suppress(SpecError):  # the answers of a model are missing
            lines += [line for each in compare_models(results) for line in comparison_lines(each, max_changed=0)]
    return lines
