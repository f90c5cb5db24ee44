"""Resources of runs: store, backend, admission, budget, tool executor. Runs of one flow share what they can."""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from functools import cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ..aio import RunDeadline, startup_deadline
from ..backends.connect import TrialRequest, connect
from ..core.coordinator import Coordinator
from ..core.errors import BackendError, SpecError
from ..core.events import ToolsUsed
from ..core.fast_dataclass import dataclass
from ..core.protocols import Backend, EventSink, HasEndpoints, ReportsLoad, Store, ToolSet
from ..core.requests import NO_USAGE, Usage
from ..core.run_reports import Finding, PrefixReport, Scheduling
from ..core.spec import BatchSpec
from ..engine.admission import AdmissionController, build_admission, measure_chars_per_token
from ..engine.context_window import ContextWindow, open_window
from ..engine.gc_tuning import relaxed_gc
from ..engine.inputs import JobSource
from ..engine.monitor import monitor_load, sample_gauges
from ..engine.summarizer import Summarizer
from ..plan.compile import Plan, prefix_chars
from ..plan.layout import Layout
from ..plan.prefix_report import CHARS_PER_TOKEN, prefix_report
from ..schedule.health import Health
from ..store.memory import NoStore
from ..tools import NoTools, Tool, ToolExecutor, ToolProvider, ToolSubset, open_tools, toolsets
from .budget import RunBudget
from .complete_checkpoint import ReadOnlyStore, recall_complete, recorded_stage, unmarked
from .plan_check import check_plan, is_same_question
from .setup import ANY_SERVER, RunSetup

if TYPE_CHECKING:
    from ..cluster.session import ClusterSession

_ON_THIS_MACHINE = re.compile(r"^local://|//(?:[^/@]*@)?(?:localhost|127\.|\[::1\])")
_PATIENCE_PER_RETRY = 5.0
"""Seconds for which a backend that is gone is waited for, for each retry that the user allows."""


@dataclass(frozen=True, slots=True)
class RunResources:
    """What one run works with, open. Runs of one flow share backends, gates, tools and the budget."""

    setup: RunSetup
    inputs: JobSource
    plan: Plan
    server: Backend
    """As it was opened."""
    backend: Backend
    """The server, or what counts its requests against the budget."""
    tools: Sequence[Tool]
    chars_per_token: float
    report: Callable[[], PrefixReport]
    """Predicts what prompts share and lints them, when it is called for the first time."""
    store: Store
    gate: AdmissionController
    health: Health
    summarizer: Summarizer
    deadline: RunDeadline
    window: ContextWindow | None = None
    """The model's context window; None where it is not known."""
    events: EventSink | None = None
    joined: "ClusterSession | None" = None
    """Set where the work is shared with other processes."""
    is_finished: bool = False
    """Every result is in the checkpoint: no server is asked, and no tool is called."""
    toolbox: ToolSet = field(default_factory=NoTools)
    counts: dict[str, int] = field(default_factory=dict)
    """Tokens of texts as the server counted them, by the digests of the texts; kept for a durable store."""

    @property
    def scheduling(self) -> Scheduling:
        """How the run has been scheduled so far."""
        server = self.server
        return replace(self.gate.report(), unavailable=server.unavailable() if isinstance(server, HasEndpoints) else ())

    @property
    def measured_report(self) -> Callable[[], PrefixReport]:
        """The report with what the server found in its prefix cache so far."""
        return cache(partial(_measured, self.report, self.gate.first_turns))


@asynccontextmanager
async def open_resources(
    setups: Sequence[RunSetup],
    events: EventSink | None,
    coordinator: Coordinator | None = None,
    *,
    deadline: RunDeadline | None = None,
    asks: bool = True,
    recorded: Sequence[Mapping[str, Any]] | None = None,
) -> AsyncIterator[list[RunResources]]:
    """Resources of runs that go side by side, one for each setup. Later ones have precedence where several wait.

    `events` receives what concerns all of them. `coordinator`: where a run, then the only one, shares its work; `asks`:
    False for a worker of a run that another process started. `deadline`: of a flow, which limits the opening itself.
    `recorded`: the marked plans of checkpoints that hold all results; no server and no tool is opened then. Nothing is
    sent but what finds out whether a server takes tools, which counts against the budget. Raises SpecError,
    BackendError, StoreError, and RunStopped at the deadline."""
    async with AsyncExitStack() as stack:
        limit = deadline or RunDeadline(setups[0].spec.spend.deadline)
        opener = _Opener(setups, stack, limit)
        if deadline is not None or limit.at is None:
            opened = await opener.open(events, coordinator, asks, recorded)
        else:
            with startup_deadline(limit):
                async with limit.limit():
                    opened = await opener.open(events, coordinator, asks, recorded)
        yield opened


@asynccontextmanager
async def open_preview(setup: RunSetup) -> AsyncIterator[RunResources]:
    """The backend, tools and plan of a run, to look at without running it: no store, no budget, no tool executor.
    Raises SpecError and BackendError."""
    async with AsyncExitStack() as stack:
        opener = _Opener([setup], stack, RunDeadline(None))
        yield await opener.open_run(setup, *await setup.layout_inputs(), NoStore())


async def lint_prompts(setup: RunSetup) -> PrefixReport:
    """What the prompts of a run share, as far as it can be predicted without a server. Raises SpecError."""
    inputs, layout = await setup.layout_inputs()
    async with AsyncExitStack() as stack:
        tools = await _Opener([setup], stack, RunDeadline(None)).all_tools(setup)
        plan = setup.compile(tools, layout, ANY_SERVER, None)
        return prefix_report(setup.spec, plan.rules, layout, inputs.known, inputs.total, None)


class _Opener:
    """Opens resources, each once; they are closed with the stack."""

    def __init__(self, setups: Sequence[RunSetup], stack: AsyncExitStack, deadline: RunDeadline) -> None:
        self._setups = setups
        self._stack = stack
        self._deadline = deadline
        self._events: EventSink | None = None
        self._joined: ClusterSession | None = None
        self._budget: RunBudget | None = None
        self._trial = TrialRequest(tell=self._count)
        self._tried = NO_USAGE
        """What it took to find out whether servers take tools."""
        self._backends: dict[tuple[str | Sequence[str], str | None], Backend] = {}
        self._provided: dict[int, Sequence[Tool]] = {}
        self._ways: dict[Hashable, tuple[AdmissionController, Health]] = {}
        """By the address of the server."""

    async def open(
        self,
        events: EventSink | None,
        coordinator: Coordinator | None,
        asks: bool,
        recorded: Sequence[Mapping[str, Any]] | None,
    ) -> list[RunResources]:
        setups, stack = self._setups, self._stack
        layouts = [await setup.layout_inputs() for setup in setups]
        stack.enter_context(relaxed_gc())
        if isinstance(events, AbstractContextManager):
            events.__enter__()
            stack.push_async_exit(partial(_leave, events))
        if coordinator is not None:
            self._joined = await _join(coordinator, setups[0].spec, stack, events, asks=asks)
            events = self._joined.events
        self._events = events
        stores = [self._joined.store if self._joined else await _open_store(each.spec, stack) for each in setups]
        if recorded is not None:
            stores = list(map(ReadOnlyStore, stores))
        if setups[0].spec.spend.counts_tokens:
            self._budget = await RunBudget.open(setups[0].spec.spend, stores, stack, self._joined)
            self._trial = replace(await self._budget.trial(stores), tell=self._count)
        runs: list[RunResources] = []
        for at, (setup, (inputs, layout), store) in enumerate(zip(setups, layouts, stores, strict=True)):
            try:
                kept = None if recorded is None else recorded[at]
                run = await self.open_run(setup, inputs, layout, store, kept, at)
                if not run.is_finished:
                    await self._check(run, asks=asks)
                runs.append(run)
            except (SpecError, BackendError) as error:
                if setup.stage:
                    error.args = (f"Stage {setup.stage!r}: {error}", *error.args[1:])
                raise
        if self._budget is not None:
            stack.callback(self._budget.tell_spent, events)
        await self._watch(runs)
        if any(run.tools or run.setup.spec.tooling.tool_cache_dir for run in runs):
            return await self._with_tools(runs)
        return runs

    async def open_run(
        self,
        setup: RunSetup,
        inputs: JobSource,
        layout: Layout,
        store: Store,
        recorded: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> RunResources:
        """All that one run needs but its toolbox. `recorded`: its marked plan; `depth`: its index in the flow."""
        spec, kept, found = setup.spec, None, None
        if recorded is not None:
            found = recorded_stage(setup, layout, recorded)
        elif not isinstance(store, NoStore):
            kept = await store.plan()
            if kept is not None and self._joined is None and len(self._setups) == 1:
                found = await recall_complete(setup, inputs, layout, store, kept)
        tools: Sequence[Tool] = ()
        scale: float | None = None
        server: Backend
        if found is not None:
            plan, server = found
        else:
            tools = await self.all_tools(setup)
            server = await self._backend(setup)
            plan = setup.compile(tools, layout, server.traits, kept)
            known = inputs.known
            scale = await measure_chars_per_token(server, f"{plan.rules.prompt.system}\n{known[0] if known else ''}")
        report = cache(partial(prefix_report, spec, plan.rules, layout, inputs.known, inputs.total, scale))
        backend = server
        if self._budget is not None:
            self._budget.price_earlier(server, spec, plan.rules.model, depth)
            backend = self._budget.backend(server, spec)
        scale = scale or CHARS_PER_TOKEN
        gate, health = self._way(setup, prefix_chars(plan.rules.prompt) + len(layout.lead), backend, scale, depth)
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
            gate,
            health,
            Summarizer(backend, gate.slots, plan.rules.model),
            self._deadline,
            await open_window(spec, plan.rules, server, counts if store.is_durable else None),
            setup.events if self._joined is None else self._joined.events,
            self._joined,
            found is not None,
            counts=counts,
        )

    async def all_tools(self, setup: RunSetup) -> Sequence[Tool]:
        """With those of providers, which are started."""
        found = list(setup.tools)
        for provider in setup.providers:
            found += await self._provided_by(provider, setup.notify)
        return found

    async def _provided_by(self, provider: ToolProvider, notify: Callable[[str], None]) -> Sequence[Tool]:
        known = self._provided.get(id(provider))
        if known is None:
            notify(f"Starting {provider} ...")
            known = self._provided[id(provider)] = await self._stack.enter_async_context(provider.open())
        return known

    async def _backend(self, setup: RunSetup) -> Backend:
        spec = setup.spec
        if not isinstance(spec.backend, str | Sequence):
            return spec.backend  # its owner closes it: one backend may serve several runs
        backend = self._backends.get((spec.backend, spec.model))
        if backend is None:
            uses_tools = any(each.uses_native_tools for each in self._setups if each.spec.backend == spec.backend)
            backend = await connect(
                spec.backend, spec.model, uses_tools=uses_tools, notify=setup.notify, trial=self._trial
            )
            self._stack.push_async_callback(backend.aclose)
            self._backends[spec.backend, spec.model] = backend
        for name in backend.traits.ignores:
            if getattr(spec.sampling, name) is not None:
                setup.notify(f"{backend.traits.name} has no {name}=: it is not sent.")
        return backend

    def _count(self, usage: Usage) -> None:
        self._tried += usage

    async def _check(self, run: RunResources, *, asks: bool) -> None:
        spec, store, joined, plan = run.setup.spec, run.store, self._joined, run.plan.description
        if spec.prefix.strict_prefix and (found := run.report().findings):
            raise SpecError(f"strict_prefix=True, and prompts are not shared as they are. {format_findings(found)}")
        if isinstance(store, NoStore):
            return
        rerun = spec.plan_changed == "rerun"
        if joined is not None and asks:
            kept = unmarked(await store.plan())
            if kept is not None and kept != plan and (rerun or is_same_question(kept, plan)):
                await joined.check_alone()
        await check_plan(store, plan, rerun=rerun, keeps=joined is None or asks)

    def _way(
        self, setup: RunSetup, shared_chars: int, backend: Backend, chars_per_token: float, depth: int
    ) -> tuple[AdmissionController, Health]:
        """The gate to a server and the health of it, which runs with the same server share."""
        spec = setup.spec
        address = _address(spec)
        if (known := self._ways.get(address)) is not None:
            return known[0].beside(shared_chars, depth), known[1]
        specs = [other.spec for other in self._setups if other is setup or _address(other.spec) == address]
        come_back = any((other.tools or other.runtime) and other.max_turns > 1 for other in specs)
        gate = build_admission(spec, backend, shared_chars, chars_per_token, self._events, come_back=come_back)
        health = Health(spec.retry.max_retries * _PATIENCE_PER_RETRY)
        self._ways[address] = gate, health
        return gate, health

    async def _watch(self, runs: Sequence[RunResources]) -> None:
        """Looks at the load of each server while the runs go, and shares limits with other processes."""
        first = {id(run.gate): run for run in runs}
        names: Counter[str] = Counter()
        for gate, _ in self._ways.values():
            server = first[id(gate)].server
            if isinstance(server, ReportsLoad) or gate.residency is not None:
                await self._stack.enter_async_context(monitor_load(server, gate))
            if self._events is not None:
                name = server.traits.name
                names[name] += 1
                shown = name if names[name] == 1 else f"{name} {names[name]}"  # stages may use several of a kind
                await self._stack.enter_async_context(sample_gauges(gate, shown, self._events))
        if self._joined is not None:
            gates_by_server = {_server(run.setup.spec): run.gate for run in runs}
            await self._stack.enter_async_context(self._joined.share_limits(gates_by_server))

    async def _with_tools(self, runs: Sequence[RunResources]) -> list[RunResources]:
        """One tool executor for all runs that can share it. A run that has only some of its tools gets a selection."""
        boxes: dict[int, ToolSet] = {}
        for group, tools in toolsets([(run.setup.spec, run.tools) for run in runs]):
            spec, summarizer = runs[group[0]].setup.spec, runs[group[0]].summarizer
            tasks = [str(runs[at].setup.spec.task) for at in group]
            calls = None if self._joined is None else self._joined.calls
            fabric = await self._stack.enter_async_context(open_tools(tools, spec, summarizer.shorten, tasks, calls))
            if fabric.names:
                counts_trials = not boxes  # once, for all
                used = partial(self._used, fabric, [runs[at].summarizer for at in group], counts_trials)
                self._stack.callback(self._report_use, used)
                if self._joined is not None:
                    self._joined.events.publisher.account = used
            for at in group:
                own = runs[at].tools
                boxes[at] = fabric if len(own) == len(tools) else ToolSubset(fabric, own)
        return [replace(run, toolbox=boxes[at]) for at, run in enumerate(runs)]

    def _used(self, fabric: ToolExecutor, summarizers: Sequence[Summarizer], counts_trials: bool) -> ToolsUsed:
        tried = self._tried if counts_trials else NO_USAGE
        return ToolsUsed(fabric.uses, sum((each.usage for each in summarizers), tried))

    def _report_use(self, used: Callable[[], ToolsUsed]) -> None:
        if self._events is not None:
            self._events.emit(used())


def format_findings(findings: Sequence[Finding]) -> str:
    """What keeps prompts from being shared, in one line."""
    return " ".join(map(str, findings))


async def _leave(events: AbstractContextManager[Any], *why: Any) -> None:
    """In a thread: a report takes a while to write, and the loop may have other things to do."""
    await asyncio.to_thread(events.__exit__, *why)


async def _join(
    coordinator: Coordinator, spec: BatchSpec, stack: AsyncExitStack, events: EventSink | None, *, asks: bool
) -> "ClusterSession":
    from ..cluster.session import join  # only for shared runs

    return await stack.enter_async_context(
        join(
            coordinator, ttl=spec.together.lease, retry_failed=spec.retry.retry_failed, events=events, is_submitter=asks
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
    from ..store.sqlite import SqliteStore

    return SqliteStore(spec.checkpoint_dir)


def _address(spec: BatchSpec) -> Hashable:
    """Runs with the same one use the same server."""
    return spec.backend if isinstance(spec.backend, str | tuple) else id(spec.backend)


def _server(spec: BatchSpec) -> str:
    """Workers with the same one use the same server. A loopback address is that of its own machine."""
    address = " ".join(spec.backend) if isinstance(spec.backend, tuple) else str(spec.backend)
    if _ON_THIS_MACHINE.search(address):
        address = f"{address} {socket.gethostname()}"
    return blake2b(address.encode(errors="replace"), digest_size=8).hexdigest()  # it may hold a key


def _measured(report: Callable[[], PrefixReport], first_turns: Usage) -> PrefixReport:
    """None from a server that never says what it found in its cache."""
    share = first_turns.cached / first_turns.input if first_turns.input and first_turns.cached else None
    return replace(report(), measured=share)
