"""Runs with `fallback=`: agents that their backend cannot serve are run by the next one.

Each backend is a run of its own over the inputs that are left, with its own checkpoint, model and prices. An agent that
changes over goes on with its conversation, unless the other backend cannot continue it: then it starts again with its
first turn. Inputs that any backend has answered are not sent to another one, also not after a resume."""

import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..aio import exit_in_thread, now
from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind, PlanMismatch, SpecError
from ..core.events import FlowStarted, Notice
from ..core.facts import Fact
from ..core.options import SpendingLimits
from ..core.options.backend_settings import BackendSettings
from ..core.protocols import EventSink
from ..core.results import AgentError, AgentResult
from ..core.run_failure import RunStopped
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from ..data import read_inputs_async, result_file_writer
from ..data.inputs import print_notice
from ..engine.result_stream import Delivery, ResultChannel
from ..observe.sinks import StageEvents
from ..observe.text.text_format import plural
from ..scores.judge import is_judge
from ..scores.scorer import scorers_of
from .carried_conversation import CarryingStore, LeftConversation
from .complete_checkpoint import RecordedAnswers, recorded_answers
from .resource_opener import open_resources
from .resources import RunResources
from .runner import execute
from .setup import RunSetup, input_order

FALLBACK_PREFIX = "fallback-"
"""Begins the name of the directory of each fallback, in the checkpoint of a run."""
_KINDS = frozenset(
    {
        ErrorKind.UNAVAILABLE,
        ErrorKind.CONNECTION,
        ErrorKind.SERVER,
        ErrorKind.TLS,
        ErrorKind.TURN_TIMEOUT,
        ErrorKind.RATE_LIMITED,
        ErrorKind.CAPACITY,
        ErrorKind.AUTH,
        ErrorKind.NOT_FOUND,
        ErrorKind.CONTEXT_OVERFLOW,
        ErrorKind.REFUSED,
    }
)
"""Failures that another backend or model may not have. Answers that do not fit the schema, limits of the run and bad
inputs are not among them."""
_FALLBACK_NAME = re.compile(r"fallback (\d+) \(")
_FILTERS = ("content_filter", "content management policy", "content policy")

Deliver = Callable[[AgentResult], Awaitable[None]]


class FallbackRuns:
    """One run for the backend of a spec and for each of its `fallback`."""

    def __init__(self, spec: BatchSpec, events: EventSink | None) -> None:
        """Raises SpecError."""
        if any(map(is_judge, scorers_of(spec.evaluation.score))):
            raise SpecError("fallback= does not work with a judge: judge the answers in a run of their own.")
        self._spec = spec
        self._events = events
        self.notify = print_notice if events is None else (lambda text: events.emit(Notice(text)))
        self.names = _names(spec)
        specs = specs_of(spec)
        self._setups = [
            RunSetup.validate(each, None if events is None else StageEvents(name, events))
            for name, each in zip(self.names, specs, strict=True)
        ]
        own = self._setups[0].tools
        self._repeatable = frozenset(tool.name for tool in own if tool.sharing.effect != "write")
        self.failed: dict[int, AgentResult] = {}
        """Results of agents that the next backend runs again, by the index of their input."""
        self.left: dict[int, LeftConversation] = {}
        """Conversations of agents that a backend did not finish, by the index of their input."""
        self._spent: list[tuple[int, float]] = [(0, 0.0)] * len(specs)
        """Tokens and dollars of each backend."""

    async def drive(self, channel: ResultChannel) -> None:
        """Runs them one after the other; the results go to the channel. Raises as a run does."""
        spec, began = self._spec, now()
        inputs = await self._inputs()
        channel.total = len(inputs)
        rows = spec.rows.of_read_inputs()
        setups = [
            replace(setup, spec=replace(setup.spec, inputs=inputs, rows=rows, out=None, on_result=None))
            for setup in self._setups
        ]
        async with AsyncExitStack() as stack:
            if isinstance(self._events, AbstractContextManager):  # each backend gets it as that of a stage
                self._events.__enter__()
                stack.push_async_exit(partial(exit_in_thread, self._events))
            if self._events is not None:
                self._events.emit(FlowStarted(tuple(self.names)))
            write = None if spec.out is None else await stack.enter_async_context(result_file_writer(spec.out))
            deliver = Delivery(channel.put, spec.on_result, write, self._events).deliver
            recorded = [await recorded_answers(setup) for setup in setups]
            for at, known in enumerate(recorded):
                self.count(at, known.results.values())
            left = set(range(len(inputs))).difference(*(known.results for known in recorded[1:]))
            for at, (setup, known) in enumerate(zip(setups, recorded, strict=True)):
                todo = left.union(self.failed, known.results)
                if todo:
                    limited = self._limited(at, setup, now() - began)
                    left = await _Phase(self, at, limited, known, deliver, channel).run(todo)
            await self.deliver_failed(deliver)

    async def deliver_failed(self, deliver: Deliver) -> None:
        for index in sorted(self.failed):
            await deliver(self.failed.pop(index))

    def moves_on(self, result: AgentResult) -> bool:
        """Whether another backend may do better."""
        return result.error is not None and _is_of_backend(result.error)

    def may_start_again(self, index: int) -> bool:
        """Whether an agent may start with its first turn: not if it has failed, and may have changed something with its
        tools. What tools of MCP servers do is unknown."""
        failed = self.failed.get(index)
        return failed is None or all(call.name in self._repeatable for call in failed.tool_calls)

    def count(self, at: int, results: Iterable[AgentResult]) -> None:
        tokens, usd = self._spent[at]
        for result in results:
            tokens += result.usage.input + result.usage.output
            usd += result.cost or 0.0
        self._spent[at] = tokens, usd

    def _limited(self, at: int, setup: RunSetup, seconds: float) -> RunSetup:
        """The setup with what the others leave of the budget and of the time."""
        spending = setup.spec.spending
        others = [spent for number, spent in enumerate(self._spent) if number != at]
        rest = SpendingLimits(
            max_total_tokens=_rest(spending.max_total_tokens, sum(tokens for tokens, _ in others)),
            max_usd=_rest(spending.max_usd, sum(usd for _, usd in others)),
            deadline=_rest(spending.deadline, seconds if at else 0.0),
            prices=spending.prices,
        )
        return replace(setup, spec=replace(setup.spec, spending=rest))

    async def _inputs(self) -> Sequence[Any]:
        """All inputs, which each backend may have to read."""
        found = await read_inputs_async(self._spec.inputs, self._spec.rows, self.notify)
        if isinstance(found, Sequence):
            return found
        return [each async for each in found] if isinstance(found, AsyncIterable) else list(found)


class _Phase:
    """The run of one backend."""

    def __init__(
        self,
        runs: FallbackRuns,
        at: int,
        setup: RunSetup,
        known: RecordedAnswers,
        deliver: Deliver,
        channel: ResultChannel,
    ) -> None:
        self._runs = runs
        self._at = at
        self._setup = setup
        self._known = known
        self._deliver = deliver
        self._channel = channel
        self._is_last = at == len(runs.names) - 1
        self._delivered: set[int] = set()
        self._store: CarryingStore | None = None

    async def run(self, todo: Set[int]) -> set[int]:
        """Returns the inputs that have no result yet. Raises what a run raises if no other backend is left."""
        runs = self._runs
        try:
            await self._execute(todo)
        except (SpecError, BackendError, RunStopped) as error:
            missing = set(todo).difference(self._delivered)
            if known := missing.intersection(self._known.results):  # the server was not needed for these
                await self._execute(known)
            missing -= self._delivered
            if not self._is_last and not _is_outage(error):
                raise
            if self._is_last and missing.difference(runs.failed):
                await runs.deliver_failed(self._deliver)
                raise
            then = "" if self._is_last else f" {plural(len(missing), 'input')} left for {runs.names[self._at + 1]}."
            runs.notify(f"{runs.names[self._at]} is not used any more: {error}{then}")
        return set(todo).difference(self._delivered, runs.failed)

    async def _execute(self, todo: Set[int]) -> None:
        setup, channel = self._setup, self._channel
        plans = [self._known.plan] if self._known.plan is not None and todo <= self._known.results.keys() else None
        async with open_resources([setup], setup.events, recorded=plans) as [run]:
            if plans is None:
                todo, only, brought = self._brought(run, todo)
                self._store = CarryingStore(run.store, brought)
                run = replace(run, store=self._store)
            else:
                only = self._only(todo)
            if not todo:
                return
            run = replace(run, setup=replace(run.setup, compared_model=run.plan.config.model), agents=len(todo))
            try:
                await execute(run, self._put, only=only)
            except (BackendError, RunStopped):
                await self._leave(run, todo)
                raise
            finally:
                channel.scheduling, channel.report = run.scheduling, run.measured_report
            await self._leave(run, todo)

    def _only(self, todo: Set[int]) -> list[int] | None:
        return None if len(todo) == self._channel.total else sorted(todo)

    def _brought(
        self, run: RunResources, todo: Set[int]
    ) -> tuple[Set[int], list[int] | None, dict[str, Sequence[Fact]]]:
        """The inputs that this backend may run, in their order if they are not all, and the facts that their agents
        bring along from another one."""
        runs, plan, inputs = self._runs, run.plan, self._setup.spec.inputs
        facts, allowed, continued = dict[int, Sequence[Fact]](), set(todo), 0
        for index in todo & (runs.left.keys() | runs.failed.keys()):
            carried, restart = self._facts_from(run, index)
            continued += bool(carried)
            if found := carried or restart:
                facts[index] = found
            if not carried and not runs.may_start_again(index):
                allowed.discard(index)
        if continued:
            runs.notify(f"{runs.names[self._at]} continues the conversations of {plural(continued, 'agent')}.")
        only = self._only(allowed)
        order = list(only or input_order(plan.layout, run.inputs) or range(len(inputs))) if facts else []
        keys = plan.keys(inputs[index] for index in order)
        brought = {key: facts[index] for index, key in zip(order, keys, strict=True) if key and index in facts}
        return allowed, only, brought

    def _facts_from(self, run: RunResources, index: int) -> tuple[Sequence[Fact], Sequence[Fact]]:
        """Facts with which an agent goes on, and those with which it starts again."""
        left, value = self._runs.left.get(index), self._setup.spec.inputs[index]
        if left is None or run.plan.reads_images(value):
            return (), ()
        job = Job(index, "", value, run.plan.layout.task(index, value)[0])
        return left.facts_for(run.plan.config, run.server.traits.name, job), left.facts_of_restart(job)

    async def _leave(self, run: RunResources, todo: Set[int]) -> None:
        """Keeps the conversations of agents that have no result of this backend, for the next one."""
        runs = self._runs
        if self._is_last or self._store is None:
            return
        for index in todo:
            if index in runs.failed or index not in self._delivered:
                left = LeftConversation(run.plan.config, await self._store.facts_of(index))
                if left.has_turns:
                    runs.left[index] = left

    async def _put(self, result: AgentResult) -> None:
        runs, index = self._runs, result.index
        self._delivered.add(index)
        if index not in self._known.results:
            runs.count(self._at, [result])
        if not self._is_last and runs.moves_on(result):
            runs.failed[index] = result
            return
        if self._store is not None:
            self._store.forget(index)
        earlier = runs.failed.pop(index, None)
        await self._deliver(result if result.ok or earlier is None else _both(earlier, result))


def specs_of(spec: BatchSpec) -> list[BatchSpec]:
    """The run of the spec's own backend, and of each fallback: a model on the same backend, a backend, or both."""
    first = replace(spec, fallback=())
    folder = spec.checkpoint_dir
    found = [first]
    for number, entry in enumerate(spec.fallback, 1):
        model, backend = parse_fallback(entry)
        own = None if folder is None else Path(folder) / f"{FALLBACK_PREFIX}{number}"
        if backend is None:
            same = spec.backend
            backend = replace(same, model=None) if isinstance(same, BackendSettings) else same
        found.append(replace(first, model=model, backend=backend, checkpoint_dir=own))
    return found


def parse_fallback(entry: Any) -> tuple[str | None, Any]:
    """The model and the backend of an entry of `fallback`; None for the server's only model, and for the same
    backend."""
    if isinstance(entry, BackendSettings):
        return entry.model, entry
    if not isinstance(entry, str):
        return None, entry
    name, mark, url = entry.partition("=")
    if mark and "://" in url and "://" not in name:
        return name, url
    return (None, entry) if "://" in entry else (entry, None)


def fallback_folder(name: str) -> str | None:
    """Directory of a fallback in the checkpoint, by its name in the report; None for the run's own backend."""
    found = _FALLBACK_NAME.match(name)
    return None if found is None else f"{FALLBACK_PREFIX}{found[1]}"


def _names(spec: BatchSpec) -> list[str]:
    """Names of the runs in the report."""
    names = [spec.model or "first"]
    for number, entry in enumerate(spec.fallback, 1):
        model, backend = parse_fallback(entry)
        url = backend.label if isinstance(backend, BackendSettings) else backend
        names.append(f"fallback {number} ({model or (public_url(url) if isinstance(url, str) else 'backend')})")
    return names


def _is_of_backend(error: AgentError) -> bool:
    if error.kind is ErrorKind.BAD_REQUEST:
        return any(text in error.message.lower() for text in _FILTERS)
    return error.kind in _KINDS


def _is_outage(error: Exception) -> bool:
    """Whether the next backend may do better. SpecError: the server has no such model."""
    if isinstance(error, BackendError | RunStopped):
        return error.kind in _KINDS
    return isinstance(error, SpecError) and not isinstance(error, PlanMismatch)


def _both(earlier: AgentResult, last: AgentResult) -> AgentResult:
    """The failure of the last backend, with that of the one before."""
    assert earlier.error is not None
    assert last.error is not None
    message = f"{last.error.message} (Before that, {earlier.model or 'the first model'}: {earlier.error.message})"
    return replace(last, error=replace(last.error, message=message))


def _rest(limit: Any, spent: float) -> Any:
    return None if limit is None else max(limit - spent, type(limit)(1) if isinstance(limit, int) else 1e-9)
