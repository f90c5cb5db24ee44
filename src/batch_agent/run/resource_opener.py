"""Opens the resources of runs: store, backend, admission, budget and tools, each once."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..aio import RunDeadline, exit_in_thread, startup_deadline
from ..core.coordinator import Coordinator
from ..core.errors import BackendError, SpecError
from ..core.events import ToolsUsed
from ..core.fast_dataclass import dataclass
from ..core.protocols.backend import Backend, CollectsRequests, Traits
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import KeepsSubmissions, Store
from ..core.protocols.tool_set import ToolSet
from ..core.requests import NO_USAGE
from ..core.run_reports import Finding, PrefixReport
from ..core.spec import BatchSpec
from ..engine.admission_setup import measure_chars_per_token
from ..engine.gc_thresholds import relaxed_gc
from ..engine.job_source import JobSource
from ..engine.long_inputs.context_window import open_window
from ..engine.summarizer import Summarizer
from ..lazy_imports import lazy_modules
from ..observe.sinks import request_observer
from ..plan.compile import PLAIN, Plan, prefix_chars
from ..plan.layout import CHARS_PER_TOKEN, Layout
from ..store.memory_store import NoStore
from .admissions import Admissions
from .complete_checkpoint import ReadOnlyStore, recall_complete, recorded_stage, without_mark
from .lane_backends import batch_lane, batch_of_auto, lane_stats, spending_outlook, warn_of_batches
from .plan_check import check_plan, is_same_question
from .resources import RunResources, placeable
from .server_backends import ServerBackends
from .setup import RunSetup, check_lane, check_tokens
from .user_changes import UserChanges

with lazy_modules(globals()):
    from .. import tools as tool_package
    from ..cluster import cluster_session
    from ..plan import prefix_report
    from ..store import sqlite
    from . import run_budget

if TYPE_CHECKING:
    from ..cluster.cluster_session import ClusterSession
    from ..schedule.reference_model import ReadRecorder
    from ..tools import Tool, ToolExecutor, ToolProvider
    from .run_budget import RunBudget


@asynccontextmanager
async def open_resources(
    setups: Sequence[RunSetup],
    events: EventSink | None,
    coordinator: Coordinator | None = None,
    *,
    stages: Sequence[Coordinator] = (),
    deadline: RunDeadline | None = None,
    submits: bool = True,
    recorded: Sequence[Mapping[str, Any]] | None = None,
) -> AsyncIterator[list[RunResources]]:
    """Resources of concurrent runs, one for each setup. Agents of later runs have priority.

    `events` receives the events that concern all of them. `coordinator`: of a distributed run, then the only one,
    or of a distributed flow, whose `stages` have their own; `submits`: False for a worker of a run that another process
    submitted. `deadline`: of a flow, which applies it to
    the opening itself. `recorded`: marked plans of complete checkpoints; then no server and no tool is opened. The only
    request that is sent tests whether a server supports tools; it counts against the budget. Raises SpecError,
    BackendError, StoreError, and RunStopped at the deadline."""
    async with AsyncExitStack() as stack:
        limit = deadline or RunDeadline(setups[0].spec.spending.deadline)
        opener = _Opener(setups, stack, limit)
        if deadline is not None or limit.at is None:
            opened = await opener.open(events, coordinator, stages, submits, recorded)
        else:
            with startup_deadline(limit):
                async with limit.limit():
                    opened = await opener.open(events, coordinator, stages, submits, recorded)
        yield opened


@asynccontextmanager
async def open_preview(setup: RunSetup) -> AsyncIterator[RunResources]:
    """Backend, tools and plan of a run for inspection, without store, budget and tool executor. Raises SpecError and
    BackendError."""
    async with AsyncExitStack() as stack:
        live = setup
        if setup.spec.lane in ("batch", "auto"):  # batches need a checkpoint, and nothing is submitted here
            live = replace(setup, spec=replace(setup.spec, lane="standard"))
        opener = _Opener([live], stack, RunDeadline(None))
        opened = await opener.open_run(live, *await setup.layout_inputs(), NoStore())
        check_lane(setup.spec, opened.server.traits)
        yield opened


async def offline_plan(
    setup: RunSetup, stack: AsyncExitStack, traits: Traits
) -> "tuple[JobSource, Plan, Sequence[Tool]]":
    """Inputs, plan and tools of a run on a server with these traits, which is not connected to. Providers of tools are
    started. Raises SpecError."""
    inputs, layout = await setup.layout_inputs()
    tools = await _Opener([setup], stack, RunDeadline(None)).all_tools(setup)
    return inputs, setup.compile(tools, layout, traits, None), tools


@dataclass(frozen=True, slots=True)
class _RunServer:
    """The server of one run, and the plan for it."""

    plan: Plan
    server: Backend
    tools: "Sequence[Tool]" = ()
    batch: Backend | None = None
    """Backend for batch requests, in a run that chooses a lane for each request."""
    chars_per_token: float | None = None
    """Measured; None if the server does not count tokens."""
    is_complete: bool = False
    """A complete checkpoint stands in for the server."""


class _Opener:
    """Opens each resource once; the stack closes them."""

    def __init__(self, setups: Sequence[RunSetup], stack: AsyncExitStack, deadline: RunDeadline) -> None:
        self._setups = setups
        self._stack = stack
        self._deadline = deadline
        self._events: EventSink | None = None
        self._cluster: ClusterSession | None = None
        self._budget: RunBudget | None = None
        self._backends = ServerBackends(setups, stack)
        self._admissions = Admissions(setups, stack)
        self._changes = UserChanges(setups[0], stack, deadline)
        self._provided: dict[int, Sequence[Tool]] = {}

    async def open(
        self,
        events: EventSink | None,
        coordinator: Coordinator | None,
        stages: Sequence[Coordinator],
        submits: bool,
        recorded: Sequence[Mapping[str, Any]] | None,
    ) -> list[RunResources]:
        setups, stack = self._setups, self._stack
        layouts = [await setup.layout_inputs() for setup in setups]
        stack.enter_context(relaxed_gc())
        self._backends.trace_requests = None if events is None else request_observer(events)
        if isinstance(events, AbstractContextManager):
            events.__enter__()
            stack.push_async_exit(partial(exit_in_thread, events))
        if coordinator is not None:
            flow = self._cluster = await self._join_all(coordinator, stages, events, submits=submits)
            events = events if stages else flow.events
        self._events = events
        self._admissions = Admissions(setups, stack, events, self._cluster)
        if self._cluster is None:
            stores: list[Store] = [await _open_store(each.spec, stack) for each in setups]
        else:
            stores = [each.store for each in self._cluster.stages]
        if recorded is not None:
            stores = list(map(ReadOnlyStore, stores))
        spending = setups[0].spec.spending
        if self._cluster is not None:
            spending = await self._changes.shared_limits(self._cluster, spending, layouts[0][0], submits=submits)
        elif not isinstance(stores[0], NoStore):
            spending = await self._changes.limits(stores[0], spending)
        if spending.counts_tokens:
            self._budget = await run_budget.RunBudget.open(spending, stores, stack, self._cluster)
            self._backends.trial = await self._budget.trial(stores)
        runs: list[RunResources] = []
        for at, (setup, (inputs, layout), store) in enumerate(zip(setups, layouts, stores, strict=True)):
            with _stage_of_errors(setup):
                run = await self.open_run(setup, inputs, layout, store, None if recorded is None else recorded[at], at)
                if not run.is_complete:
                    await self._check(run, submits=submits)
                runs.append(run)
        if self._budget is not None:
            stack.callback(self._budget.report_spent, events)
        await self._admissions.monitor(runs)
        pool = None if self._budget is None else self._budget.pool
        runs = await self._changes.follow(runs, self._cluster, self._admissions.controllers, pool, events)
        if any(run.tools or run.setup.spec.tool_caching.tool_cache_dir for run in runs):
            return await self._with_tools(runs)
        return runs

    async def _join_all(
        self, coordinator: Coordinator, stages: Sequence[Coordinator], events: EventSink | None, *, submits: bool
    ) -> "ClusterSession":
        """Joins a distributed run, or a distributed flow with its stages."""
        setups, stack = self._setups, self._stack
        flow = await _join(coordinator, setups[0].spec, stack, None if stages else events, submits=submits)
        for setup, stage in zip(setups, stages, strict=bool(stages)):
            flow.add_stage(await _join(stage, setup.spec, stack, setup.events, submits=submits))
        if stages and submits:
            await stack.enter_async_context(flow.submitters.present(flow.member.name))
        return flow

    async def open_run(
        self,
        setup: RunSetup,
        inputs: JobSource,
        layout: Layout,
        store: Store,
        recorded: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> RunResources:
        """All resources of one run except its tool executor. `recorded`: its marked plan; `depth`: its index in the
        flow."""
        spec = setup.spec
        kept = None if recorded is not None or isinstance(store, NoStore) else await store.plan()
        found = await self._recalled(setup, inputs, layout, store, kept, recorded)
        if found is None:
            found = await self._connected(setup, inputs, layout, store, kept)
        plan, server, tools, batch = found.plan, found.server, found.tools, found.batch
        inline, agents = inline_tools(spec, tools), _agents(setup, inputs, len(self._changes.added))
        report = cache(
            partial(
                _prefix_report, spec, plan.config, layout, inputs.known, inputs.total, found.chars_per_token, inline
            )
        )
        backend = self._backend(setup, found, agents, depth)
        scale = found.chars_per_token or CHARS_PER_TOKEN
        shared_chars = prefix_chars(plan.config.prompt) + len(layout.lead)
        admission, health = self._admissions.admission(setup, shared_chars, backend, server, scale, depth, agents)
        if store.is_durable and not found.is_complete and (await store.spent()) != NO_USAGE:
            health.answered_before()
        for each in filter(None, (server, batch)):
            if isinstance(each, CollectsRequests):
                admission.observe(each, self._waiting_for_budget)
        is_alone = self._cluster is None and not setup.stage
        cluster = None if self._cluster is None else self._cluster.stages[depth]
        counts: dict[str, int] = {}
        return RunResources(
            setup,
            inputs,
            plan,
            server,
            backend,
            tools,
            scale,
            report,
            store,
            admission,
            health,
            Summarizer(backend, admission.slots, plan.config.model),
            self._deadline,
            await open_window(spec, plan.config, server, counts if store.is_durable else None),
            setup.events if cluster is None else cluster.events,
            cluster,
            found.is_complete,
            agents=agents,
            counts=counts,
            lanes=lane_stats(
                setup, server.traits, agents if is_alone else None, self._deadline.at, has_batch=batch is not None
            ),
            batch=batch,
            outlook=spending_outlook(self._budget, spec, server, plan.config.model),
        )

    async def _recalled(
        self,
        setup: RunSetup,
        inputs: JobSource,
        layout: Layout,
        store: Store,
        kept: Mapping[str, Any] | None,
        recorded: Mapping[str, Any] | None,
    ) -> "_RunServer | None":
        """Recorded plan and backend of a complete checkpoint; None for a run that needs its server. `kept`: the plan in
        the store."""
        if recorded is not None:
            return _RunServer(*recorded_stage(setup, layout, recorded), is_complete=True)
        if kept is None or not isinstance(store, sqlite.SqliteStore) or len(self._setups) > 1 or inputs.is_fed:
            return None
        found = await recall_complete(setup, inputs, layout, store, kept, self._changes.added)
        return None if found is None else _RunServer(*found, is_complete=True)

    async def _connected(
        self, setup: RunSetup, inputs: JobSource, layout: Layout, store: Store, kept: Mapping[str, Any] | None
    ) -> "_RunServer":
        spec, known, batch = setup.spec, inputs.known, None
        tools = await self.all_tools(setup)
        server: Backend = await self._backends.connect(setup)
        check_lane(spec, server.traits)
        if spec.tokens:
            check_tokens(server.traits, has_checkpoint=not isinstance(store, NoStore))
        images = server.traits.images
        values = [] if not known else known[0].values() if type(known[0]) is dict else [known[0]]
        if tools or spec.rows.images or not PLAIN.issuperset(map(type, values)):  # others have no images
            images = (await self._backends.image_traits(setup, server, inputs, layout, tools)).images
        if spec.lane == "batch":
            server = await batch_lane(setup, server, store, self._stack)
        elif spec.lane == "auto":
            if self._cluster is None:
                batch = await batch_of_auto(setup, server, store, self._stack)
        elif store.is_durable and isinstance(store, KeepsSubmissions):
            await warn_of_batches(setup, store)
        traits = server.traits
        if images != traits.images:
            traits = replace(traits, images=images)
        plan = setup.compile(tools, layout, traits, kept)
        first = f"{plan.config.prompt.system}\n{known[0] if known else ''}"
        return _RunServer(plan, server, tools, batch, await measure_chars_per_token(server, first))

    def _backend(self, setup: RunSetup, found: "_RunServer", agents: int | None, depth: int) -> Backend:
        """The backend for the run's requests, wrapped with its observers and its budget."""
        spec, server, config, lane = setup.spec, found.server, found.plan.config, found.batch or found.server
        backend = server if found.is_complete else self._backends.observed(lane, setup)
        if self._budget is None:
            return backend
        self._budget.price_earlier(server, spec, config.model, depth)
        if found.is_complete:
            return backend
        submitted = lane.submitted if isinstance(lane, CollectsRequests) else None
        return self._budget.backend(backend, spec, config, agents, setup.notify, submitted)

    async def all_tools(self, setup: RunSetup) -> "Sequence[Tool]":
        """The tools of a run, including those of providers, which are started."""
        found = list(setup.tools)
        for provider in setup.providers:
            found += await self._provided_by(provider, setup.notify)
        return found

    async def _provided_by(self, provider: "ToolProvider", notify: Callable[[str], None]) -> "Sequence[Tool]":
        known = self._provided.get(id(provider))
        if known is None:
            notify(f"Starting {provider} ...")
            known = self._provided[id(provider)] = await self._stack.enter_async_context(provider.open())
        return known

    def _waiting_for_budget(self) -> int:
        return 0 if self._budget is None else self._budget.pool.waiting

    async def _check(self, run: RunResources, *, submits: bool) -> None:
        spec, store, cluster, plan = run.setup.spec, run.store, run.cluster, run.plan.description
        if spec.prefix.strict_prefix and (found := run.report().findings):
            raise SpecError(f"strict_prefix=True, but the prompts do not share a prefix. {format_findings(found)}")
        if isinstance(store, NoStore):
            return
        rerun = spec.plan_changed == "rerun"
        if cluster is not None and submits:
            kept = without_mark(await store.plan())
            if kept is not None and kept != plan and (rerun or is_same_question(kept, plan)):
                await cluster.check_alone()
        await check_plan(store, plan, rerun=rerun, keeps=cluster is None or submits)

    async def _with_tools(self, runs: Sequence[RunResources]) -> list[RunResources]:
        """Opens one tool executor for all runs that can share it. A run with only some of the tools gets a subset."""
        tool_sets: dict[int, ToolSet] = {}
        for group, tools in tool_package.group_by_tools([(run.setup.spec, run.tools) for run in runs]):
            spec, summarizer = runs[group[0]].setup.spec, runs[group[0]].summarizer
            tasks = [str(runs[at].setup.spec.task) for at in group]
            calls = None if self._cluster is None else self._cluster.calls
            executor = await self._stack.enter_async_context(
                tool_package.open_tools(tools, spec, summarizer.shorten, tasks, calls)
            )
            if executor.names:
                counts_trials = not tool_sets  # once for all runs
                usage = partial(self._used, executor, [runs[at].summarizer for at in group], counts_trials)
                self._stack.callback(self._report_use, usage)
                if self._cluster is not None:
                    self._cluster.stages[group[0]].events.publisher.account = usage
            for at in group:
                own, artifacts = runs[at].tools, runs[at].setup.artifacts
                placement = runs[at].setup.spec.prefix.shared_results
                is_all = len(own) == len(tools) and artifacts is None and placement == "inline"
                tool_sets[at] = executor if is_all else tool_package.ToolSubset(executor, own, artifacts, placement)
        return [replace(run, tool_set=tool_sets[at], reads=_recorder(run)) for at, run in enumerate(runs)]

    def _used(self, executor: "ToolExecutor", summarizers: Sequence[Summarizer], counts_trials: bool) -> ToolsUsed:
        tried = self._backends.trial_usage if counts_trials else NO_USAGE
        return ToolsUsed(executor.uses, sum((each.usage for each in summarizers), tried))

    def _report_use(self, used: Callable[[], ToolsUsed]) -> None:
        if self._events is not None:
            self._events.emit(used())


@contextmanager
def _stage_of_errors(setup: RunSetup) -> Iterator[None]:
    """Adds the name of the stage to errors about a stage of a flow."""
    try:
        yield
    except (SpecError, BackendError) as error:
        if setup.stage:
            error.args = (f"Stage {setup.stage!r}: {error}", *error.args[1:])
        raise


def _agents(setup: RunSetup, inputs: JobSource, added: int) -> int | None:
    return None if inputs.total is None else (inputs.total + added) * setup.spec.evaluation.samples


def _prefix_report(*args: Any) -> PrefixReport:
    return prefix_report.prefix_report(*args)


def inline_tools(spec: BatchSpec, tools: "Sequence[Tool]") -> tuple[str, ...]:
    """Tools whose results agents share, but which are not placed first."""
    has_later_turns = spec.max_turns > 1 and spec.prefix.shared_results == "inline"
    return placeable(tools) if has_later_turns else ()


def _recorder(run: RunResources) -> "ReadRecorder | None":
    """None if agents of the run cannot read the same results."""
    if run.agents == 1 or not any(tool.is_shared for tool in run.tools):
        return None
    from ..schedule.reference_model import ReadRecorder

    return ReadRecorder(prefix_chars(run.plan.config.prompt) + run.plan.references_at)


def format_findings(findings: Sequence[Finding]) -> str:
    """The findings about prompts as one line."""
    return " ".join(map(str, findings))


async def _join(
    coordinator: Coordinator, spec: BatchSpec, stack: AsyncExitStack, events: EventSink | None, *, submits: bool
) -> "ClusterSession":
    return await stack.enter_async_context(
        cluster_session.join(
            coordinator,
            ttl=spec.distribution.lease,
            retry_failed=spec.retry.retry_failed,
            events=events,
            is_submitter=submits,
            has_checkpoint=spec.checkpoint_dir is not None and spec.distribution.store is None,
        )
    )


async def _open_store(spec: BatchSpec, stack: AsyncExitStack) -> Store:
    store = _store(spec)
    if not isinstance(store, NoStore):
        await store.open()
        stack.push_async_callback(store.aclose)
    return store


def _store(spec: BatchSpec) -> Store:
    if spec.checkpoint_dir is None:
        return NoStore()
    return sqlite.SqliteStore(spec.checkpoint_dir)
