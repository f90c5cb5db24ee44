"""Driver of a flow: opens all stages together, and runs them concurrently."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import fields, replace
from typing import Any, Self

from .. import aio
from ..aio import RunDeadline, is_being_cancelled, startup_deadline
from ..channel import Channel
from ..cluster.coordinator_address import FlowCoordinators
from ..core.errors import BackendError, BatchAgentError, SpecError
from ..core.events import FlowStarted, Notice
from ..core.options import Rows, SpendingLimits
from ..core.options.evaluation import Evaluation
from ..core.protocols.event_sink import EventSink
from ..core.run_failure import RunStopped
from ..core.spec import BatchSpec
from ..core.task_fields import Fields
from ..data import read_inputs_async
from ..data.inputs import print_notice
from ..engine.job_source import JobSource
from ..lazy_imports import lazy_modules
from ..observe.sinks import StageEvents
from ..plan.template import template_of
from ..run.complete_checkpoint import MAX_READ_AHEAD
from ..run.resource_opener import open_resources
from ..run.runner import work_for_flow
from ..run.setup import RunSetup
from ..tools.adapters import locate_file_tools
from .callbacks import Callbacks
from .cascade_filter import CascadeNode
from .complete_checkpoints import NoEvents, marked_plans, trial_spec, with_cached_function
from .flow_validation import check_steps
from .map_step import MapInputs, MapNode, fields_of
from .nodes import ExpandNode, FilterNode, FlowNode, ItemDropped, ItemExpected, ResultNode, StageClosed
from .pair_step import PairNode
from .reduce_step import ReduceNode
from .result import FlowResult, Item
from .shared_flow import SharedFlow
from .stage_compiler import CompiledStage, compile_flow, text_name
from .stage_runner import StageRunner
from .steps import CascadeFilter, Dedupe, Escalate, Expand, Filter, FlowStep, Join, Map, Reduce

with lazy_modules(globals()):
    from .. import ray

Worker = MapNode | MapInputs | CascadeNode | PairNode | ReduceNode

_CAPACITY = 1024
"""Inputs that may wait between two stages. Beyond that, the earlier stage pauses if it can."""


async def drive(
    steps: Sequence[FlowStep],
    inputs: Any,
    options: Mapping[str, Any],
    events: EventSink | None,
) -> FlowResult:
    """Runs a flow. Raises SpecError and BackendError before anything is sent, RunStopped (with the results so far) and
    StoreError."""
    check_steps(steps)
    if options.get("out") is not None:
        raise SpecError("out= is one file: pass it to a stage, as in .map(name, task, out='results.parquet').")
    shared = SharedFlow.of(steps, options)
    async with AsyncExitStack() as stack:
        spending = options.get("spending")
        seconds = (
            spending.deadline
            if isinstance(spending, SpendingLimits)
            else SpendingLimits(deadline=options.get("deadline")).deadline
        )
        deadline = RunDeadline(seconds)
        with startup_deadline(deadline):
            async with deadline.limit():
                options, rows = _without_selection(options)
                source = await _source(inputs, rows, _notifier(events))
                plans = marked_plans(steps, options)
                if plans is not None:
                    steps = list(map(with_cached_function, steps))
                    plans = plans if await _is_finished(steps, source, options, plans) else None
                if plans is not None:
                    shared = None  # no agent runs
                stages = await _open_stages(
                    steps, source, options, events, deadline, stack, plans,
                    lambda spec: locate_file_tools(spec, inputs, rows.encoding),
                    shared,
                )  # fmt: skip
        return await _run_stages(steps, stages, source, deadline, Callbacks(events))


async def work(steps: Sequence[FlowStep], inputs: Any, options: Mapping[str, Any], events: EventSink | None) -> None:
    """Works on a flow that another process runs, until it has no work left. Raises like `drive`."""
    check_steps(steps)
    shared = SharedFlow.of(steps, options)
    if shared is None or not shared.runs_agents:
        raise SpecError("work needs the store of the flow, and no cluster=: Flow(..., store='redis://...').")
    options, rows = _without_selection(options)
    stages = [
        _Stage(each, None, events, lambda spec: locate_file_tools(spec, inputs, rows.encoding), shared)
        for each in compile_flow(steps, options, [])
    ]
    setups = [stage.setup for stage in stages]
    if events is not None:
        events.emit(FlowStarted(tuple(stage.agents.name for stage in stages)))
    async with _coordinators(setups) as (coordinator, runs):
        await work_for_flow(setups, events, coordinator, runs)


def _coordinators(setups: Sequence[RunSetup]) -> AbstractAsyncContextManager[FlowCoordinators]:
    return ray.open_coordinators(setups)


def _without_selection(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Rows]:
    """The options of the stages, with `key` and `images` of `Rows`, and the selection of the flow's inputs."""
    names = {each.name for each in fields(Rows)}
    rows = options.get("rows") or Rows(**{name: value for name, value in options.items() if name in names})
    others = {name: value for name, value in options.items() if name not in names and name != "rows"}
    kept = {"key": rows.key, "images": rows.images}
    return {**others, **{name: value for name, value in kept.items() if value}}, rows


def _notifier(events: EventSink | None) -> Callable[[str], None]:
    return print_notice if events is None else (lambda text: events.emit(Notice(text)))


async def _source(inputs: Any, rows: Rows, notify: Callable[[str], None]) -> JobSource:
    inputs = await read_inputs_async(inputs, rows, notify)
    if isinstance(inputs, list):
        inputs = tuple(inputs)  # later changes to the list do not change the number of inputs
    return JobSource(inputs)


async def _is_finished(
    steps: Sequence[FlowStep], source: JobSource, options: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the checkpoints have all results, which a trial run without side effects determines."""
    values = source.rows if source.rows is not None else await source.read_ahead(MAX_READ_AHEAD)
    if values is None:
        return False
    inputs, deadline = JobSource(values), RunDeadline(None)
    try:
        async with AsyncExitStack() as stack:
            stages = await _open_stages(steps, inputs, options, NoEvents(), deadline, stack, plans, trial_spec)
            await _run_stages(steps, stages, inputs, deadline, Callbacks(logs=False))
    except BatchAgentError:  # the model is needed; other errors are reported by the real run
        return False
    return True


async def _open_stages(
    steps: Sequence[FlowStep],
    source: JobSource,
    options: Mapping[str, Any],
    events: EventSink | None,
    deadline: RunDeadline,
    stack: AsyncExitStack,
    plans: Sequence[Mapping[str, Any]] | None,
    adapted: Callable[[BatchSpec], BatchSpec] = lambda spec: spec,
    shared: SharedFlow | None = None,
) -> list["_Stage"]:
    """Opens all stages until the stack is closed. `plans`: as for `open_resources`."""
    first = [fields_of(value, text_name(steps)) for value in await source.peek()]
    values = source.rows if source.rows is not None else _Rest(source)
    stages = [
        _Stage(each, values if at == 0 and isinstance(steps[0], Map) else None, events, adapted, shared)
        for at, each in enumerate(compile_flow(steps, options, first))
    ]
    if events is not None:
        events.emit(FlowStarted(tuple(stage.agents.name for stage in stages)))
    setups = [stage.setup for stage in stages]
    coordinator, runs = (None, ()) if shared is None else await stack.enter_async_context(_coordinators(setups))
    opening = open_resources(setups, events, coordinator, stages=runs, deadline=deadline, recorded=plans)
    for stage, resources in zip(stages, await stack.enter_async_context(opening), strict=True):
        stage.agents.resources = resources
    return stages


async def _run_stages(
    steps: Sequence[FlowStep],
    stages: Sequence["_Stage"],
    source: JobSource,
    deadline: RunDeadline,
    callbacks: Callbacks,
) -> FlowResult:
    """Runs the flow with all stages open."""
    sink = ResultNode()
    head, workers = _build_nodes(steps, stages, sink, source.total, callbacks)
    for worker in workers:
        if isinstance(worker, ReduceNode):
            await worker.open()
    work = [worker.run() for worker in workers]
    if stages[0].feed is not None:
        work.append(_pump(source, text_name(steps), head, deadline))
    try:
        await _run_concurrently(work)
    except RunStopped as stopped:
        stopped.flow = _result(sink, stages, callbacks)
        stopped.results = [result for report in stopped.flow.stages.values() for result in report.results]
        raise
    return _result(sink, stages, callbacks)


class _Stage:
    """A stage that has not been opened."""

    def __init__(
        self,
        compiled: CompiledStage,
        inputs: Any,
        events: EventSink | None,
        adapted: Callable[[BatchSpec], BatchSpec],
        shared: SharedFlow | None,
    ) -> None:
        """`inputs`: inputs of the flow, for the first stage; otherwise None."""
        name = compiled.step.name
        own_events = None if events is None else StageEvents(name, events)
        self.events = own_events
        self.compiled = compiled
        self.feed: Channel[Any] | None = Channel(_CAPACITY) if inputs is None else None
        self.agents = StageRunner(name, self.feed, own_events, runs_agents=shared is None or shared.runs_agents)
        spec = adapted(compiled.spec(inputs if self.feed is None else self.feed))
        if shared is not None:
            spec = shared.stage(spec, name)
        if self.feed is not None:  # items of later stages are not rows of the inputs
            spec = replace(spec, rows=Rows(encoding=spec.rows.encoding, images=spec.rows.images))
        if spec.rows.images and "images" not in compiled.step.options:  # of the flow: maybe fields of other stages
            spec = replace(spec, rows=replace(spec.rows, images=_fields_among(spec.rows.images, spec.task)))
        if spec.fallback:
            raise SpecError(
                "fallback= is an option of BatchAgent.run. In a flow, .escalate(...) runs failed items again."
            )
        if spec.evaluation != Evaluation():
            raise SpecError("samples=, models= and score= are options of BatchAgent.run, not of a flow.")
        self.setup = RunSetup.validate(spec, own_events, name, None if self.feed is None else compiled.names)

    def worker(self, then: FlowNode, text: str, total: int | None, callbacks: Callbacks) -> Worker:
        step = self.compiled.step
        match step:
            case Reduce():
                return ReduceNode(self.compiled, step, self.agents, then, callbacks)
            case CascadeFilter():
                return CascadeNode(step, self.agents, then, callbacks, self.events)
            case Dedupe() | Join():
                return PairNode(step, self.agents, then, callbacks, self.events)
            case Map() if self.feed is None:
                return MapInputs(step, text, self.agents, then, total)
            case Map() | Escalate():
                return MapNode(step, self.agents, then, callbacks)


def _fields_among(names: Sequence[str], task: str | Fields) -> list[str]:
    """The names that are fields of the task."""
    found = template_of(task).fields
    return [name for name in names if name in found]


def _build_nodes(
    steps: Sequence[FlowStep], stages: Sequence[_Stage], sink: ResultNode, total: int | None, callbacks: Callbacks
) -> tuple[FlowNode, list[Worker]]:
    """The first node, and all nodes that run agents."""
    left = list(stages)
    then: FlowNode = sink
    workers: list[Worker] = []
    for step in reversed(steps):
        match step:
            case Filter():
                then = FilterNode(step, left[-1].agents.name if left else "", then, callbacks)
            case Expand():
                then = ExpandNode(step, then, callbacks)
            case _:
                worker = left.pop().worker(then, text_name(steps), total, callbacks)
                workers.append(worker)
                if not isinstance(worker, MapInputs):
                    then = worker
    return then, workers


async def _pump(source: JobSource, text: str, head: FlowNode, deadline: RunDeadline) -> None:
    """Sends the inputs to the first node of a flow that does not begin with agents. Stops at the deadline."""
    count = 0
    if source.total is not None:
        await head.receive(ItemExpected(source.total))
    while True:
        try:
            async with deadline.limit():
                value = await source.next()
        except StopAsyncIteration:
            break
        except BackendError:
            if not deadline.has_passed:
                raise
            break
        await head.receive(Item((count,), fields_of(value, text)))
        count += 1
    if source.total is None:
        await head.receive(ItemExpected(count))
    for missing in range(count, source.total or 0):  # fewer than their length
        await head.receive(ItemDropped((missing,)))
    await head.receive(StageClosed())


async def _run_concurrently(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Returns when all coroutines have finished. If one fails, cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            await asyncio.wait(tasks)  # on 3.11, a group that fails on exit leaves its own cancel() pending
    except BaseExceptionGroup as failures:
        if is_being_cancelled():
            raise asyncio.CancelledError from None
        error = aio.unwrap_group(failures, BatchAgentError)
        raise error from error.__cause__


def _result(sink: ResultNode, stages: Sequence[_Stage], callbacks: Callbacks) -> FlowResult:
    return FlowResult(sink.items, {stage.agents.name: stage.agents.report() for stage in stages}, callbacks.failed)


class _Rest(AsyncIterator[Any]):
    """The inputs of a source, including the first one, which was read ahead."""

    def __init__(self, source: JobSource) -> None:
        self._source = source

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._source.next()
