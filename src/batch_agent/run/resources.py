"""Resources of runs: store, backend, admission, budget and tool executor. Runs of one flow share what they can."""

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from functools import cache, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..aio import RunDeadline, exit_in_thread, startup_deadline
from ..backends.connect import TrialRequest, connect
from ..backends.endpoints.endpoint_loads import addresses_of, endpoint_loads
from ..backends.http_backend import HttpBackend
from ..backends.prices import known_price
from ..backends.probe import probe_images
from ..core.coordinator import Coordinator
from ..core.errors import BackendError, ErrorKind, SpecError, StoreError
from ..core.events import ToolsUsed
from ..core.fast_dataclass import dataclass
from ..core.options import SpendingLimits
from ..core.options.backend_settings import NAMED, BackendSettings, NamedBackends, endpoints_in, settings_of
from ..core.protocols import (
    Backend,
    ChangesEndpoints,
    CollectsRequests,
    EventSink,
    HasEndpoints,
    KeepsControls,
    KeepsSubmissions,
    ReportsLoad,
    ReportsRateLimits,
    Store,
    ToolSet,
    Traits,
)
from ..core.requests import NO_USAGE, Exchange, Lane, RequestObserver, Usage
from ..core.run_reports import Finding, PrefixReport, Scheduling, SharedResults
from ..core.spec import BatchSpec
from ..engine.admission import AdmissionController, build_admission, measure_chars_per_token
from ..engine.context_window import ContextWindow, open_window
from ..engine.gc_tuning import relaxed_gc
from ..engine.job_source import JobSource
from ..engine.monitor import monitor_load, sample_gauges
from ..engine.slots import shared_slots
from ..engine.summarizer import Summarizer
from ..observe.sinks import request_observer
from ..plan.compile import PLAIN, Plan, prefix_chars
from ..plan.image_rules import no_images
from ..plan.layout import Layout
from ..plan.prefix_report import CHARS_PER_TOKEN, prefix_report
from ..schedule.health import Health
from ..schedule.reference_model import MAX_READERS, ReadRecorder
from ..store.memory_store import NoStore
from ..tools import NoTools, Tool, ToolExecutor, ToolProvider, ToolSubset, group_by_tools, open_tools
from .complete_checkpoint import ReadOnlyStore, recall_complete, recorded_stage, without_mark
from .endpoint_changes import follow_endpoints
from .plan_check import check_plan, is_same_question
from .run_budget import RunBudget
from .setup import ANY_SERVER, RunSetup, check_lane, check_tokens

if TYPE_CHECKING:
    from ..cluster.cluster_session import ClusterSession
    from ..lanes.lane_turn_runner import LaneStats, SpendingOutlook
    from .control import KeptControls, RunControl

_LOOPBACK = re.compile(r"^local://|//(?:[^/@]*@)?(?:localhost|127\.|\[::1\])")
_log = logging.getLogger("batch_agent")
_OUTAGE_SECONDS_PER_RETRY = 5.0
"""Seconds that a run waits for an unavailable backend, per retry that the user allows."""


@dataclass(frozen=True, slots=True)
class RunResources:
    """Open resources of one run. Runs of one flow share backends, admission, tools and the budget."""

    setup: RunSetup
    inputs: JobSource
    plan: Plan
    server: Backend
    """The backend as it was opened."""
    backend: Backend
    """The server, or a wrapper that counts its requests against the budget."""
    tools: Sequence[Tool]
    chars_per_token: float
    report: Callable[[], PrefixReport]
    """Returns the prefix report; prompts are linted at the first call."""
    store: Store
    admission: AdmissionController
    health: Health
    summarizer: Summarizer
    deadline: RunDeadline
    window: ContextWindow | None = None
    """The context window of the model; None if unknown."""
    events: EventSink | None = None
    cluster: "ClusterSession | None" = None
    """Set if the run is distributed."""
    is_complete: bool = False
    """Every result is in the checkpoint: no request is sent and no tool is called."""
    tool_set: ToolSet = field(default_factory=NoTools)
    agents: int | None = None
    """Number of agents; None if the number of inputs is unknown."""
    counts: dict[str, int] = field(default_factory=dict)
    """Token counts of the server, by text digest; recorded if the store is durable."""
    reads: ReadRecorder | None = None
    """What agents read with tools whose results they share; None without such tools."""
    lanes: "LaneStats | None" = None
    """Set if requests may take another lane than the standard one."""
    batch: Backend | None = None
    """Serves the requests in lane batch of a run in lane auto."""
    outlook: "SpendingOutlook | None" = None
    """Set if they have a budget in dollars, too."""
    control: "RunControl | None" = None
    """Set if the user can change the run while it is running: it has a checkpoint, and is not distributed."""

    @property
    def shared_tools(self) -> frozenset[str]:
        """Tools whose results may be placed first, unless they say where their results stand."""
        return frozenset(_placeable(self.tools))

    @property
    def scheduling(self) -> Scheduling:
        """How the run has been scheduled so far."""
        server = self.server
        return replace(
            self.admission.report(),
            unavailable=server.unavailable() if isinstance(server, HasEndpoints) else (),
            shared_results=self._shared_results,
            lanes=None if self.lanes is None else self.lanes.report(),
        )

    @property
    def measured_report(self) -> Callable[[], PrefixReport]:
        """Returns the prefix report with the share that the server has found in its cache so far."""
        return cache(partial(_measured, self.report, self.admission.first_turns, self._shared_results))

    @property
    def _shared_results(self) -> SharedResults | None:
        if self.reads is None:
            return None
        residency = self.admission.residency
        stored = None if residency is None else round(residency.report().max_reference_tokens)
        return self.reads.report(self.chars_per_token, stored)


@asynccontextmanager
async def open_resources(
    setups: Sequence[RunSetup],
    events: EventSink | None,
    coordinator: Coordinator | None = None,
    *,
    deadline: RunDeadline | None = None,
    submits: bool = True,
    recorded: Sequence[Mapping[str, Any]] | None = None,
) -> AsyncIterator[list[RunResources]]:
    """Resources of concurrent runs, one for each setup. Agents of later runs have priority.

    `events` receives the events that concern all of them. `coordinator`: of a distributed run, then the only one;
    `submits`:
    False for a worker of a run that another process submitted. `deadline`: of a flow, which applies it to
    the opening itself. `recorded`: marked plans of complete checkpoints; then no server and no tool is opened. The only
    request that is sent tests whether a server supports tools; it counts against the budget. Raises SpecError,
    BackendError, StoreError, and RunStopped at the deadline."""
    async with AsyncExitStack() as stack:
        limit = deadline or RunDeadline(setups[0].spec.spending.deadline)
        opener = _Opener(setups, stack, limit)
        if deadline is not None or limit.at is None:
            opened = await opener.open(events, coordinator, submits, recorded)
        else:
            with startup_deadline(limit):
                async with limit.limit():
                    opened = await opener.open(events, coordinator, submits, recorded)
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


async def lint_prompts(setup: RunSetup, *, exact: bool = False) -> PrefixReport:
    """Prefix report of a run, as far as it can be predicted without a server; with the checkpoint of an earlier run,
    also what its agents read. `exact`: connects to the server, to count tokens. Raises SpecError and BackendError."""
    spec, folder = setup.spec, setup.spec.checkpoint_dir
    async with AsyncExitStack() as stack:
        if exact:
            preview = await stack.enter_async_context(open_preview(setup))
            report, plan, tools = preview.report(), preview.plan, preview.tools
        else:
            inputs, plan, tools = await offline_plan(setup, stack, ANY_SERVER)
            inline = _inline_tools(spec, tools)
            report = prefix_report(spec, plan.config, plan.layout, inputs.known, inputs.total, None, inline)
    if folder is None:
        return report
    recorded = await asyncio.to_thread(_recorded_reads, folder, plan, _placeable(tools))
    return replace(report, shared_results=recorded)


async def offline_plan(
    setup: RunSetup, stack: AsyncExitStack, traits: Traits
) -> tuple[JobSource, Plan, Sequence[Tool]]:
    """Inputs, plan and tools of a run on a server with these traits, which is not connected to. Providers of tools are
    started. Raises SpecError."""
    inputs, layout = await setup.layout_inputs()
    tools = await _Opener([setup], stack, RunDeadline(None)).all_tools(setup)
    return inputs, setup.compile(tools, layout, traits, None), tools


@dataclass(frozen=True, slots=True)
class _Both:
    """Observer for two."""

    log: RequestObserver
    trace: RequestObserver

    def __call__(self, exchange: Exchange) -> None:
        self.log(exchange)
        self.trace(exchange)


class _Opener:
    """Opens each resource once; the stack closes them."""

    def __init__(self, setups: Sequence[RunSetup], stack: AsyncExitStack, deadline: RunDeadline) -> None:
        self._setups = setups
        self._stack = stack
        self._deadline = deadline
        self._events: EventSink | None = None
        self._cluster: ClusterSession | None = None
        self._budget: RunBudget | None = None
        self._given = setups[0].spec.spending
        """The limits of the run as they were given."""
        self._kept: KeptControls | None = None
        """What the user changed during earlier runs; None if this one cannot be changed."""
        self._added: Sequence[Any] = ()
        """Inputs that were added then."""
        self._trial = TrialRequest(on_usage=self._count)
        self._trial_usage = NO_USAGE
        """Usage of the trial requests that test whether servers support tools."""
        self._backends: dict[tuple[NamedBackends, str | None, Path | None], Backend] = {}
        self._request_logs: dict[Path | None, RequestObserver] = {}
        self._trace_requests: RequestObserver | None = None
        """For sinks that want the requests."""
        self._provided: dict[int, Sequence[Tool]] = {}
        self._admissions: dict[Hashable, tuple[AdmissionController, Health]] = {}
        """Admission controller and health by server address."""

    async def open(
        self,
        events: EventSink | None,
        coordinator: Coordinator | None,
        submits: bool,
        recorded: Sequence[Mapping[str, Any]] | None,
    ) -> list[RunResources]:
        setups, stack = self._setups, self._stack
        layouts = [await setup.layout_inputs() for setup in setups]
        stack.enter_context(relaxed_gc())
        self._trace_requests = None if events is None else request_observer(events)
        if isinstance(events, AbstractContextManager):
            events.__enter__()
            stack.push_async_exit(partial(exit_in_thread, events))
        if coordinator is not None:
            self._cluster = await _join(coordinator, setups[0].spec, stack, events, submits=submits)
            events = self._cluster.events
        self._events = events
        stores = [self._cluster.store if self._cluster else await _open_store(each.spec, stack) for each in setups]
        if recorded is not None:
            stores = list(map(ReadOnlyStore, stores))
        spending = setups[0].spec.spending
        if not isinstance(stores[0], NoStore):
            spending = await self._steered_limits(stores[0], spending)
        if spending.counts_tokens:
            self._budget = await RunBudget.open(spending, stores, stack, self._cluster)
            self._trial = replace(await self._budget.trial(stores), on_usage=self._count)
        runs: list[RunResources] = []
        for at, (setup, (inputs, layout), store) in enumerate(zip(setups, layouts, stores, strict=True)):
            try:
                kept = None if recorded is None else recorded[at]
                run = await self.open_run(setup, inputs, layout, store, kept, at)
                if not run.is_complete:
                    await self._check(run, submits=submits)
                runs.append(run)
            except (SpecError, BackendError) as error:
                if setup.stage:
                    error.args = (f"Stage {setup.stage!r}: {error}", *error.args[1:])
                raise
        if self._budget is not None:
            stack.callback(self._budget.report_spent, events)
        await self._monitor(runs)
        if self._kept is not None:
            runs = await self._controlled(runs, self._kept)
        if any(run.tools or run.setup.spec.tool_caching.tool_cache_dir for run in runs):
            return await self._with_tools(runs)
        return runs

    async def _steered_limits(self, store: Store, spending: SpendingLimits) -> SpendingLimits:
        """The limits of the run as its user changed them during earlier ones. What else was changed then is kept for
        `_controlled`."""
        if self._cluster is not None or not isinstance(store, KeepsControls):
            return spending
        from .control import KeptControls

        spending = self._given = replace(spending, deadline=self._deadline.seconds)
        kept = self._kept = KeptControls.of(await store.controls(), spending)
        self._added = kept.added
        if kept.deadline != spending.deadline:
            self._deadline.set(kept.deadline)
        return replace(spending, max_usd=kept.max_usd, deadline=kept.deadline)

    async def _controlled(self, runs: list[RunResources], kept: "KeptControls") -> list[RunResources]:
        """The runs with their control, which the user can reach from now on."""
        setup, store = self._setups[0], runs[0].store
        folder, is_flow = setup.spec.checkpoint_dir, bool(setup.stage)
        if folder is None or not isinstance(store, KeepsControls):
            return runs
        from .control import RunControl
        from .control_socket import serve_control

        folder = folder.parent if is_flow else folder
        pool = None if self._budget is None else self._budget.pool
        admissions = [admission for admission, _ in self._admissions.values()]
        control = RunControl(
            store,
            self._given,
            kept,
            self._deadline,
            pool,
            admissions,
            self._events,
            is_flow=is_flow,
        )
        if not all(run.is_complete for run in runs):
            await self._stack.enter_async_context(serve_control(folder, control))
        return [replace(run, control=control) for run in runs]

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
        spec, kept, found = setup.spec, None, None
        if recorded is not None:
            found = recorded_stage(setup, layout, recorded)
        elif not isinstance(store, NoStore):
            kept = await store.plan()
            if kept is not None and self._cluster is None and len(self._setups) == 1 and not inputs.is_fed:
                found = await recall_complete(setup, inputs, layout, store, kept, self._added)
        tools: Sequence[Tool] = ()
        scale: float | None = None
        server: Backend
        batch: Backend | None = None
        if found is not None:
            plan, server = found
        else:
            tools = await self.all_tools(setup)
            server = await self._backend(setup)
            check_lane(spec, server.traits)
            if spec.tokens:
                check_tokens(server.traits, has_checkpoint=not isinstance(store, NoStore))
            images, known = server.traits.images, inputs.known
            values = [] if not known else known[0].values() if type(known[0]) is dict else known[:1]
            if tools or spec.rows.images or not PLAIN.issuperset(map(type, values)):  # others have no images
                images = (await self._image_traits(setup, server, inputs, layout, tools)).images
            if spec.lane == "batch":
                server = await self._in_batch_lane(setup, server, store)
            elif spec.lane == "auto":
                batch = await self._batch_of_auto(setup, server, store)
            elif isinstance(store, KeepsSubmissions):
                await self._warn_of_batches(setup, store)
            plan = setup.compile(tools, layout, replace(server.traits, images=images), kept)
            scale = await measure_chars_per_token(server, f"{plan.config.prompt.system}\n{known[0] if known else ''}")
        inline, agents = _inline_tools(spec, tools), _agents(setup, inputs, len(self._added))
        report = cache(partial(prefix_report, spec, plan.config, layout, inputs.known, inputs.total, scale, inline))
        backend = server if found is not None else self._observed(batch or server, setup)
        if self._budget is not None:
            self._budget.price_earlier(server, spec, plan.config.model, depth)
            if found is None:
                lane = batch or server
                submitted = lane.submitted if isinstance(lane, CollectsRequests) else None
                backend = self._budget.backend(backend, spec, plan.config, agents, setup.notify, submitted)
        scale = scale or CHARS_PER_TOKEN
        shared_chars = prefix_chars(plan.config.prompt) + len(layout.lead)
        admission, health = self._admission(setup, shared_chars, backend, server, scale, depth, agents)
        for each in (server, batch):
            if isinstance(each, CollectsRequests):
                admission.observe(each, self._waiting_for_budget)
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
            setup.events if self._cluster is None else self._cluster.events,
            self._cluster,
            found is not None,
            agents=agents,
            counts=counts,
            lanes=self._lanes(setup, server.traits, agents, has_batch=batch is not None),
            batch=batch,
            outlook=self._outlook(spec, server, plan.config.model),
        )

    def _lanes(self, setup: RunSetup, traits: Traits, agents: int | None, *, has_batch: bool) -> "LaneStats | None":
        """Lanes of a run that may use others than the standard one."""
        lane, offered = setup.spec.lane, list[Lane]()
        if lane == "auto" and has_batch:
            offered.append("batch")
        if lane in ("flex", "auto") and "flex" in traits.lanes:
            offered.append("flex")  # as cheap as batch, but with the rate limits of the lane standard
        if not offered:
            return None
        from ..lanes.lane_turn_runner import LaneStats

        known = agents if self._cluster is None and not setup.stage else None
        max_turns = setup.spec.max_turns if _has_later_turns(setup.spec) else 1
        return LaneStats((*offered, "standard"), known, self._deadline.at, max_turns)

    def _outlook(self, spec: BatchSpec, server: Backend, model: str) -> "SpendingOutlook | None":
        if self._budget is None or spec.spending.max_usd is None or spec.lane in ("standard", "batch"):
            return None
        from ..lanes.lane_turn_runner import SpendingOutlook

        price = known_price(model, server.traits.name, spec.spending.prices)
        return None if price is None else SpendingOutlook(self._budget.pool.budget, price)

    async def all_tools(self, setup: RunSetup) -> Sequence[Tool]:
        """The tools of a run, including those of providers, which are started."""
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
        if not isinstance(spec.backend, NAMED):
            return spec.backend  # the caller closes it: a backend may serve several runs
        key = spec.backend, spec.model, spec.log_requests
        backend = self._backends.get(key)
        if backend is None:
            uses_tools = any(each.uses_native_tools for each in self._setups if each.spec.backend == spec.backend)
            backend = await connect(
                spec.backend,
                spec.model,
                uses_tools=uses_tools,
                notify=setup.notify,
                trial=self._trial,
                observe=self._observer(setup),
            )
            self._stack.push_async_callback(backend.aclose)
            self._backends[key] = backend
        for name in backend.traits.unsupported_sampling:
            if getattr(spec.sampling, name) is not None:
                setup.notify(f"{backend.traits.name} does not support {name}=: it is not sent.")
        return backend

    async def _image_traits(
        self, setup: RunSetup, server: Backend, inputs: JobSource, layout: Layout, tools: Sequence[Tool]
    ) -> Traits:
        """The traits of a server, with whether it takes images if requests may have some: by a request for one token if
        only that shows it. Raises SpecError, before anything else is sent, if it takes none and the task has some."""
        traits = server.traits
        if not setup.shows_images(inputs, layout, tools):
            return traits
        if setup.spec.runtime is not None:
            raise SpecError("The task has images, which the programs of a runtime do not get: give them files instead.")
        is_ours = isinstance(setup.spec.backend, NAMED)
        said = ""
        if traits.images is None and is_ours:
            backend = server if self._trial.with_budget is None else self._trial.with_budget(server)
            try:
                refusal = await probe_images(backend, traits.model, on_usage=self._trial.on_usage)
            except BackendError as error:
                if error.kind is not ErrorKind.BUDGET:
                    raise
                return traits
            traits = replace(traits, images=refusal is None)
            said = "" if refusal is None else f" (it says: {refusal})"
        if traits.images is False and setup.first_has_images(inputs, layout):
            raise SpecError(f"{no_images(traits)}.{said}")
        return traits

    async def _in_batch_lane(self, setup: RunSetup, server: Backend, store: Store) -> Backend:
        from ..lanes.batch_lane import open_batch_lane  # only for runs in this lane

        backend = await open_batch_lane(server, store, setup.notify)
        self._stack.push_async_callback(backend.aclose)
        return backend

    async def _batch_of_auto(self, setup: RunSetup, server: Backend, store: Store) -> Backend | None:
        """The backend for requests in lane batch of a run in lane auto, which also serves the others; None if it has
        none. What is submitted outlives the process, so that needs a checkpoint."""
        spec = setup.spec
        if "batch" not in server.traits.lanes or spec.runtime or self._cluster:
            return None
        from ..lanes.batch_lane import open_batch_lane
        from ..lanes.batch_service import OffersBatches

        if not isinstance(server, HttpBackend | OffersBatches):
            return server
        if not isinstance(store, KeepsSubmissions):
            return None
        backend = await open_batch_lane(server, store, setup.notify, is_mixed=True)
        self._stack.push_async_callback(backend.aclose)
        return backend

    async def _warn_of_batches(self, setup: RunSetup, store: KeepsSubmissions) -> None:
        count = sum(len(each.lines) for each in await store.submissions())
        if count:
            setup.notify(
                f"{count:,} requests of this run are in batches at the provider, and are billed. In lane "
                f"{setup.spec.lane!r} they are sent again: lane='batch' collects their results instead."
            )

    def _waiting_for_budget(self) -> int:
        return 0 if self._budget is None else self._budget.pool.waiting

    def _observer(self, setup: RunSetup) -> RequestObserver | None:
        """Observer of the requests of a run; None if they are neither logged nor traced."""
        path, trace = setup.spec.log_requests, self._trace_requests
        if path is None and not _log.isEnabledFor(logging.DEBUG):
            return trace
        log = self._request_log(path, setup.notify)
        return log if trace is None else _Both(log, trace)

    def _request_log(self, path: Path | None, notify: Callable[[str], None]) -> RequestObserver:
        """Log of requests in a file, or of the program. Runs with the same file share it."""
        if path not in self._request_logs:
            from ..observe.request_log import RequestLog  # only for runs that log requests

            self._request_logs[path] = self._stack.enter_context(RequestLog(path, notify))
        return self._request_logs[path]

    def _observed(self, server: Backend, setup: RunSetup) -> Backend:
        """The backend of a run that logs its requests: one of the caller is observed here, as only those that
        `connect` opens have an observer. Requests of a stage have its name."""
        observe = self._observer(setup)
        if observe is None:
            return server
        from ..observe.observed_backend import ObservedBackend, StageBackend

        is_opened_here = isinstance(setup.spec.backend, NAMED)
        backend = server if is_opened_here else ObservedBackend(server, observe)
        return StageBackend(backend, setup.stage) if setup.stage else backend

    def _count(self, usage: Usage) -> None:
        self._trial_usage += usage

    async def _check(self, run: RunResources, *, submits: bool) -> None:
        spec, store, cluster, plan = run.setup.spec, run.store, self._cluster, run.plan.description
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

    def _admission(
        self,
        setup: RunSetup,
        shared_chars: int,
        backend: Backend,
        server: Backend,
        chars_per_token: float,
        depth: int,
        agents: int | None,
    ) -> tuple[AdmissionController, Health]:
        """Admission controller and health of a server. Runs with the same server share both."""
        spec = setup.spec
        address = _address(spec)
        if (known := self._admissions.get(address)) is not None:
            return known[0].share(shared_chars, depth, has_later_turns=_has_later_turns(spec), server=server), known[1]
        specs = [other.spec for other in self._setups if other is setup or _address(other.spec) == address]
        is_alone = len(self._setups) == 1 and self._cluster is None
        admission = build_admission(
            spec,
            backend,
            shared_chars,
            chars_per_token,
            self._events,
            has_later_turns=any(map(_has_later_turns, specs)),
            agents=agents if is_alone else None,
            server=server,
        )
        health = Health(spec.retry.max_retries * _OUTAGE_SECONDS_PER_RETRY)
        self._admissions[address] = admission, health
        return admission, health

    async def _monitor(self, runs: Sequence[RunResources]) -> None:
        """Polls the load of each server during the runs, and shares limits with other workers."""
        first = {id(run.admission): run for run in runs}
        names: Counter[str] = Counter()
        for admission, _ in self._admissions.values():
            run = first[id(admission)]
            server, spec = run.server, run.setup.spec
            if isinstance(spec.backend, NAMED) and not run.is_complete:
                addresses = addresses_of(spec.backend, server)
                self._stack.enter_context(shared_slots(admission.slots, endpoint_loads(), addresses))
            if isinstance(server, ChangesEndpoints):
                self._stack.callback(follow_endpoints(server, admission, spec, self._events))
            if isinstance(server, ReportsLoad) or admission.residency is not None:
                await self._stack.enter_async_context(monitor_load(server, admission))
            if isinstance(server, ReportsRateLimits) and server.traits.reports_rate_limits:
                self._stack.callback(server.observe_rate_limits(admission.slots.on_service_limits))
            if self._events is not None:
                name = server.traits.name
                names[name] += 1  # stages may use several servers of a kind
                shown = name if names[name] == 1 else f"{name} {names[name]}"
                await self._stack.enter_async_context(sample_gauges(admission, shown, self._events))
        if self._cluster is not None:
            admissions = {_server_id(run.setup.spec): run.admission for run in runs}
            await self._stack.enter_async_context(self._cluster.share_limits(admissions))

    async def _with_tools(self, runs: Sequence[RunResources]) -> list[RunResources]:
        """One tool executor for all runs that can share it. A run with only some of the tools gets a subset."""
        tool_sets: dict[int, ToolSet] = {}
        for group, tools in group_by_tools([(run.setup.spec, run.tools) for run in runs]):
            spec, summarizer = runs[group[0]].setup.spec, runs[group[0]].summarizer
            tasks = [str(runs[at].setup.spec.task) for at in group]
            calls = None if self._cluster is None else self._cluster.calls
            executor = await self._stack.enter_async_context(open_tools(tools, spec, summarizer.shorten, tasks, calls))
            if executor.names:
                counts_trials = not tool_sets  # once for all runs
                usage = partial(self._used, executor, [runs[at].summarizer for at in group], counts_trials)
                self._stack.callback(self._report_use, usage)
                if self._cluster is not None:
                    self._cluster.events.publisher.account = usage
            for at in group:
                own, artifacts = runs[at].tools, runs[at].setup.artifacts
                placement = runs[at].setup.spec.prefix.shared_results
                is_all = len(own) == len(tools) and artifacts is None and placement == "inline"
                tool_sets[at] = executor if is_all else ToolSubset(executor, own, artifacts, placement)
        return [replace(run, tool_set=tool_sets[at], reads=_recorder(run)) for at, run in enumerate(runs)]

    def _used(self, executor: ToolExecutor, summarizers: Sequence[Summarizer], counts_trials: bool) -> ToolsUsed:
        tried = self._trial_usage if counts_trials else NO_USAGE
        return ToolsUsed(executor.uses, sum((each.usage for each in summarizers), tried))

    def _report_use(self, used: Callable[[], ToolsUsed]) -> None:
        if self._events is not None:
            self._events.emit(used())


def _agents(setup: RunSetup, inputs: JobSource, added: int) -> int | None:
    return None if inputs.total is None else (inputs.total + added) * setup.spec.evaluation.samples


def _placeable(tools: Sequence[Tool]) -> tuple[str, ...]:
    return tuple(tool.name for tool in tools if tool.is_shared and tool.sharing.placement is None)


def _inline_tools(spec: BatchSpec, tools: Sequence[Tool]) -> tuple[str, ...]:
    """Tools whose results stand behind the agents' own text, though agents share them."""
    has_later_turns = spec.max_turns > 1 and spec.prefix.shared_results == "inline"
    return _placeable(tools) if has_later_turns else ()


def _recorded_reads(folder: Path, plan: Plan, shared_tools: Sequence[str]) -> SharedResults | None:
    """What agents of an earlier run with this checkpoint read; None if it cannot be read."""
    from ..observe.checkpoint_results import RecordedReads
    from ..store.reader import CheckpointReader

    reads = RecordedReads(prefix_chars(plan.config.prompt) + plan.references_at, shared_tools)
    try:
        with CheckpointReader(folder) as reader:
            for _, facts in islice(reader.histories(), MAX_READERS):
                reads.add(facts)
    except StoreError:
        return None
    return reads.report()


def _recorder(run: RunResources) -> ReadRecorder | None:
    """None if agents of the run cannot read the same results."""
    if run.agents == 1 or not any(tool.is_shared for tool in run.tools):
        return None
    return ReadRecorder(prefix_chars(run.plan.config.prompt) + run.plan.references_at)


def format_findings(findings: Sequence[Finding]) -> str:
    """Findings about prompts in one line."""
    return " ".join(map(str, findings))


async def _join(
    coordinator: Coordinator, spec: BatchSpec, stack: AsyncExitStack, events: EventSink | None, *, submits: bool
) -> "ClusterSession":
    from ..cluster.cluster_session import join  # only for shared runs

    return await stack.enter_async_context(
        join(
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
    from ..store.sqlite import SqliteStore

    return SqliteStore(spec.checkpoint_dir)


def _has_later_turns(spec: BatchSpec) -> bool:
    """Whether the agents of a run may have more than one turn."""
    return bool(spec.tools or spec.runtime) and spec.max_turns > 1


def _address(spec: BatchSpec) -> Hashable:
    """Runs with the same address use the same server."""
    return spec.backend if isinstance(spec.backend, str | tuple | BackendSettings) else id(spec.backend)


def _server_id(spec: BatchSpec) -> str:
    """Identifies the server among workers. A loopback address is specific to its machine."""
    address = str(spec.backend)
    if isinstance(spec.backend, NAMED):
        endpoints = [settings_of(each) for each in endpoints_in(spec.backend)]
        address = " ".join([*(each.url for each in endpoints), *filter(None, map(_own_account, endpoints))])
    if _LOOPBACK.search(address):
        address = f"{address} {socket.gethostname()}"
    return blake2b(address.encode(errors="replace"), digest_size=8).hexdigest()  # the address may contain a key


def _own_account(settings: BackendSettings) -> str:
    """What distinguishes a backend from others at the same URL, without secrets."""
    return " ".join([*filter(None, (settings.base_url, settings.organization, settings.project)), *settings.variables])


def _measured(
    report: Callable[[], PrefixReport], first_turns: Usage, shared_results: SharedResults | None
) -> PrefixReport:
    """The report with the measured share, None for a server that does not report cached tokens, and with what agents
    read."""
    share = first_turns.cached / first_turns.input if first_turns.input and first_turns.cached else None
    return replace(report(), measured=share, shared_results=shared_results)
