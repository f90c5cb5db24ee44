"""Runs with `fallback=`, in which the next backend runs the agents that the last one could not serve. Each backend has
a run of its own over the agents that are left, with its own checkpoint, model and prices. An agent continues its
conversation on the next backend; if that is impossible, and always for programs, it starts again with its first turn.
An agent that any backend has answered is never sent to another one, also after a resume. With `samples=`, each sample
of an input is an agent, so different backends may answer them."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..aio import exit_in_thread, now, ungrouped
from ..cluster.coordinator_address import FlowCoordinators, coordinator_of, flow_coordinators, run_id_of, stage_spec
from ..core.agent_config import AgentConfig, Job, SampleId, key_of_sample
from ..core.errors import BackendError, ErrorKind, PlanMismatch, SpecError
from ..core.events import FlowStarted, Notice
from ..core.facts import Fact
from ..core.options import Distributed, SpendingLimits
from ..core.options.backend_settings import BackendSettings, has_source
from ..core.options.fallback_entry import FALLBACK_PREFIX, FIRST_STAGE, fallback_names, parse_fallback
from ..core.program_runtime import Runtime
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentError, AgentResult
from ..core.run_failure import RunStopped
from ..core.spec import BatchSpec
from ..data import read_inputs_async, result_file_writer
from ..data.inputs import print_notice
from ..engine.result_stream import Delivery, ResultChannel
from ..lazy_imports import lazy_modules
from ..observe.sinks import StageEvents
from ..observe.text.text_format import plural
from ..scores.judge import is_judge
from ..scores.scorer import scorers_of
from .carried_conversation import CarryingStore, LeftConversation
from .complete_checkpoint import RecordedAnswers, recorded_answers
from .resource_opener import open_resources
from .resources import RunResources
from .runner import execute, work_on
from .setup import RunSetup, input_order

with lazy_modules(globals()):
    from ..backends import connect
    from ..cluster import handover, membership, presence

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
"""Failures that may not occur on another backend or model. Excludes answers that do not fit the schema, limits of the
run and bad inputs."""
_CHECK_SECONDS = 2.0
"""Time for a server to list its models before the run. A server that is not up yet is not waited for."""
_FILTERS = ("content_filter", "content management policy", "content policy")

if TYPE_CHECKING:
    from ..cluster.handover import BroughtConversations

Deliver = Callable[[AgentResult], Awaitable[None]]


class FallbackRuns:
    """The runs of a spec with `fallback`: one for its backend, and one for each entry."""

    def __init__(self, spec: BatchSpec, events: EventSink | None) -> None:
        """Raises SpecError."""
        if any(map(is_judge, scorers_of(spec.evaluation.score))):
            raise SpecError("fallback= does not work with a judge: judge the answers in a run of their own.")
        self._spec = spec
        self._events = events
        self.notify = print_notice if events is None else (lambda text: events.emit(Notice(text)))
        self.names = fallback_names(spec.model, spec.fallback)
        specs = specs_of(spec)
        self._setups = [
            RunSetup.validate(each, None if events is None else StageEvents(name, events))
            for name, each in zip(self.names, specs, strict=True)
        ]
        own = self._setups[0].tools
        self._repeatable = frozenset(tool.name for tool in own if tool.sharing.effect != "write")
        self.failed: dict[SampleId, AgentResult] = {}
        """Results of agents that the next backend runs again."""
        self.left: dict[SampleId, LeftConversation] = {}
        """Unfinished conversations of agents."""
        self.done: set[SampleId] = set()
        """Agents whose results are delivered."""
        self._spent: list[tuple[int, float]] = [(0, 0.0)] * len(specs)
        """Tokens and dollars spent by each backend. In a shared run, the coordinator has one account for all of
        them."""

    @property
    def is_shared(self) -> bool:
        return self._spec.distribution.store is not None

    async def drive(self, channel: ResultChannel) -> None:
        """Runs the backends one after the other, with results sent to the channel. Raises as a run does."""
        spec, began = self._spec, now()
        inputs = await self._inputs()
        samples = range(spec.evaluation.samples)
        channel.total = len(inputs) * len(samples)
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
            if self.is_shared and await stack.enter_async_context(self._presence()):
                setups = list(map(_without_retries, setups))
            recorded = [await recorded_answers(setup) for setup in setups]
            for at, known in enumerate(recorded):
                self.count(at, known.results.values())
            left = {(index, sample) for index in range(len(inputs)) for sample in samples}
            left.difference_update(*(known.results for known in recorded[1:]))
            if not left <= recorded[0].results.keys():
                await self._check_models()
            for at, (setup, known) in enumerate(zip(setups, recorded, strict=True)):
                todo = left.union(self.failed, known.results).difference(self.done)
                if todo:
                    limited = self._limited(at, setup, now() - began)
                    left = await _Phase(self, at, limited, known, deliver, channel).run(todo)
            await self.deliver_failed(deliver)

    async def _check_models(self) -> None:
        """Raises SpecError for a fallback whose server does not have its model. Without the check, the error would end
        a run that has already cost money."""
        for name, setup in zip(self.names[1:], self._setups[1:], strict=True):
            backend = setup.spec.backend
            if isinstance(backend, BackendSettings) or (isinstance(backend, str) and not has_source(backend)):
                try:
                    await connect.check_model(backend, setup.spec.model, _CHECK_SECONDS)
                except SpecError as error:
                    raise SpecError(f"{name}: {error}") from error

    async def work(self) -> None:
        """Works for a shared run that another process submitted, on all of its backends, until no caller is left.
        Raises as `runner.work` does. If a backend is unavailable here, other workers use it; this raises only if all
        are."""
        if self._events is not None:
            self._events.emit(FlowStarted(tuple(self.names)))
        outages: list[Exception] = []
        with ungrouped():
            async with asyncio.TaskGroup() as group:
                for at in range(len(self._setups)):
                    group.create_task(self._work_at(at, outages))
        if len(outages) == len(self._setups):
            raise outages[-1]

    async def _work_at(self, at: int, outages: list[Exception]) -> None:
        setup = replace(self._setups[at], input_fields=())
        try:
            async with self.open_shared(at, setup, submits=False) as [run]:
                await work_on(replace(run, store=CarryingStore(run.store, brought_conversations(run).facts)))
        except (SpecError, BackendError, RunStopped) as error:
            if not _is_outage(error):
                raise
            outages.append(error)
            self.notify(f"{self.names[at]} is not used any more by this worker: {error}")

    def open_shared(
        self, at: int, setup: RunSetup, *, submits: bool
    ) -> AbstractAsyncContextManager[list[RunResources]]:
        """Opens the resources for one backend of a shared run. The backends share slots, tool calls and the budget,
        like the stages of a flow."""
        coordinator, stages = self._coordinators()
        return open_resources([setup], setup.events, coordinator, stages=[stages[at]], submits=submits)

    def _coordinators(self) -> FlowCoordinators:
        found = flow_coordinators([setup.spec for setup in self._setups])
        assert found is not None
        return found

    @asynccontextmanager
    async def _presence(self) -> AsyncIterator[bool]:
        """Keeps workers while this process moves from one backend to the next. Yields whether there are other callers:
        agents that fail on one backend are then left to the next one, and not run again here."""
        coordinator, ttl = self._coordinators()[0], self._spec.distribution.lease
        await coordinator.open()
        try:
            callers = presence.ClientPresence(coordinator.documents, ttl)
            is_joined = await callers.any_present()
            async with callers.present(membership.worker_name()):
                yield is_joined
        finally:
            await coordinator.aclose()

    async def deliver_failed(self, deliver: Deliver) -> None:
        for agent in sorted(self.failed):
            await deliver(self.failed.pop(agent))

    def moves_on(self, result: AgentResult) -> bool:
        """Whether another backend may succeed where this one failed."""
        return result.error is not None and _is_of_backend(result.error)

    def may_start_again(self, agent: SampleId) -> bool:
        """Whether an agent may start again with its first turn: not if its failed attempt may have changed something
        with tools. What MCP tools do is unknown, so they count as changes. A program starts again in a new copy of its
        directory."""
        if self._spec.runtime is not None:
            return True
        failed = self.failed.get(agent)
        return failed is None or all(call.name in self._repeatable for call in failed.tool_calls)

    def count(self, at: int, results: Iterable[AgentResult]) -> None:
        tokens, usd = self._spent[at]
        for result in results:
            tokens += result.usage.input + result.usage.output
            usd += result.cost or 0.0
        self._spent[at] = tokens, usd

    def _limited(self, at: int, setup: RunSetup, seconds: float) -> RunSetup:
        """The setup, limited to the budget and time that the other backends have left."""
        spending = setup.spec.spending
        others = [spent for number, spent in enumerate(self._spent) if number != at and not self.is_shared]
        rest = SpendingLimits(
            max_total_tokens=_rest(spending.max_total_tokens, sum(tokens for tokens, _ in others)),
            max_usd=_rest(spending.max_usd, sum(usd for _, usd in others)),
            deadline=_rest(spending.deadline, seconds if at else 0.0),
            prices=spending.prices,
        )
        return replace(setup, spec=replace(setup.spec, spending=rest))

    async def _inputs(self) -> Sequence[Any]:
        """All inputs, in a list, because each backend may have to read them."""
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
        self._delivered: set[SampleId] = set()
        self._store: CarryingStore | None = None

    async def run(self, todo: Set[SampleId]) -> set[SampleId]:
        """Returns the agents that have no result yet. Raises what a run raises if no other backend is left."""
        runs = self._runs
        try:
            await self._execute(todo)
        except (SpecError, BackendError, RunStopped) as error:
            if runs.is_shared and not self._is_last and _is_outage(error):
                await self._withdraw(error)
            missing = set(todo).difference(self._delivered)
            if known := missing.intersection(self._known.results):  # the server was not needed for these
                await self._deliver_known(known)
            missing -= self._delivered
            if not self._is_last and not _is_outage(error):
                raise
            if self._is_last and missing.difference(runs.failed):
                await runs.deliver_failed(self._deliver)
                if not runs.done:
                    raise
                raise RunStopped(_kind_of(error), f"{runs.names[self._at]}: {error}") from error
            then = "" if self._is_last else f" {plural(len(missing), 'agent')} left for {runs.names[self._at + 1]}."
            runs.notify(f"{runs.names[self._at]} is not used any more: {error}{then}")
        left = set(todo).difference(self._delivered, runs.failed)
        if not self._is_last and (leaving := left.union(runs.failed).intersection(todo)):
            await self._leave(leaving)
        return left

    async def _execute(self, todo: Set[SampleId]) -> None:
        setup, runs = self._setup, self._runs
        if self._known.plan is not None and todo <= self._known.results.keys():
            await self._deliver_known(todo)
            return
        opened = (
            runs.open_shared(self._at, setup, submits=True) if runs.is_shared else open_resources([setup], setup.events)
        )
        async with opened as [run]:
            todo, brought = self._brought(run, todo)
            if runs.is_shared:
                shared = brought_conversations(run)
                await shared.save(brought)
                self._store = CarryingStore(run.store, shared.facts)
            else:
                self._store = CarryingStore(run.store, _found_in(brought))
            try:
                await self._execute_agents(replace(run, store=self._store), todo)
            finally:
                await self._keep(run, todo)

    async def _deliver_known(self, todo: Set[SampleId]) -> None:
        """Delivers recorded answers, without a server."""
        setup, known = self._setup, self._known
        assert known.plan is not None
        if self._runs.is_shared:
            setup = replace(setup, spec=replace(setup.spec, distribution=Distributed()))
        async with open_resources([setup], setup.events, recorded=[known.plan]) as [run]:
            await self._execute_agents(replace(run, store=known.store) if self._runs.is_shared else run, todo)

    async def _execute_agents(self, run: RunResources, todo: Set[SampleId]) -> None:
        if not todo:
            return
        channel, only, without = self._channel, None, set[SampleId]()
        if len(todo) != channel.total:
            only, samples = self._order(run), range(self._setup.spec.evaluation.samples)
            without = {(index, sample) for index in only for sample in samples}.difference(todo)
        run = replace(run, setup=replace(run.setup, compared_model=run.plan.config.model), agents=len(todo))
        try:
            await execute(run, self._put, only=only, without=without)
        finally:
            channel.scheduling, channel.report = run.scheduling, run.measured_report

    def _order(self, run: RunResources) -> list[int]:
        """All inputs in their order of execution. Equal inputs differ by the number of earlier ones, so inputs without
        an agent here count too: each keeps its key, whatever agents have moved to another backend."""
        return list(input_order(run.plan.layout, run.inputs) or range(len(self._setup.spec.inputs)))

    async def _withdraw(self, error: Exception) -> None:
        """Ends the agents that no worker of a shared run has begun, waits for the others, and reads their answers."""
        coordinator, spec = coordinator_of(self._setup.spec), self._setup.spec
        assert coordinator is not None
        await coordinator.open()
        try:
            await handover.withdraw_agents(
                coordinator, AgentError(_kind_of(error), str(error)), spec.distribution.lease
            )
        finally:
            await coordinator.aclose()
        self._known = await recorded_answers(self._setup)

    def _brought(self, run: RunResources, todo: Set[SampleId]) -> tuple[Set[SampleId], dict[str, Sequence[Fact]]]:
        """The agents that this backend may run, and the facts that they carry from another one, by key."""
        runs = self._runs
        facts, allowed, continued = dict[SampleId, Sequence[Fact]](), set(todo), 0
        for agent in todo & (runs.left.keys() | runs.failed.keys()):
            carried, restart = self._facts_from(run, agent)
            continued += bool(carried)
            if found := carried or restart:
                facts[agent] = found
            if not carried and not runs.may_start_again(agent):
                allowed.discard(agent)
        if continued:
            runs.notify(f"{runs.names[self._at]} continues the conversations of {plural(continued, 'agent')}.")
        keys = self._keys(run, facts.keys()) if facts else {}
        return allowed, {keys[agent]: found for agent, found in facts.items() if agent in keys}

    def _keys(self, run: RunResources, todo: Set[SampleId]) -> dict[SampleId, str]:
        """Keys of these agents. Those that have none, and those with images, are left out."""
        inputs, order = self._setup.spec.inputs, self._order(run)
        keys = dict(zip(order, run.plan.keys(inputs[index] for index in order), strict=True))
        return {agent: key_of_sample(key, agent[1]) for agent in todo if (key := keys[agent[0]])}

    def _facts_from(self, run: RunResources, agent: SampleId) -> tuple[Sequence[Fact], Sequence[Fact]]:
        """Facts with which an agent continues, and facts with which it starts again."""
        index = agent[0]
        left, value = self._runs.left.get(agent), self._setup.spec.inputs[index]
        if left is None or self._setup.spec.runtime is not None or run.plan.reads_images(value):
            return (), ()
        job = Job(index, "", value, run.plan.layout.task(index, value)[0])
        return left.facts_for(run.plan.config, run.server.traits.name, job), left.facts_of_restart(job)

    async def _keep(self, run: RunResources, todo: Set[SampleId]) -> None:
        """Keeps, for the next backend, the conversations of agents of this process without a result here."""
        if self._is_last or self._runs.is_shared or self._store is None:
            return
        for agent in todo:
            if agent in self._runs.failed or agent not in self._delivered:
                self._left(agent, run.plan.config, await self._store.facts_of(agent))

    async def _leave(self, leaving: Set[SampleId]) -> None:
        """Keeps the conversations from other processes, or from earlier runs whose server is gone."""
        known = await recorded_answers(self._setup) if self._runs.is_shared else self._known
        for agent in [each for each in known.unfinished if each in leaving]:
            if known.config is not None and (self._runs.is_shared or agent not in self._runs.left):
                self._left(agent, known.config, known.unfinished[agent])

    def _left(self, agent: SampleId, config: AgentConfig, facts: Sequence[Fact]) -> None:
        left = LeftConversation(config, facts)
        if left.has_turns:
            self._runs.left[agent] = left

    async def _put(self, result: AgentResult) -> None:
        runs, agent = self._runs, (result.index, result.sample or 0)
        self._delivered.add(agent)
        if agent not in self._known.results:
            runs.count(self._at, [result])
        if not self._is_last and runs.moves_on(result):
            runs.failed[agent] = result
            return
        if self._store is not None:
            self._store.forget(agent)
        runs.done.add(agent)
        earlier = runs.failed.pop(agent, None)
        await self._deliver(result if result.ok or earlier is None else _both(earlier, result))


def specs_of(spec: BatchSpec) -> list[BatchSpec]:
    """The run of the spec's own backend, and of each fallback: a model on the same backend, a backend, or both."""
    folder, run_id = spec.checkpoint_dir, run_id_of(spec)
    alone = replace(spec, fallback=())
    found = [stage_spec(alone, run_id, FIRST_STAGE)]
    for number, entry in enumerate(spec.fallback, 1):
        model, backend = parse_fallback(entry)
        own = None if folder is None else Path(folder) / f"{FALLBACK_PREFIX}{number}"
        if backend is None:
            same = spec.backend
            backend = replace(same, model=None) if isinstance(same, BackendSettings) else same
        stage = stage_spec(alone, run_id, f"{FALLBACK_PREFIX}{number}")
        runtime = _without_backend(spec.runtime)
        found.append(replace(stage, model=model, backend=backend, checkpoint_dir=own, runtime=runtime))
    return found


def _without_backend(runtime: Runtime | None) -> Runtime | None:
    """The runtime for another backend than its own. Raises SpecError."""
    if runtime is None or (runtime.backend is None and runtime.model is None):
        return runtime
    if not is_dataclass(runtime):
        raise SpecError(
            f"fallback= needs the backend and the model as options of the run: {runtime!r} has its own, which would be "
            "used for all backends."
        )
    return cast("Runtime", replace(runtime, backend=None, model=None))


def _is_of_backend(error: AgentError) -> bool:
    if error.kind is ErrorKind.BAD_REQUEST:
        return any(text in error.message.lower() for text in _FILTERS)
    return error.kind in _KINDS


def _is_outage(error: Exception) -> bool:
    """Whether the next backend may succeed. SpecError: the server does not have the model."""
    if isinstance(error, BackendError | RunStopped):
        return error.kind in _KINDS
    return isinstance(error, SpecError) and not isinstance(error, PlanMismatch)


def _kind_of(error: Exception) -> ErrorKind:
    return error.kind if isinstance(error, BackendError | RunStopped) else ErrorKind.NOT_FOUND


def _both(earlier: AgentResult, last: AgentResult) -> AgentResult:
    """The failure of the last backend, which also names the failure of the one before."""
    assert earlier.error is not None
    assert last.error is not None
    message = f"{last.error.message} (Before that, {earlier.model or 'the first model'}: {earlier.error.message})"
    return replace(last, error=replace(last.error, message=message))


def brought_conversations(run: RunResources) -> "BroughtConversations":
    assert run.cluster is not None
    return handover.BroughtConversations(run.cluster.coordinator.documents)


def _found_in(brought: Mapping[str, Sequence[Fact]]) -> Callable[[str], Awaitable[Sequence[Fact]]]:
    async def facts(key: str) -> Sequence[Fact]:
        return brought.get(key, ())

    return facts


def _without_retries(setup: RunSetup) -> RunSetup:
    return replace(setup, spec=replace(setup.spec, retry=replace(setup.spec.retry, retry_failed=False)))


def _rest(limit: Any, spent: float) -> Any:
    return None if limit is None else max(limit - spent, type(limit)(1) if isinstance(limit, int) else 1e-9)
