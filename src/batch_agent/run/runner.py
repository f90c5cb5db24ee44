"""A run under way, from the first agent to the last result."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace

from ..backends.prices import known_price
from ..core.events import Event, RunStarted, Scheduled, Shared
from ..core.hub import Hub
from ..core.interfaces import EventSink, WorkSource
from ..core.requests import Usage
from ..core.results import AgentResult
from ..core.sharing import PrefixReport
from ..engine.asking import Asking, Turns
from ..engine.chunked import Chunked
from ..engine.delivery import Delivery
from ..engine.engine import Deliver, Engine, Fit, Leave
from ..engine.loop import AgentLoop
from ..engine.source import InputSource
from ..engine.splitting import Splitting
from ..engine.stream import Outbox
from ..engine.warming import Warming
from ..engine.window import Window, open_window
from ..plan.compile import prefix_chars
from ..plan.layout import Layout
from ..tasks.deadlines import Deadlines
from ..tasks.run_deadline import RunDeadline, starting
from .complete_checkpoint import mark_finished
from .resources import Ready, listed, open_runs
from .setup import Preparation, asking_order

_WORTH_WARMING = 4096
"""Characters: prefixes of less than a thousand tokens are not cached by the services which need warming."""

Put = Callable[[AgentResult], Awaitable[None]]
Write = Callable[[AgentResult], None]


class Run:
    """One run on its own, or one that is shared with others who meet at a hub."""

    def __init__(
        self,
        preparation: Preparation,
        only: Sequence[int] | None = None,
        hub: Hub | None = None,
        *,
        works: bool = True,
    ) -> None:
        """`only`: the numbers of the inputs that are asked, for inputs that are all there; None: all of them. `works`:
        agents run in this process too, not only at the others who meet at the hub."""
        self._preparation = preparation
        self._only = only
        self._hub = hub
        self._works = works

    async def drive(self, outbox: Outbox) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        preparation = self._preparation
        deadline = RunDeadline(preparation.spec.spend.deadline)
        async with AsyncExitStack() as stack:
            with starting(deadline):
                async with deadline.limit():
                    laid_out = await preparation.lay_out()
                    runs = open_runs([preparation], [laid_out], preparation.events, self._hub, deadline=deadline)
                    [ready] = await stack.enter_async_context(runs)
            going = Going(ready, self._only, works=self._works)
            try:
                await going.go(outbox.put)
            finally:
                outbox.scheduling, outbox.prefix = ready.scheduling, going.prefix


class Work:
    """A part in a run that somebody else has asked for."""

    def __init__(self, preparation: Preparation, hub: Hub) -> None:
        """The inputs are those that others post."""
        self._preparation = preparation
        self._hub = hub

    async def drive(self) -> None:
        """Returns when nobody who shares the run has anything left to do. Raises SpecError (PlanMismatch where this
        process would ask something else), BackendError, RunStopped and StoreError."""
        preparation = self._preparation
        deadline = RunDeadline(preparation.spec.spend.deadline)
        runs = open_runs(
            [preparation],
            [preparation.as_they_come()],
            preparation.events,
            self._hub,
            asks=False,
            deadline=deadline,
        )
        async with AsyncExitStack() as stack:
            with starting(deadline):
                async with deadline.limit():
                    [ready] = await stack.enter_async_context(runs)
            await Going(ready).work()


class Going:
    """A run that was made ready, driven to its end; in a flow, one of several."""

    def __init__(self, ready: Ready, only: Sequence[int] | None = None, *, works: bool = True) -> None:
        self._ready = ready
        self._works = works
        self._spec = ready.preparation.spec
        self._events = ready.events
        self._only = only
        self._counts: dict[str, int] = {}
        self.window: Window | None = None
        self.prefix = ready.prepared.report
        """What the prompts share: as expected, and once the run is over also as seen."""

    async def open(self) -> None:
        """Learns what fits the model's window."""
        prepared, counts = self._ready.prepared, self._counts if self._ready.store.is_durable else None
        self.window = await open_window(self._spec, prepared.plan.rules, prepared.server, counts)

    async def work(self) -> None:
        """For others: until nobody who shares the run has anything left to do. Raises RunStopped and StoreError."""
        from ..cluster.working import ending_at  # of runs that are shared

        joined = self._ready.joined
        assert joined is not None
        traits, limit = self._ready.prepared.server.traits, self._ready.gate.slots.limit
        self._emit(RunStarted(traits.name, self._ready.prepared.plan.rules.model, limit, None, traits.seen))
        await self.open()
        try:
            source = joined.source(self._ready.gate, ends_by_itself=True)
            async with self._staffed() as (turns, leave):
                executor = self._executor(turns, leave)
                await self._engine(source, executor, ending_at(joined), None, self._events, leave).run()
        finally:
            self._emit(Scheduled(self._ready.scheduling))

    async def go(self, put: Put) -> None:
        """Every result goes to `put`, as it comes. Raises RunStopped and StoreError."""
        ready, prepared = self._ready, self._ready.prepared
        traits = prepared.server.traits
        model, total = prepared.plan.rules.model, prepared.inputs.total
        self._emit(RunStarted(traits.name, model, ready.gate.slots.limit, total, traits.seen, self._prices()))
        self._tell(prepared.report)
        if self.window is None:
            await self.open()
        try:
            async with self._written() as write:
                await self._drive(Delivery(put, self._spec.on_result, write, self._events).deliver)
            if ready.joined is None and self._only is None:
                await mark_finished(prepared, ready.store, self._counts)
        finally:
            self.prefix = replace(prepared.report, measured=_cached_share(ready.gate.first_turns))
            self._emit(Scheduled(ready.scheduling))
            if self.prefix.measured is not None and self._spec.runtime is None:
                self._emit(Shared(self.prefix))

    def _written(self) -> AbstractAsyncContextManager[Write | None]:
        """Where results are written to as they come, if anywhere."""
        if self._spec.out is None or self._only is not None:
            return nullcontext()
        from ..data import results_to

        return results_to(self._spec.out)

    async def _drive(self, deliver: Deliver) -> None:
        prepared, joined = self._ready.prepared, self._ready.joined
        asking = self._only or asking_order(prepared.layout, prepared.inputs)
        inputs, fit = InputSource(prepared.inputs, prepared.plan.job, asking), self._fit(prepared.layout)
        async with self._staffed() as (turns, leave):
            executor = self._executor(turns, leave)
            if joined is None:
                await self._engine(inputs, executor, deliver, fit, self._events, leave).run()
                return
            from ..cluster.calling import Calling
            from ..cluster.working import work_and_collect

            calling = Calling(joined, inputs, fit, executor.retell, deliver, self._events, self._ready.deadline)
            if not self._works:
                await calling.collect()
                return
            source = joined.source(self._ready.gate)
            engine = self._engine(source, executor, calling.finished_here, None, joined.events.here, leave)
            await work_and_collect(engine, source, calling)

    @asynccontextmanager
    async def _staffed(self) -> AsyncIterator[tuple[Turns, Leave | None]]:
        """Where agents take their turns, and who hears of those that are done."""
        ready, asking = self._ready, self._asking()
        if self._spec.runtime is None or ready.prepared.is_finished:
            yield asking, ready.backend.leave if ready.prepared.server.traits.keeps_agents else None
            return
        from ..staffing import staffed  # brings a web server, which other runs do not need

        async with staffed(ready, asking) as handing:
            yield handing, handing.leave

    def _executor(self, turns: Turns, leave: Leave | None) -> Chunked:
        ready, spec = self._ready, self._spec
        loop = AgentLoop(
            ready.prepared.plan.rules,
            turns,
            ready.tools,
            ready.store,
            Deadlines(spec.timeouts.agent, ready.deadline.at),
            spec.retry.retry_failed,
            ready.summarizer,
            ready.deadline,
        )
        return Chunked(
            loop,
            ready.gate,
            ready.store,
            self.window,
            max_dispatched=spec.max_dispatched,
            leave=leave,
            deadline=ready.deadline,
        )

    def _engine(
        self,
        source: WorkSource,
        executor: Chunked,
        deliver: Deliver,
        fit: Fit | None,
        events: EventSink | None,
        leave: Leave | None,
    ) -> Engine:
        ready = self._ready
        return Engine(
            source,
            executor,
            ready.store,
            ready.gate,
            deliver,
            max_dispatched=self._spec.max_dispatched,
            leave=leave,
            fit=fit,
            complete=executor.complete,
            events=events,
            settles=ready.joined is None,  # the end of an agent is written behind its facts
            deadline=ready.deadline,
        )

    def _fit(self, layout: Layout) -> Fit | None:
        if self.window is None:
            return None
        if self._spec.context.oversized == "refuse":
            return self.window.fit
        return Splitting(self.window, layout.task, layout.template.fields).fit

    def _asking(self) -> Asking:
        spec, ready = self._spec, self._ready
        return Asking(
            ready.backend,
            ready.gate,
            ready.health,
            Deadlines(spec.timeouts.turn),
            spec.retry,
            self._warming(),
            self._events,
        )

    def _warming(self) -> Warming | None:
        backend, rules = self._ready.backend, self._ready.prepared.plan.rules
        lead, total = self._ready.prepared.layout.lead, self._ready.prepared.inputs.total
        wanted = self._spec.prefix.warm_prefix
        if wanted is None:
            several = total is None or total > 1
            is_long = prefix_chars(rules.prompt) + len(lead) >= _WORTH_WARMING
            wanted = backend.traits.managed_cache and several and is_long
        notify = self._ready.preparation.notify
        return Warming(backend, rules, notify, self._spec.timeouts.turn, lead) if wanted else None

    def _tell(self, report: PrefixReport) -> None:
        """Before the run. Without a sink, only what is wrong is worth a line. What programs ask, nobody knows."""
        if self._spec.runtime is not None:
            return
        if self._ready.preparation.events is not None:
            self._emit(Shared(report))
        elif report.findings:
            self._ready.preparation.notify(listed(report))

    def _prices(self) -> tuple[float, float, float] | None:
        prepared = self._ready.prepared
        price = known_price(prepared.plan.rules.model, prepared.server.traits.name, self._spec.spend.prices)
        return None if price is None else (price.input * 1e6, price.cached * 1e6, price.output * 1e6)

    def _emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.emit(event)


def _cached_share(usage: Usage) -> float | None:
    """None from a server that never says what it found in its cache."""
    return usage.cached / usage.input if usage.input and usage.cached else None
