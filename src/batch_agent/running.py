"""A run under way, from the first agent to the last result."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, takewhile

from .backends.prices import known_price
from .core.events import Event, RunStarted, Scheduled, Shared
from .core.requests import Usage
from .core.results import AgentResult
from .core.sharing import PrefixReport
from .data import Write, results_to
from .engine.asking import Asking
from .engine.chunked import Chunked
from .engine.deadlines import Deadlines
from .engine.delivery import Delivery
from .engine.engine import Engine, Fit
from .engine.loop import AgentLoop
from .engine.source import Inputs, InputSource
from .engine.splitting import Splitting
from .engine.stream import Outbox
from .engine.warming import Warming
from .engine.window import Window, open_window
from .plan.compile import prefix_chars
from .plan.layout import Layout
from .preparing import Preparation
from .readying import Ready, listed, open_runs

_WORTH_WARMING = 4096
"""Characters: prefixes of less than a thousand tokens are not cached by the services which need warming."""

Put = Callable[[AgentResult], Awaitable[None]]


class Run:
    """One run on its own."""

    def __init__(self, preparation: Preparation, only: Sequence[int] | None = None) -> None:
        """`only`: the numbers of the inputs that are asked, for inputs that are all there; None: all of them."""
        self._preparation = preparation
        self._only = only

    async def drive(self, outbox: Outbox) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        preparation = self._preparation
        laid_out = await preparation.lay_out()
        async with open_runs([preparation], [laid_out], preparation.events) as [ready]:
            going = Going(ready, self._only)
            try:
                await going.go(outbox.put)
            finally:
                outbox.scheduling, outbox.prefix = ready.gate.report(), going.prefix


class Going:
    """A run that was made ready, driven to its end; in a flow, one of several."""

    def __init__(self, ready: Ready, only: Sequence[int] | None = None) -> None:
        self._ready = ready
        self._spec = ready.preparation.spec
        self._events = ready.preparation.events
        self._only = only
        self.window: Window | None = None
        self.prefix = ready.prepared.report
        """What the prompts share: as expected, and once the run is over also as seen."""

    async def open(self) -> None:
        """Learns what fits the model's window."""
        self.window = await open_window(self._spec, self._ready.prepared.plan.rules, self._ready.prepared.server)

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
            async with results_to(self._spec.out if self._only is None else None) as write:
                await self._engine(put, write).run()
        finally:
            self.prefix = replace(prepared.report, measured=_cached_share(ready.gate.first_turns))
            self._emit(Scheduled(ready.gate.report()))
            if self.prefix.measured is not None:
                self._emit(Shared(self.prefix))

    def _engine(self, put: Put, write: Write | None) -> Engine:
        ready, prepared, limits = self._ready, self._ready.prepared, self._spec.limits
        leave = ready.backend.leave if prepared.server.traits.keeps_agents else None
        executor = Chunked(
            self._loop(), ready.gate, ready.store, self.window, max_dispatched=limits.max_dispatched, leave=leave
        )
        return Engine(
            InputSource(prepared.inputs, prepared.plan.job, self._only or _asking(prepared.layout, prepared.inputs)),
            executor,
            ready.store,
            ready.gate,
            Delivery(put, self._spec.on_result, write).deliver,
            max_dispatched=limits.max_dispatched,
            leave=leave,
            fit=self._fit(prepared.layout),
            complete=executor.complete,
            events=self._events,
        )

    def _fit(self, layout: Layout) -> Fit | None:
        if self.window is None:
            return None
        if self._spec.context.oversized == "refuse":
            return self.window.fit
        return Splitting(self.window, layout.task, layout.template.fields).fit

    def _loop(self) -> AgentLoop:
        spec, ready = self._spec, self._ready
        asking = Asking(
            ready.backend,
            ready.gate,
            ready.health,
            Deadlines(spec.timeouts.turn),
            spec.retry,
            self._warming(),
            self._events,
        )
        return AgentLoop(
            ready.prepared.plan.rules,
            asking,
            ready.tools,
            ready.store,
            Deadlines(spec.timeouts.agent),
            spec.retry.retry_failed,
            ready.summarizer,
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
        """Before the run. Without a sink, only what is wrong is worth a line."""
        if self._events is not None:
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


def _asking(layout: Layout, inputs: Inputs) -> Iterator[int] | None:
    """The inputs in the order in which they are asked, and then those that have come to the list since."""
    if layout.asking is None or inputs.rows is None:
        return None
    return chain(layout.asking, takewhile(lambda row: row < len(inputs.rows or ()), count(len(layout.asking))))


def _cached_share(usage: Usage) -> float | None:
    """None from a server that never says what it found in its cache."""
    return usage.cached / usage.input if usage.input and usage.cached else None
