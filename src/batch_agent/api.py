"""The facade: what people call. What only some of them need is imported when they call it."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from .cluster.coordinator_address import coordinator_of
from .core.errors import SpecError
from .core.options.run_options import (
    MapReduceOptions,
    ReduceOptions,
    ReplayOptions,
    RunOptions,
    SpecOptions,
    StageOptions,
    WorkOptions,
)
from .core.options.signature import lists_options
from .core.protocols import EventSink, EventSinks
from .core.results import AgentResult
from .core.run_failure import RunStopped
from .core.run_reports import PrefixReport
from .core.spec import BatchSpec
from .data.results import Results
from .engine.result_stream import ResultStream
from .engine.sync import run_blocking
from .observe.live.detection import progress_if_interactive
from .observe.sinks import combine_sinks
from .run import runner
from .run.resources import lint_prompts, open_preview
from .run.setup import RunSetup

if TYPE_CHECKING:
    from .forecasting.forecast import Forecast

T = TypeVar("T")
"""Type of an answer."""
S = TypeVar("S")
"""Type of a summary."""


class BatchAgent:
    """Runs one task over a list of inputs, each by an agent of its own."""

    @overload
    @classmethod
    async def run(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> Results[Any]: ...

    @overload
    @classmethod
    async def run(cls, /, *, output_schema: type[T], **options: Unpack[RunOptions]) -> Results[T]: ...

    @overload
    @classmethod
    async def run(cls, /, *, output_schema: None = None, **options: Unpack[RunOptions]) -> Results[str]: ...

    @overload
    @classmethod
    async def run(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> Results[Any]: ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    async def run(cls, spec: BatchSpec | None = None, /, **options: Any) -> Results:
        """Runs an agent for each input and returns one result per input, in input order.

        Give either a `BatchSpec` or these keyword arguments, which docs/options.md describes. The answers,
        `result.output`, are instances of `output_schema`; without one they are text.

        - Task: task, inputs, output_schema, tools, model, backend, runtime.
        - Files: checkpoint_dir, plan_changed, out, on_result.
        - Sampling: temperature, top_p, seed, max_tokens, stop, extra.
        - Limits: max_inflight, max_agents, max_turns, priority, backpressure_ceiling, calibrate_backend.
        - Timeouts: timeout_per_agent, timeout_per_turn, timeout_per_tool.
        - Retries: max_retries, backoff, backoff_max, retry_failed.
        - Budget: max_total_tokens, max_usd, deadline, prices.
        - Prompt: system_prompt, tool_mode, strip_preamble, cache_salt, warm_prefix, hoist, reorder, strict_prefix,
          kvflow.
        - Context: max_tool_tokens, context_tokens, oversized, compact_at, compact_with, compact_model, streaming,
          streaming_tool_dispatch.
        - Tool cache: tool_cache_mb, tool_cache_dir, predictive_prewarm.
        - Cluster: store, run_id, lease, cluster, workers.
        - Progress: events, progress.

        Failures are results. `run` raises only for a run that cannot start (SpecError, BackendError, before anything
        is sent), for a backend that went away in mid-run, inputs that break off or an `out` that is full (RunStopped,
        which holds the results so far) and for a checkpoint that cannot be written (StoreError)."""
        return await _run(spec, options)

    @overload
    @classmethod
    async def run_with_reduce(
        cls, *, output_schema: type[T], reduce_schema: type[S], **options: Unpack[ReduceOptions]
    ) -> tuple[Results[T], S | None]: ...

    @overload
    @classmethod
    async def run_with_reduce(
        cls, *, output_schema: type[T], reduce_schema: None = None, **options: Unpack[ReduceOptions]
    ) -> tuple[Results[T], str | None]: ...

    @overload
    @classmethod
    async def run_with_reduce(
        cls, *, output_schema: None = None, reduce_schema: type[S], **options: Unpack[ReduceOptions]
    ) -> tuple[Results[str], S | None]: ...

    @overload
    @classmethod
    async def run_with_reduce(
        cls, *, output_schema: None = None, reduce_schema: None = None, **options: Unpack[ReduceOptions]
    ) -> tuple[Results[str], str | None]: ...

    @overload
    @classmethod
    async def run_with_reduce(
        cls, *, output_schema: Any = None, reduce_schema: Any = None, **options: Unpack[ReduceOptions]
    ) -> tuple[Results[Any], Any]: ...

    @classmethod
    @lists_options(SpecOptions, ReduceOptions)
    async def run_with_reduce(cls, *, reduce_schema: Any = None, **options: Any) -> tuple[Results, Any]:
        """`run`, and then one more agent that makes all results into one answer: `(results, summary)`.

        `reduce` says what it shall do ({n}: the number of results). It is given every result, of failures the error.
        Results that do not fit one prompt are merged in parts, each as soon as it is there. `reducer_model` and
        `reduce_options` (a dict) are for that agent alone; it has no tools unless they are given there. The summary is
        an instance of `reduce_schema`, or text; None where there are no results. Other options are those of `run`.
        Raises as `run` does, and RunStopped (with the results) if the reduce fails. What each stage took is in
        `results.stages`."""
        from .flows import run_with_reduce

        return await run_with_reduce(reduce_schema=reduce_schema, **options)

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls, *, output_schema: type[T], reduce_schema: type[S], **options: Unpack[MapReduceOptions]
    ) -> tuple[Results[T], S | None]: ...

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls, *, output_schema: type[T], reduce_schema: None = None, **options: Unpack[MapReduceOptions]
    ) -> tuple[Results[T], str | None]: ...

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls, *, output_schema: None = None, reduce_schema: type[S], **options: Unpack[MapReduceOptions]
    ) -> tuple[Results[str], S | None]: ...

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls, *, output_schema: None = None, reduce_schema: None = None, **options: Unpack[MapReduceOptions]
    ) -> tuple[Results[str], str | None]: ...

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls, *, output_schema: Any = None, reduce_schema: Any = None, **options: Unpack[MapReduceOptions]
    ) -> tuple[Results[Any], Any]: ...

    @classmethod
    @lists_options(StageOptions, MapReduceOptions)
    async def run_with_map_reduce(cls, *, reduce_schema: Any = None, **options: Any) -> tuple[Results, Any]:
        """A plan, an agent for each of its items, and one answer of all of theirs: `(results, summary)`.

        `plan_output_schema`: a list, or a model with a list `items`, of texts or of models. `plan_inputs`: the fields
        of `plan_prompt`, or a list of such, each planned on its own. In `task` {item} is an item of the plan (or
        {item.title} where it is a model) and {index} its number. `planner_model`, `worker_model`, `reducer_model`, and
        the dicts `plan_options` and `reduce_options`, are for one stage; tools, output_schema and on_result are the
        workers'.
        Otherwise as `run_with_reduce`; with a checkpoint_dir a plan that was made is not made again."""
        from .flows import run_with_map_reduce

        return await run_with_map_reduce(reduce_schema=reduce_schema, **options)

    @classmethod
    @lists_options(ReplayOptions, default="...")
    async def replay(
        cls, run_dir: str | Path, agent: str | int | None = None, **options: Unpack[ReplayOptions]
    ) -> list[AgentResult]:
        """Runs the agents of a checkpoint again from what was recorded, without a server and without calling tools:
        see `batch_agent.run.replay.replay`."""
        from .run.replay import replay

        return await replay(run_dir, agent, **options)

    @overload
    @classmethod
    def run_sync(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> Results[Any]: ...

    @overload
    @classmethod
    def run_sync(cls, /, *, output_schema: type[T], **options: Unpack[RunOptions]) -> Results[T]: ...

    @overload
    @classmethod
    def run_sync(cls, /, *, output_schema: None = None, **options: Unpack[RunOptions]) -> Results[str]: ...

    @overload
    @classmethod
    def run_sync(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> Results[Any]: ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    def run_sync(cls, spec: BatchSpec | None = None, /, **options: Any) -> Results:
        """`run` for scripts, with the same options. In a running event loop (a notebook) it works from a thread of its
        own."""
        return run_blocking(lambda: _run(spec, options))

    @overload
    @classmethod
    def stream(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> ResultStream[Any]: ...

    @overload
    @classmethod
    def stream(cls, /, *, output_schema: type[T], **options: Unpack[RunOptions]) -> ResultStream[T]: ...

    @overload
    @classmethod
    def stream(cls, /, *, output_schema: None = None, **options: Unpack[RunOptions]) -> ResultStream[str]: ...

    @overload
    @classmethod
    def stream(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> ResultStream[Any]: ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    def stream(cls, spec: BatchSpec | None = None, /, **options: Any) -> ResultStream:
        """Results as the agents finish: `async for result in BatchAgent.stream(...)`. Leaving the loop early cancels
        the rest. The options are those of `run`. `events`, a sink or several, see everything that happens; without,
        `progress` (None: in a terminal or a notebook) is shown. A run with a checkpoint_dir leaves a report.html
        there."""
        return _stream(spec, **options)

    @overload
    @classmethod
    async def work(cls, spec: BatchSpec, /, *, events: EventSinks = None) -> None: ...

    @overload
    @classmethod
    async def work(cls, /, *, events: EventSinks = None, **options: Unpack[WorkOptions]) -> None: ...

    @classmethod
    @lists_options(WorkOptions)
    async def work(cls, spec: BatchSpec | None = None, /, *, events: EventSinks = None, **options: Any) -> None:
        """Helps with a run that another process has asked for with the same options and `store`, until nobody has
        anything left to do. Inputs are not needed. Raises as `run` does."""
        asked = _spec(spec, options if spec is not None else {"inputs": [], **options})
        coordinator = coordinator_of(asked)
        if coordinator is None:
            raise SpecError("work needs store='redis://...', where the run is.")
        await runner.work(RunSetup.validate(asked, combine_sinks(events)), coordinator)

    @overload
    @classmethod
    async def lint(
        cls, spec: BatchSpec, /, *, exact: bool = False, events: EventSink | None = None
    ) -> PrefixReport: ...

    @overload
    @classmethod
    async def lint(
        cls, /, *, exact: bool = False, events: EventSink | None = None, **options: Unpack[SpecOptions]
    ) -> PrefixReport: ...

    @classmethod
    @lists_options(SpecOptions)
    async def lint(
        cls, spec: BatchSpec | None = None, /, *, exact: bool = False, events: EventSink | None = None, **options: Any
    ) -> PrefixReport:
        """What the prompts of this run would share, and what keeps them from sharing more. No model is asked. `exact`:
        the backend is opened, to count tokens as it does."""
        setup = RunSetup.validate(_spec(spec, options), events)
        if not exact:
            return await lint_prompts(setup)
        async with open_preview(setup) as preview:
            return preview.report()

    @overload
    @classmethod
    async def plan(cls, spec: BatchSpec, /, *, canary: int = 0, events: EventSink | None = None) -> "Forecast": ...

    @overload
    @classmethod
    async def plan(
        cls, /, *, canary: int = 0, events: EventSink | None = None, **options: Unpack[SpecOptions]
    ) -> "Forecast": ...

    @classmethod
    @lists_options(SpecOptions)
    async def plan(
        cls, spec: BatchSpec | None = None, /, *, canary: int = 0, events: EventSink | None = None, **options: Any
    ) -> "Forecast":
        """What this run will be: agents, tokens, memory, time and cost. `canary`: so many agents are really run, which
        is what time can be told from; with a `checkpoint_dir` the run will not ask them again. After it,
        `forecast.against(results, seconds)` compares."""
        from .forecasting.entry import forecast_run

        return await forecast_run(_spec(spec, options), canary, events)


async def _run(spec: BatchSpec | None, options: Mapping[str, Any]) -> Results:
    results: dict[int, AgentResult] = {}
    try:
        async with _stream(spec, **options) as stream:
            async for result in stream:
                results[result.index] = result
    except RunStopped as stopped:
        stopped.results = [results[index] for index in sorted(results)]
        raise
    return Results((results[index] for index in sorted(results)), stream.scheduling, stream.report)


def _stream(
    spec: BatchSpec | None, *, events: EventSinks = None, progress: bool | None = None, **options: Any
) -> ResultStream:
    asked = _spec(spec, options)
    events = progress_if_interactive(sys.stderr, progress) if events is None else events
    is_watched = events is not None or asked.checkpoint_dir is not None
    setup = RunSetup.validate(asked, combine_sinks(events, asked.checkpoint_dir) if is_watched else None)
    if asked.together.cluster is not None:
        from .ray import RayRun

        return ResultStream(RayRun(setup).drive)
    return ResultStream(partial(runner.run, setup, coordinator=coordinator_of(asked)))


def _spec(spec: BatchSpec | None, options: dict[str, Any]) -> BatchSpec:
    if spec is not None and options:
        raise SpecError(f"Give either a BatchSpec or options, not both: {', '.join(options)}.")
    return spec or BatchSpec.of(**options)


__all__: Sequence[str] = ["BatchAgent"]
