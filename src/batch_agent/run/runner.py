"""Runs: their resources are opened, and then `execute` drives the agents from the first to the last result."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..aio import Deadlines
from ..backends.prices import known_price
from ..core.coordinator import Coordinator
from ..core.events import PrefixReported, RunStarted, SchedulingReported
from ..core.protocols import EventSink, WorkSource
from ..core.results import AgentResult
from ..engine.agent_loop import AgentLoop
from ..engine.chunking_executor import ChunkingExecutor
from ..engine.engine import Deliver, Engine, EngineConfig, Fit, Leave
from ..engine.input_chunker import InputChunker
from ..engine.inputs import InputSource
from ..engine.prefix_warmup import PrefixWarmup
from ..engine.result_stream import Delivery, ResultChannel
from ..engine.turn_runner import BackendTurnRunner, TurnRunner
from ..plan.compile import prefix_chars
from ..store.memory import NoStore
from .complete_checkpoint import mark_finished
from .resources import RunResources, format_findings, open_resources
from .setup import RunSetup, asking_order

_WORTH_WARMING = 4096
"""Characters: prefixes of less than a thousand tokens are not cached by the services which need warming."""

Put = Callable[[AgentResult], Awaitable[None]]
Write = Callable[[AgentResult], None]


async def run(
    setup: RunSetup,
    outbox: ResultChannel,
    *,
    only: Sequence[int] | None = None,
    coordinator: Coordinator | None = None,
    works: bool = True,
) -> None:
    """One run, alone or shared with other processes through a hub; the results go to the outbox. `only`, `works`: as
    for `execute`. Raises SpecError, BackendError, RunStopped and StoreError."""
    async with open_resources([setup], setup.events, coordinator) as [resources]:
        try:
            await execute(resources, outbox.put, only=only, works=works)
        finally:
            outbox.scheduling, outbox.report = resources.scheduling, resources.measured_report


async def work(setup: RunSetup, coordinator: Coordinator) -> None:
    """A worker of a run that another process has started, whose inputs come from the hub. Returns when no process that
    shares the run has anything left to do. Raises SpecError (PlanMismatch where this process would ask something else),
    BackendError, RunStopped and StoreError."""
    if setup.input_fields is None:
        setup = replace(setup, input_fields=())
    async with open_resources([setup], setup.events, coordinator, asks=False) as [resources]:
        await _Execution(resources).work()


async def execute(resources: RunResources, put: Put, *, only: Sequence[int] | None = None, works: bool = True) -> None:
    """Drives a run, or one stage of a flow, to its end. Every result goes to `put`, as it comes.

    `only`: indices of the inputs that are asked, for inputs that are all there; None: all of them. `works`: agents run
    in this process too, not only in others that share the run. Raises RunStopped and StoreError."""
    execution, spec = _Execution(resources), resources.setup.spec
    execution.announce()
    try:
        if spec.out is None or only is not None:
            await execution.run(put, None, only, works=works)
        else:
            from ..data import results_to

            async with results_to(spec.out) as write:
                await execution.run(put, write, only, works=works)
        is_new = resources.store.is_durable and not resources.is_finished
        if is_new and only is None and resources.joined is None:
            await mark_finished(resources.plan, resources.server.traits, resources.store, resources.counts)
    finally:
        if resources.events is not None:
            execution.account(resources.events)


class _Execution:
    """One run under way."""

    def __init__(self, resources: RunResources) -> None:
        self._resources = resources
        self._spec = resources.setup.spec
        self._events = resources.events

    def announce(self) -> None:
        """Reports what begins, and what prompts share. Without a sink, only what is wrong is worth a line; an agent
        alone shares its prompt with none. What programs ask is not known."""
        resources, setup = self._resources, self._resources.setup
        if self._events is not None:
            traits, model = resources.server.traits, resources.plan.rules.model
            price = known_price(model, traits.name, self._spec.spend.prices)
            prices = None if price is None else (price.input * 1e6, price.cached * 1e6, price.output * 1e6)
            self._events.emit(self._started(resources.inputs.total, prices))
        if self._spec.runtime is not None or (setup.events is None and resources.inputs.total == 1):
            return
        report = resources.report()
        if setup.events is not None and self._events is not None:
            self._events.emit(PrefixReported(report))
        elif report.findings:
            setup.notify(format_findings(report.findings))

    def account(self, events: EventSink) -> None:
        """Reports how the run was scheduled, and what the server found in its prefix cache."""
        events.emit(SchedulingReported(self._resources.scheduling))
        first_turns = self._resources.gate.first_turns
        if first_turns.cached and self._spec.runtime is None:
            events.emit(PrefixReported(self._resources.measured_report()))

    async def run(self, put: Put, write: Write | None, only: Sequence[int] | None, *, works: bool) -> None:
        resources, spec = self._resources, self._spec
        order = only or asking_order(resources.plan.layout, resources.inputs)
        source = InputSource(resources.inputs, resources.plan.job, order)
        deliver = Delivery(put, spec.on_result, write, self._events).deliver

        async def run_agents(turns: TurnRunner, leave: Leave | None) -> None:
            executor, fit = self._executor(turns, leave), self._fit()
            if resources.joined is None:
                await self._engine(source, executor, deliver, fit, self._events, leave).run()
            else:
                await self._share(source, executor, deliver, fit, leave, works=works)

        await self._with_turns(run_agents)

    async def work(self) -> None:
        """Runs agents for other processes."""
        from ..cluster.worker import complete_via  # only for shared runs

        joined = self._resources.joined
        assert joined is not None
        if self._events is not None:
            self._events.emit(self._started(None, None))

        async def run_agents(turns: TurnRunner, leave: Leave | None) -> None:
            source = joined.source(self._resources.gate, ends_by_itself=True)
            executor = self._executor(turns, leave)
            await self._engine(source, executor, complete_via(joined), None, self._events, leave).run()

        try:
            await self._with_turns(run_agents)
        finally:
            if self._events is not None:
                self._events.emit(SchedulingReported(self._resources.scheduling))

    async def _share(
        self,
        inputs: InputSource,
        executor: AgentLoop | ChunkingExecutor,
        deliver: Deliver,
        fit: Fit | None,
        leave: Leave | None,
        *,
        works: bool,
    ) -> None:
        """Posts the inputs for all processes that share the run, and collects the results."""
        from ..cluster.submitter import Submitter
        from ..cluster.worker import work_and_collect

        resources, joined = self._resources, self._resources.joined
        assert joined is not None
        calling = Submitter(joined, inputs, fit, executor.retell, deliver, self._events, resources.deadline)
        if not works:
            await calling.collect()
            return
        source = joined.source(resources.gate)
        engine = self._engine(source, executor, calling.finished_here, None, joined.events.local, leave)
        await work_and_collect(engine, source, calling)

    async def _with_turns(self, run_agents: Callable[[TurnRunner, Leave | None], Awaitable[None]]) -> None:
        """Runs agents whose turns are taken by the model, or by programs."""
        resources, spec = self._resources, self._spec
        asking = BackendTurnRunner(
            resources.backend,
            resources.gate,
            resources.health,
            Deadlines(spec.timeouts.turn),
            spec.retry,
            self._warming(),
            self._events,
        )
        if spec.runtime is None or resources.is_finished:
            await run_agents(asking, resources.backend.leave if resources.server.traits.keeps_agents else None)
            return
        from ..programs.host import open_program_host  # brings a web server, which other runs do not need

        rules, traits = resources.plan.rules, resources.server.traits
        async with open_program_host(spec, rules, traits, asking, resources.setup.notify) as handing:
            await run_agents(handing, handing.leave)

    def _executor(self, turns: TurnRunner, leave: Leave | None) -> AgentLoop | ChunkingExecutor:
        resources, spec = self._resources, self._spec
        loop = AgentLoop(
            resources.plan.rules,
            turns,
            resources.toolbox,
            resources.store,
            Deadlines(spec.timeouts.agent, resources.deadline.at),
            spec.retry.retry_failed,
            resources.summarizer,
            resources.deadline,
        )
        if spec.context.oversized == "refuse" and isinstance(resources.store, NoStore):
            return loop  # no input is in parts, and none was in an earlier run
        return ChunkingExecutor(
            loop,
            resources.gate,
            resources.store,
            resources.window,
            max_dispatched=spec.max_dispatched,
            leave=leave,
            deadline=resources.deadline,
        )

    def _engine(
        self,
        source: WorkSource,
        executor: AgentLoop | ChunkingExecutor,
        deliver: Deliver,
        fit: Fit | None,
        events: EventSink | None,
        leave: Leave | None,
    ) -> Engine:
        resources = self._resources
        config = EngineConfig(
            source,
            executor,
            resources.store,
            resources.gate,
            deliver,
            self._spec.max_dispatched,
            leave,
            fit,
            executor.complete if isinstance(executor, ChunkingExecutor) else None,
            events,
            settles=resources.joined is None,  # the end of an agent is written behind its facts
            deadline=resources.deadline,
        )
        return Engine(config)

    def _fit(self) -> Fit | None:
        window, layout = self._resources.window, self._resources.plan.layout
        if window is None:
            return None
        if self._spec.context.oversized == "refuse":
            return window.fit
        return InputChunker(window, layout.task, layout.template.fields).fit

    def _warming(self) -> PrefixWarmup | None:
        resources, wanted = self._resources, self._spec.prefix.warm_prefix
        rules, lead, total = resources.plan.rules, resources.plan.layout.lead, resources.inputs.total
        if wanted is None:
            several = total is None or total > 1
            is_managed = resources.backend.traits.managed_cache
            wanted = is_managed and several and prefix_chars(rules.prompt) + len(lead) >= _WORTH_WARMING
        if not wanted:
            return None
        return PrefixWarmup(resources.backend, rules, resources.setup.notify, self._spec.timeouts.turn, lead)

    def _started(self, total: int | None, prices: tuple[float, float, float] | None) -> RunStarted:
        traits, limit = self._resources.server.traits, self._resources.gate.slots.limit
        return RunStarted(traits.name, self._resources.plan.rules.model, limit, total, traits.seen, prices)
