"""Public entry points: the class `BatchAgent`. What they do is in modules that the calls import: a program that imports
the class has loaded the options, and neither the engine nor asyncio."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from .core.errors import SpecError
from .core.events import Steered
from .core.options.run_options import (
    MapOptions,
    MapReduceOptions,
    ReduceOptions,
    ReplayOptions,
    RunOptions,
    SpecOptions,
    StageOptions,
    WorkOptions,
)
from .core.options.signature import lists_options
from .core.protocols.event_sink import EventSink, EventSinks
from .core.results import AgentResult
from .core.run_reports import PrefixReport
from .core.spec import BatchSpec
from .lazy_imports import lazy_modules

with lazy_modules(globals()):
    from . import data, entry_points, flows
    from .cluster.redis import run_control, run_copy
    from .core.options import control_request
    from .data import optional_imports
    from .engine import sync
    from .evaluation import outcome
    from .forecasting import entry
    from .ray import dataset_map
    from .run import control, control_socket, replay

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which Python has since 3.13

    from .data.results import Results
    from .engine.result_stream import ResultStream
    from .engine.sync import SyncResultStream
    from .forecasting.forecast import Forecast
    from .run.preview import Preview

    T = TypeVar("T", default=str)
    """Type of an answer: text without a schema."""
    S = TypeVar("S", default=str)
    """Type of a summary."""


class BatchAgent:
    """Entry points that run one task over a list of inputs, with one agent for each input."""

    @overload
    @classmethod
    async def run(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> "Results[Any]": ...

    @overload
    @classmethod
    async def run(cls, /, *, output_schema: "type[T] | None" = None, **options: Unpack[RunOptions]) -> "Results[T]": ...

    @overload
    @classmethod
    async def run(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> "Results[Any]": ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    async def run(cls, spec: BatchSpec | None = None, /, **options: Any) -> "Results":
        """Runs an agent for each input and returns one result per input, in input order; with `samples` and `models`,
        one per sample and model.

        Give either a `BatchSpec` or these keyword arguments, which docs/options.md describes. The answers,
        `result.output`, are instances of `output_schema`; without one they are text.

        - Task: task, inputs, output_schema, tools, model, backend, fallback, lane, runtime.
        - Inputs: limit, sample, sample_seed, where, input_format, encoding, key, images.
        - Files: checkpoint_dir, plan_changed, out, on_result, log_requests, tokens.
        - Sampling: temperature, top_p, seed, max_tokens, stop, extra.
        - Evaluation: samples, models, score.
        - Limits: max_inflight, max_agents, max_turns, rpm, tpm, priority, backpressure_ceiling, calibrate_backend.
        - Timeouts: timeout_per_agent, timeout_per_turn, timeout_per_tool.
        - Retries: max_retries, backoff, backoff_max, retry_failed.
        - Budget: max_total_tokens, max_usd, deadline, prices.
        - Prompt: system_prompt, tool_mode, strip_preamble, cache_salt, warm_prefix, hoist, reorder, strict_prefix,
          shared_results, kvflow.
        - Context: max_tool_tokens, context_tokens, oversized, compact_at, compact_with, compact_model, streaming,
          streaming_tool_dispatch.
        - Tool cache: tool_cache_mb, tool_cache_dir, predictive_prewarm.
        - Cluster: store, run_id, lease, cluster, workers.
        - Progress: events, progress.

        Failures are results. `run` raises only for a run that cannot start (SpecError, BackendError, before anything
        is sent), for a run that cannot continue, because the backend is lost, the inputs raise or `out` cannot be
        written (RunStopped, which holds the results so far), and for a checkpoint that cannot be written
        (StoreError)."""
        return await entry_points.run(spec, **options)

    @overload
    @classmethod
    async def run_with_reduce(
        cls,
        *,
        output_schema: "type[T] | None" = None,
        reduce_schema: "type[S] | None" = None,
        **options: Unpack[ReduceOptions],
    ) -> "tuple[Results[T], S | None]": ...

    @overload
    @classmethod
    async def run_with_reduce(
        cls, *, output_schema: Any = None, reduce_schema: Any = None, **options: Unpack[ReduceOptions]
    ) -> "tuple[Results[Any], Any]": ...

    @classmethod
    @lists_options(SpecOptions, ReduceOptions)
    async def run_with_reduce(cls, *, reduce_schema: Any = None, **options: Any) -> "tuple[Results, Any]":
        """Runs `run`, then one more agent that combines all results into one answer. Returns `(results, summary)`.

        `reduce` is the prompt of that agent ({n}: the number of results). It receives every result, and the error of
        each failure. Results that do not fit one prompt are merged in parts, each as soon as its results are complete.
        `reducer_model` and `reduce_options` (a dict) apply to that agent alone; it has no tools unless they are given
        there. The summary is an instance of `reduce_schema`, or text; None if there are no results. Other options are
        those of `run`. Raises as `run` does, and RunStopped (with the results) if the reduce fails. `results.stages`
        reports each stage."""
        return await flows.run_with_reduce(reduce_schema=reduce_schema, **options)

    @overload
    @classmethod
    def run_with_reduce_sync(
        cls,
        *,
        output_schema: "type[T] | None" = None,
        reduce_schema: "type[S] | None" = None,
        **options: Unpack[ReduceOptions],
    ) -> "tuple[Results[T], S | None]": ...

    @overload
    @classmethod
    def run_with_reduce_sync(
        cls, *, output_schema: Any = None, reduce_schema: Any = None, **options: Unpack[ReduceOptions]
    ) -> "tuple[Results[Any], Any]": ...

    @classmethod
    @lists_options(SpecOptions, ReduceOptions)
    def run_with_reduce_sync(cls, *, reduce_schema: Any = None, **options: Any) -> "tuple[Results, Any]":
        """Blocking form of `run_with_reduce` for scripts, with the same options."""
        return sync.run_blocking(lambda: flows.run_with_reduce(reduce_schema=reduce_schema, **options))

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls,
        *,
        output_schema: "type[T] | None" = None,
        reduce_schema: "type[S] | None" = None,
        **options: Unpack[MapReduceOptions],
    ) -> "tuple[Results[T], S | None]": ...

    @overload
    @classmethod
    async def run_with_map_reduce(
        cls, *, output_schema: Any = None, reduce_schema: Any = None, **options: Unpack[MapReduceOptions]
    ) -> "tuple[Results[Any], Any]": ...

    @classmethod
    @lists_options(StageOptions, MapReduceOptions)
    async def run_with_map_reduce(cls, *, reduce_schema: Any = None, **options: Any) -> "tuple[Results, Any]":
        """Makes a plan, runs an agent for each of its items, and combines their results. Returns `(results, summary)`.

        `plan_output_schema`: a list, or a model with a list `items`, of strings or of models. `plan_inputs`: the fields
        of `plan_prompt`, or a list of such inputs, each with a plan of its own. In `task`, {item} is an item of the
        plan (or {item.title} if it is a model) and {index} its number. `planner_model`, `worker_model` and
        `reducer_model`, and the dicts `plan_options` and `reduce_options`, apply to one stage; tools, output_schema and
        on_result apply to the agents of the items. Otherwise as `run_with_reduce`; with a checkpoint_dir, a completed
        plan is reused."""
        return await flows.run_with_map_reduce(reduce_schema=reduce_schema, **options)

    @overload
    @classmethod
    def run_with_map_reduce_sync(
        cls,
        *,
        output_schema: "type[T] | None" = None,
        reduce_schema: "type[S] | None" = None,
        **options: Unpack[MapReduceOptions],
    ) -> "tuple[Results[T], S | None]": ...

    @overload
    @classmethod
    def run_with_map_reduce_sync(
        cls, *, output_schema: Any = None, reduce_schema: Any = None, **options: Unpack[MapReduceOptions]
    ) -> "tuple[Results[Any], Any]": ...

    @classmethod
    @lists_options(StageOptions, MapReduceOptions)
    def run_with_map_reduce_sync(cls, *, reduce_schema: Any = None, **options: Any) -> "tuple[Results, Any]":
        """Blocking form of `run_with_map_reduce` for scripts, with the same options."""
        return sync.run_blocking(lambda: flows.run_with_map_reduce(reduce_schema=reduce_schema, **options))

    @classmethod
    @lists_options(ReplayOptions, default="...")
    async def replay(
        cls, run_dir: str | Path, agent: str | int | None = None, **options: Unpack[ReplayOptions]
    ) -> list[AgentResult]:
        """Runs the agents of a checkpoint again from their recorded facts, without a server and without calling tools:
        see `batch_agent.run.replay.replay`."""
        return await replay.replay(run_dir, agent, **options)

    @classmethod
    async def copy_run(cls, store: str, run_id: str, checkpoint_dir: str | Path) -> bool:
        """Copies a run on a Redis server to a new checkpoint directory: `replay`, `score`, `batch-agent inspect` and
        whatever else reads checkpoints reads it there, and `run` with this `checkpoint_dir` resumes it without the
        server. Returns whether a process was still working on the run. Raises SpecError, and StoreError for a run that
        the server does not have and for a directory that has a checkpoint already."""
        return await run_copy.copy_run(store, run_id, Path(checkpoint_dir))

    @classmethod
    async def control(
        cls,
        run_dir: str | Path,
        *,
        run_id: str | None = None,
        max_inflight: int | None = None,
        max_usd: float | None = None,
        deadline: float | None = None,
        pause: bool | None = None,
        cancel: str | int | Sequence[str | int] = (),
        add: Any = None,
    ) -> list[Steered]:
        """Changes a live run with this checkpoint, in this process or another one: all of it, or nothing. Returns what
        has changed, with the values before and after; `str` of each is a line for people. A distributed run is changed
        in all its processes: `run_dir` is then the URL of its Redis server, and `run_id` its name.

        `max_inflight`: what the limit of concurrent requests does not exceed. `max_usd`: of a run that was started with
        one. `deadline`: seconds from the start of the run. `pause`: True starts no more turns, False goes on. `cancel`:
        agents, by key or index. `add`: further inputs, as for `run`; they have to be JSON data. Raises SpecError with
        the reason if the run refuses, and StoreError if it is not running."""
        agents = [cancel] if isinstance(cancel, str | int) else cancel
        values = control.inputs_to_add(await data.read_inputs_async(add)) if add is not None else ()
        request = control_request.ControlRequest(
            max_inflight, max_usd, deadline, pause, tuple(map(str, agents)), values
        )
        if run_id is not None:
            return await run_control.steer_shared(str(run_dir), run_id, request)
        return await control_socket.steer(Path(run_dir), request)

    @overload
    @classmethod
    def run_sync(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> "Results[Any]": ...

    @overload
    @classmethod
    def run_sync(cls, /, *, output_schema: "type[T] | None" = None, **options: Unpack[RunOptions]) -> "Results[T]": ...

    @overload
    @classmethod
    def run_sync(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> "Results[Any]": ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    def run_sync(cls, spec: BatchSpec | None = None, /, **options: Any) -> "Results":
        """Blocking form of `run` for scripts, with the same options. In a running event loop (a notebook) it uses a
        thread of its own."""
        return sync.run_blocking(lambda: entry_points.run(spec, **options))

    @overload
    @classmethod
    def stream(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> "ResultStream[Any]": ...

    @overload
    @classmethod
    def stream(
        cls, /, *, output_schema: "type[T] | None" = None, **options: Unpack[RunOptions]
    ) -> "ResultStream[T]": ...

    @overload
    @classmethod
    def stream(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> "ResultStream[Any]": ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    def stream(cls, spec: BatchSpec | None = None, /, **options: Any) -> "ResultStream":
        """Yields results as the agents finish: `async for result in BatchAgent.stream(...)`. Leaving the loop early
        cancels the rest. The options are those of `run`. `events`, a sink or several, receive every event. `progress`:
        whether it is shown; None: in a terminal or a notebook, unless there are `events`. A run with a checkpoint_dir
        writes a report.html there."""
        return entry_points.open_stream(spec, **options)

    @overload
    @classmethod
    def stream_sync(
        cls, spec: BatchSpec, /, *, events: EventSinks = None, progress: bool | None = None
    ) -> "SyncResultStream[Any]": ...

    @overload
    @classmethod
    def stream_sync(
        cls, /, *, output_schema: "type[T] | None" = None, **options: Unpack[RunOptions]
    ) -> "SyncResultStream[T]": ...

    @overload
    @classmethod
    def stream_sync(cls, /, *, output_schema: Any, **options: Unpack[RunOptions]) -> "SyncResultStream[Any]": ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    def stream_sync(cls, spec: BatchSpec | None = None, /, **options: Any) -> "SyncResultStream":
        """Yields results as the agents finish: `for result in BatchAgent.stream_sync(...)`, for scripts and notebooks.
        The run has a thread of its own. Leaving the loop early, by break or Ctrl-C, cancels the rest and waits for the
        end of the run. The options are those of `run`."""
        return sync.SyncResultStream(entry_points.open_stream(spec, **options))

    @classmethod
    @lists_options(MapOptions)
    def map(
        cls,
        dataset: Any,
        /,
        *,
        column_prefix: str = "",
        actor_options: Mapping[str, Any] | None = None,
        **options: Unpack[MapOptions],
    ) -> Any:
        """Runs an agent for each row of a Ray Dataset: an operator that returns a Dataset with the same rows and these
        columns more. Nothing is sent before the result is consumed, for example written.

        - `output`: the answer, text, or a struct with the fields of `output_schema`. None where `ok` is False.
        - `ok`, `error_kind`, `error_message`, `turns`, `input_tokens`, `cached_tokens`, `output_tokens`, `cost`,
          `seconds`.

        `column_prefix` is put before their names. `workers`: actors that run agents; None: from one to as many as Ray
        Data finds useful. `actor_options`: what an actor needs, such as `{"num_cpus": 0.5}`. Other options are those of
        `run`, but for those that choose, write, sample or score rows. Limits, the budget and tool calls are shared by
        all actors. Each keeps the facts of its blocks on its node, in `checkpoint_dir` or a temporary directory, where
        the next actor finds them if it dies. See docs/distributed-runs.md. Raises SpecError; what raises in an actor
        ends the execution of the dataset."""
        optional_imports.require("ray.data", "BatchAgent.map", "'batch-agent[ray]' 'ray[data]'")
        if "inputs" in options:
            raise SpecError("BatchAgent.map(dataset, ...): the dataset has the inputs. Omit inputs=.")
        spec = entry_points.spec_of(None, {"cluster": "ray", **options, "inputs": []})
        return dataset_map.map_dataset(dataset, spec, column_prefix, actor_options)

    @overload
    @classmethod
    async def work(cls, spec: BatchSpec, /, *, events: EventSinks = None) -> None: ...

    @overload
    @classmethod
    async def work(cls, /, *, events: EventSinks = None, **options: Unpack[WorkOptions]) -> None: ...

    @classmethod
    @lists_options(WorkOptions)
    async def work(cls, spec: BatchSpec | None = None, /, *, events: EventSinks = None, **options: Any) -> None:
        """Joins a run that another process has submitted with the same options and `store`, as a worker, until no
        submitter has work left. Inputs are not needed. Raises as `run` does."""
        await entry_points.work(spec, options if spec is not None else {"inputs": [], **options}, events)

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
        """Reports the prefix that the prompts of this run share, and what keeps them from sharing more. Sends no
        requests to a model. `exact`: opens the backend, to count tokens with its tokenizer. With the `checkpoint_dir`
        of an earlier run, `shared_results` says what its agents read."""
        return await entry_points.lint(spec, options, exact, events)

    @overload
    @classmethod
    async def preview(cls, spec: BatchSpec, /, *, count: int = 3, exact: bool = False) -> "Preview": ...

    @overload
    @classmethod
    async def preview(
        cls, /, *, count: int = 3, exact: bool = False, output_schema: Any = None, **options: Unpack[RunOptions]
    ) -> "Preview": ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    async def preview(
        cls, spec: BatchSpec | None = None, /, *, count: int = 3, exact: bool = False, **options: Any
    ) -> "Preview":
        """Shows the first requests of this run as they would be sent: method, URL, headers and body, with secrets
        masked. Sends nothing, and the server need not be up; `notes` says what only the server can tell.

        The options are those of `run`. `count`: the number of inputs. `exact`: connects to the backend first, as a run
        does. `print(preview)` is for reading, `preview.to_dict()` for programs. Tool servers (MCP) are started, because
        their tools are part of the requests. Raises SpecError; with `exact` BackendError too."""
        return await entry_points.preview(spec, options, count, exact)

    @overload
    @classmethod
    def preview_sync(cls, spec: BatchSpec, /, *, count: int = 3, exact: bool = False) -> "Preview": ...

    @overload
    @classmethod
    def preview_sync(
        cls, /, *, count: int = 3, exact: bool = False, output_schema: Any = None, **options: Unpack[RunOptions]
    ) -> "Preview": ...

    @classmethod
    @lists_options(SpecOptions, RunOptions)
    def preview_sync(
        cls, spec: BatchSpec | None = None, /, *, count: int = 3, exact: bool = False, **options: Any
    ) -> "Preview":
        """Blocking form of `preview` for scripts, with the same options."""
        return sync.run_blocking(lambda: entry_points.preview(spec, options, count, exact))

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
        """Forecasts this run: agents, tokens, memory, time and cost. `canary`: the number of agents that are run to
        measure time; with a `checkpoint_dir` the run reuses their results. After the run,
        `forecast.compare(results, seconds)` compares."""
        return await entry.forecast_run(entry_points.spec_of(spec, options), canary, events)

    @classmethod
    async def score(
        cls,
        source: "Results[Any] | str | Path",
        *score: Any,
        output_schema: Any = None,
        backend: Any = None,
        model: str | None = None,
    ) -> "Results[Any]":
        """Scores the results of an earlier run, or of its checkpoint, without new answers. Returns them with the
        scores added; in a checkpoint they are kept, for its exports, its report and comparisons.

        `score`: scorers, as `score=` of a run takes them. `output_schema`: type of the answers of a checkpoint, if
        scorers need it. `backend`, `model`: of judges without their own. Raises SpecError and StoreError, and with
        judges as `run` does."""
        return await outcome.score(source, score, {"backend": backend, "model": model}, output_schema)

    @classmethod
    def score_sync(
        cls,
        source: "Results[Any] | str | Path",
        *score: Any,
        output_schema: Any = None,
        backend: Any = None,
        model: str | None = None,
    ) -> "Results[Any]":
        """Blocking form of `score` for scripts."""
        return sync.run_blocking(
            lambda: outcome.score(source, score, {"backend": backend, "model": model}, output_schema)
        )


__all__: Sequence[str] = ["BatchAgent"]
