"""A flow under way: its stages are opened together, and run side by side."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from .. import aio
from ..aio import RunDeadline, is_being_cancelled, startup_deadline
from ..channel import Channel
from ..core.errors import BackendError, BatchAgentError, SpecError
from ..core.events import FlowStarted
from ..core.options import Spend
from ..core.protocols import EventSink
from ..core.run_failure import RunStopped
from ..core.spec import BatchSpec
from ..data import gather_inputs
from ..engine.inputs import JobSource
from ..plan.field_paths import root_of
from ..plan.template import template_of
from ..run.complete_checkpoint import MOST_READ_AHEAD
from ..run.resources import open_resources
from ..run.setup import RunSetup
from .callbacks import Callbacks
from .compile import CompiledStage, compile_flow, text_name
from .complete_checkpoints import NoEvents, called_once, marked_plans, unseen
from .map_step import MapInputs, MapNode, fields_of
from .nodes import ExpandNode, FilterNode, FlowNode, ItemDropped, ItemExpected, ResultNode, StageClosed
from .reduce_step import ReduceNode
from .result import FlowResult, Item
from .stage_runner import StageEvents, StageRunner
from .steps import Expand, Filter, FlowStep, Map, Reduce
from .validation import check_steps

Worker = MapNode | MapInputs | ReduceNode

_CAPACITY = 1024
"""Inputs between two stages, beyond which a stage that can wait does so."""


async def drive(
    steps: Sequence[FlowStep],
    inputs: Any,
    options: Mapping[str, Any],
    events: EventSink | None,
) -> FlowResult:
    """Raises SpecError and BackendError before anything is sent, RunStopped (with what was done) and StoreError."""
    check_steps(steps)
    if options.get("out") is not None:
        raise SpecError("out= is one file: give it to a stage, as in .map(name, task, out='results.parquet').")
    if options.get("store") is not None or options.get("cluster") is not None:
        raise SpecError(
            "A flow runs in one process: leave store= and cluster= out. The stage with the most agents can be a run of "
            "its own: BatchAgent.run(..., store='redis://...')."
        )
    async with AsyncExitStack() as stack:
        spend = options.get("spend")
        seconds = spend.deadline if isinstance(spend, Spend) else Spend(deadline=options.get("deadline")).deadline
        deadline = RunDeadline(seconds)
        with startup_deadline(deadline):
            async with deadline.limit():
                source = await _source(inputs)
                plans = marked_plans(steps, options)
                if plans is not None:
                    steps = list(map(called_once, steps))
                    plans = plans if await _is_finished(steps, source, options, plans) else None
                stages = await _opened(steps, source, options, events, deadline, stack, plans)
        return await _driven(steps, stages, source, deadline, Callbacks(events))


async def _source(inputs: Any) -> JobSource:
    inputs = await gather_inputs(inputs)
    if isinstance(inputs, list):
        inputs = tuple(inputs)  # what becomes of the list meanwhile does not change how many there are
    return JobSource(inputs)


async def _is_finished(
    steps: Sequence[FlowStep], source: JobSource, options: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the checkpoints hold all results: tried, without a trace."""
    values = source.rows if source.rows is not None else await source.ahead(MOST_READ_AHEAD)
    if values is None:
        return False
    inputs, deadline = JobSource(values), RunDeadline(None)
    try:
        async with AsyncExitStack() as stack:
            stages = await _opened(steps, inputs, options, NoEvents(), deadline, stack, plans, unseen)
            await _driven(steps, stages, inputs, deadline, Callbacks(logs=False))
    except BatchAgentError:  # it has to be asked, and whatever else is wrong is told then
        return False
    return True


async def _opened(
    steps: Sequence[FlowStep],
    source: JobSource,
    options: Mapping[str, Any],
    events: EventSink | None,
    deadline: RunDeadline,
    stack: AsyncExitStack,
    plans: Sequence[Mapping[str, Any]] | None,
    adapted: Callable[[BatchSpec], BatchSpec] = lambda spec: spec,
) -> list["_Stage"]:
    """All stages, for as long as the stack. `plans`: as `open_resources` takes them."""
    first = [fields_of(value, text_name(steps)) for value in await source.peek()]
    given = source.rows if source.rows is not None else _Rest(source)
    stages = [
        _Stage(each, given if at == 0 and isinstance(steps[0], Map) else None, events, adapted)
        for at, each in enumerate(compile_flow(steps, options, first))
    ]
    if events is not None:
        events.emit(FlowStarted(tuple(stage.agents.name for stage in stages)))
    opening = open_resources([stage.setup for stage in stages], events, deadline=deadline, recorded=plans)
    for stage, resources in zip(stages, await stack.enter_async_context(opening), strict=True):
        stage.agents.resources = resources
    return stages


async def _driven(
    steps: Sequence[FlowStep],
    stages: Sequence["_Stage"],
    source: JobSource,
    deadline: RunDeadline,
    callbacks: Callbacks,
) -> FlowResult:
    """With all stages open."""
    sink = ResultNode()
    head, workers = _chain(steps, stages, sink, source.total, callbacks)
    for worker in workers:
        if isinstance(worker, ReduceNode):
            await worker.open()
    work = [worker.go() for worker in workers]
    if stages[0].feed is not None:
        work.append(_pump(source, text_name(steps), head, deadline))
    try:
        await _side_by_side(work)
    except RunStopped as stopped:
        stopped.flow = _result(sink, stages, callbacks)
        stopped.results = [result for report in stopped.flow.stages.values() for result in report.results]
        raise
    return _result(sink, stages, callbacks)


class _Stage:
    """A stage before it is opened."""

    def __init__(
        self,
        compiled: CompiledStage,
        inputs: Any,
        events: EventSink | None,
        adapted: Callable[[BatchSpec], BatchSpec],
    ) -> None:
        """`inputs`: those of the flow, for a stage that reads them itself."""
        name = compiled.step.name
        own_events = None if events is None else StageEvents(name, events)
        self.compiled = compiled
        self.feed: Channel[Any] | None = Channel(_CAPACITY) if inputs is None else None
        self.agents = StageRunner(name, self.feed, own_events)
        spec = adapted(compiled.spec(inputs if self.feed is None else self.feed))
        self.setup = RunSetup.validate(spec, own_events, name, None if self.feed is None else compiled.names)

    def worker(self, then: FlowNode, text: str, total: int | None, callbacks: Callbacks) -> Worker:
        step = self.compiled.step
        if isinstance(step, Reduce):
            return ReduceNode(self.compiled, step, self.agents, then, callbacks)
        if self.feed is None:
            return MapInputs(step, text, self.agents, then, total)
        return MapNode(step, _shown(template_of(step.task).fields), self.agents, then)


def _chain(
    steps: Sequence[FlowStep], stages: Sequence[_Stage], sink: ResultNode, total: int | None, callbacks: Callbacks
) -> tuple[FlowNode, list[Worker]]:
    """The first node, and all that have agents."""
    left = list(stages)
    then: FlowNode = sink
    workers: list[Worker] = []
    for step in reversed(steps):
        match step:
            case Filter():
                then = FilterNode(step, left[-1].agents.name if left else "", then, callbacks)
            case Expand():
                then = ExpandNode(step, then, callbacks)
            case Map() | Reduce():
                worker = left.pop().worker(then, text_name(steps), total, callbacks)
                workers.append(worker)
                if not isinstance(worker, MapInputs):
                    then = worker
    return then, workers


async def _pump(source: JobSource, text: str, head: FlowNode, deadline: RunDeadline) -> None:
    """For a flow that does not begin with agents. Inputs that have not come by the deadline stay where they are."""
    count = 0
    if source.total is not None:
        await head.hear(ItemExpected(source.total))
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
        await head.hear(Item((count,), fields_of(value, text)))
        count += 1
    if source.total is None:
        await head.hear(ItemExpected(count))
    for missing in range(count, source.total or 0):  # there are fewer than their length said
        await head.hear(ItemDropped((missing,)))
    await head.hear(StageClosed())


async def _side_by_side(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Until all are done, or one has failed: then the others are called off."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            await asyncio.wait(tasks)  # a group that fails while it is left does not take its cancel() back (3.11)
    except BaseExceptionGroup as failures:
        if is_being_cancelled():
            raise asyncio.CancelledError from None
        raise aio.unwrap_group(failures, BatchAgentError) from None


def _result(sink: ResultNode, stages: Sequence[_Stage], callbacks: Callbacks) -> FlowResult:
    return FlowResult(sink.items, {stage.agents.name: stage.agents.report() for stage in stages}, callbacks.failed)


def _shown(paths: Sequence[str]) -> tuple[str, ...]:
    """The fields that paths begin with; a field may have a dot in its name."""
    return tuple(dict.fromkeys(name for path in paths for name in (path, root_of(path))))


class _Rest(AsyncIterator[Any]):
    """Inputs of which the first was looked at."""

    def __init__(self, source: JobSource) -> None:
        self._source = source

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._source.next()
