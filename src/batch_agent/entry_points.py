"""What the entry points of `BatchAgent` do. The class is apart, so that a program that imports it loads little."""

import asyncio
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .cluster.coordinator_address import coordinator_of, run_id_of
from .core.errors import SpecError
from .core.protocols.event_sink import EventSink, EventSinks
from .core.results import AgentResult
from .core.run_failure import RunStopped
from .core.run_reports import PrefixReport
from .core.spec import BatchSpec
from .core.task_fields import is_object_url
from .data.inputs import print_notice
from .data.results import Results
from .engine.result_stream import ResultChannel, ResultStream
from .lazy_imports import lazy_modules
from .observe.live.detection import progress_if_interactive
from .observe.sinks import combine_sinks
from .run import runner
from .run.setup import RunSetup

with lazy_modules(globals()):
    from . import ray
    from .evaluation import model_runs, outcome
    from .objects import remote_checkpoint
    from .observe.text import run_outputs
    from .run import fallback, prompt_lint
    from .run import preview as run_preview
    from .scores import judge, scorer
    from .tools import adapters

if TYPE_CHECKING:
    from .observe.live.progress import Progress
    from .observe.text.run_outputs import RunOutputs
    from .run.preview import Preview


async def run(
    spec: BatchSpec | None, *, events: EventSinks = None, progress: bool | None = None, **options: Any
) -> Results:
    if "checkpoint_dir" in options and is_object_url(options["checkpoint_dir"]):
        async with remote_checkpoint.open_checkpoint_copy(options["checkpoint_dir"], print_notice) as folder:
            return await run(spec, events=events, progress=progress, **{**options, "checkpoint_dir": folder})
    resolved = spec_of(spec, options)
    shown = _progress(resolved, events, progress)
    if resolved.evaluation.score:
        outcome.check_judges(resolved)
    results: list[AgentResult] = []
    position = _position_by_model if resolved.evaluation.models is not None else _position
    began = time.monotonic()
    try:
        async with _stream(resolved, events, shown) as stream:
            async for result in stream:
                results.append(result)
    except RunStopped as stopped:
        stopped.results = sorted(results, key=position)
        raise
    except asyncio.CancelledError:
        if shown is not None and shown.state.has_started:
            raise  # it has shown what is kept
        raise asyncio.CancelledError(_stop_line(resolved, len(results) + len(stream.unread()), stream.total)) from None
    found = Results(sorted(results, key=position), stream.scheduling, stream.report)
    if resolved.evaluation.models is None and not resolved.evaluation.score:
        return found
    return await outcome.complete(resolved, found, began) if outcome.has_outcome(resolved) else found


def _position(result: AgentResult) -> tuple[int, int]:
    return result.index, result.sample or 0


def _position_by_model(result: AgentResult) -> tuple[int, str, int]:
    return result.index, result.model or "", result.sample or 0


async def work(spec: BatchSpec | None, options: dict[str, Any], events: EventSinks) -> None:
    resolved = spec_of(spec, options)
    if resolved.evaluation.models is not None and resolved.distribution.store is not None:
        await model_runs.ModelRuns(resolved, combine_sinks(events)).work()
        return
    if resolved.fallback and resolved.distribution.store is not None:
        await fallback.FallbackRuns(resolved, combine_sinks(events)).work()
        return
    coordinator = coordinator_of(resolved)
    if coordinator is None:
        raise SpecError("work needs the store of the run: pass store='redis://...'.")
    await runner.work(RunSetup.validate(resolved, combine_sinks(events)), coordinator)


async def lint(spec: BatchSpec | None, options: dict[str, Any], exact: bool, events: EventSink | None) -> PrefixReport:
    return await prompt_lint.lint_prompts(RunSetup.validate(_of_one_model(spec_of(spec, options)), events), exact=exact)


async def preview(spec: BatchSpec | None, options: Mapping[str, Any], count: int, exact: bool) -> "Preview":
    of_spec = {name: value for name, value in options.items() if name not in ("events", "progress")}
    setup = RunSetup.validate(_of_one_model(spec_of(spec, of_spec)), None)
    return await run_preview.preview_requests(setup, count, exact=exact)


def _of_one_model(spec: BatchSpec) -> BatchSpec:
    """The run of the first model, whose prompts are those of all."""
    if spec.evaluation.models is None:
        return spec
    return next(iter(model_runs.specs_by_model(spec).values()))


def open_stream(
    spec: BatchSpec | None, *, events: EventSinks = None, progress: bool | None = None, **options: Any
) -> ResultStream:
    if "checkpoint_dir" in options and is_object_url(options["checkpoint_dir"]):
        return ResultStream(partial(_drive_with_copy, spec, {**options, "events": events, "progress": progress}))
    resolved = spec_of(spec, options)
    if resolved.evaluation.score:
        judge.check_no_judge(scorer.scorers_of(resolved.evaluation.score))
    return _stream(resolved, events, _progress(resolved, events, progress))


async def _drive_with_copy(spec: BatchSpec | None, options: dict[str, Any], channel: ResultChannel) -> None:
    """Drives a stream whose checkpoint is in an object store."""
    async with remote_checkpoint.open_checkpoint_copy(options["checkpoint_dir"], print_notice) as folder:
        await open_stream(spec, **{**options, "checkpoint_dir": folder}).drive(channel)


def _stream(spec: BatchSpec, events: EventSinks, shown: "Progress | None") -> ResultStream:
    is_watched = events is not None or shown is not None or spec.checkpoint_dir is not None
    sink = combine_sinks(events, spec.checkpoint_dir, shown) if is_watched else None
    if spec.evaluation.models is not None:
        return ResultStream(model_runs.ModelRuns(spec, sink).drive)
    if spec.fallback:
        return ResultStream(fallback.FallbackRuns(spec, sink).drive)
    setup = RunSetup.validate(spec, sink)
    if spec.distribution.cluster is not None:
        return ResultStream(ray.RayRun(setup).drive)
    return ResultStream(partial(runner.run, setup, coordinator=coordinator_of(spec)))


def _progress(spec: BatchSpec, events: EventSinks, progress: bool | None) -> "Progress | None":
    """The progress to show. Next to sinks of the caller, it is shown only if it is requested."""
    is_shown = progress if events is None else bool(progress)
    return progress_if_interactive(sys.stderr, is_shown, partial(_outputs, spec))


def _outputs(spec: BatchSpec) -> "RunOutputs":
    run_id = "" if spec.distribution.store is None else run_id_of(spec)
    return run_outputs.RunOutputs(spec.checkpoint_dir, spec.distribution.store, run_id, spec.out)


def _stop_line(spec: BatchSpec, done: int, total: int | None) -> str:
    return _outputs(spec).stop_line(run_outputs.count_done(done, total))


def spec_of(spec: BatchSpec | None, options: dict[str, Any]) -> BatchSpec:
    if spec is not None and options:
        raise SpecError(f"Pass either a BatchSpec or options, not both: {', '.join(options)}.")
    made = spec or BatchSpec.of(**options)
    if not made.tools:
        return made
    return adapters.locate_file_tools(made, made.inputs, made.rows.encoding)
