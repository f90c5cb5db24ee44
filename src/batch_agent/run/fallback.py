"""Runs with `fallback=`: agents that their backend cannot serve are run by the next one.

Each backend is a run of its own over the inputs that are left, with its own checkpoint, model and prices. An agent that
changes over starts again with its first turn: a conversation belongs to one model, with its tool mode, dialect and
thoughts. Inputs that any backend has answered are not sent to another one, also not after a resume."""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..aio import now
from ..core.errors import BackendError, ErrorKind, PlanMismatch, SpecError
from ..core.events import FlowStarted, Notice
from ..core.options import Rows, SpendingLimits
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
from ..observe.text.formatting import plural
from ..scores.judge import is_judge
from ..scores.scorer import scorers_of
from .complete_checkpoint import RecordedAnswers, recorded_answers
from .resource_opener import open_resources
from .runner import execute
from .setup import RunSetup

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
        self._spent: list[tuple[int, float]] = [(0, 0.0)] * len(specs)
        """Tokens and dollars of each backend."""

    async def drive(self, channel: ResultChannel) -> None:
        """Runs them one after the other; the results go to the channel. Raises as a run does."""
        spec, began = self._spec, now()
        inputs = await self._inputs()
        channel.total = len(inputs)
        rows = Rows(key=spec.rows.key)
        setups = [
            replace(setup, spec=replace(setup.spec, inputs=inputs, rows=rows, out=None, on_result=None))
            for setup in self._setups
        ]
        if self._events is not None:
            self._events.emit(FlowStarted(tuple(self.names)))
        async with AsyncExitStack() as stack:
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
        """Whether the next backend may run an agent again: not if it may have changed something with its
        tools. What tools of MCP servers do is unknown."""
        if result.error is None or not _is_of_backend(result.error):
            return False
        return all(call.name in self._repeatable for call in result.tool_calls)

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
            run = replace(run, setup=replace(run.setup, compared_model=run.plan.config.model), agents=len(todo))
            try:
                await execute(run, self._put, only=None if len(todo) == channel.total else sorted(todo))
            finally:
                channel.scheduling, channel.report = run.scheduling, run.measured_report

    async def _put(self, result: AgentResult) -> None:
        runs, index = self._runs, result.index
        self._delivered.add(index)
        if index not in self._known.results:
            runs.count(self._at, [result])
        if not self._is_last and runs.moves_on(result):
            runs.failed[index] = result
            return
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
