"""One run, from a spec to the last result. Puts the adapters together."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from itertools import chain, count, takewhile

from .backends.prices import price_of
from .core.errors import SpecError
from .core.events import Event, RunStarted, Scheduled, Shared, Spent, ToolsUsed
from .core.interfaces import Backend, Store, Toolbox
from .core.requests import Usage
from .core.rules import Rules
from .core.sharing import PrefixReport
from .core.spec import BatchSpec
from .core.traits import Traits
from .engine.asking import Asking
from .engine.chunked import Chunked
from .engine.collector import rarer_collections
from .engine.deadlines import Deadlines
from .engine.delivery import Delivery
from .engine.engine import Engine, Fit
from .engine.gate import Gate
from .engine.loop import AgentLoop
from .engine.opening import open_gate
from .engine.source import Inputs, InputSource
from .engine.spending import Spending
from .engine.splitting import Splitting
from .engine.stream import Outbox
from .engine.summarizer import Summarizer
from .engine.upkeep import upkeep
from .engine.warming import Warming
from .engine.window import Window, open_window
from .plan.changes import check_plan
from .plan.compile import prefix_chars
from .plan.layout import Layout
from .preparing import Preparation, Prepared
from .schedule.budget import Budget
from .schedule.health import Health
from .store.memory import NoStore
from .store.sqlite import SqliteStore
from .tools import open_tools

_PATIENCE_PER_RETRY = 5.0
"""Seconds for which a backend that is gone is waited for, for each retry that the user allows."""
_WORTH_WARMING = 4096
"""Characters: prefixes of less than a thousand tokens are not cached by the services which need warming."""


class Run:
    """A prepared run, driven to its end."""

    def __init__(self, preparation: Preparation, only: Sequence[int] | None = None) -> None:
        """`only`: the numbers of the inputs that are asked, for inputs that are all there; None: all of them."""
        self._preparation = preparation
        self._spec = preparation.spec
        self._events = preparation.events
        self._only = only

    async def drive(self, outbox: Outbox) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        laid_out = await self._preparation.lay_out()
        async with AsyncExitStack() as stack:
            stack.enter_context(rarer_collections())
            if isinstance(self._events, AbstractContextManager):
                stack.enter_context(self._events)
            store = _store(self._spec)
            await store.open()
            stack.push_async_callback(store.aclose)
            prepared = await stack.enter_async_context(self._preparation.opened(laid_out))
            if prepared.report.findings and self._spec.prefix.strict_prefix:
                raise SpecError(
                    f"strict_prefix=True, and prompts are not shared as they are. {_listed(prepared.report)}"
                )
            await self._run(prepared, store, outbox)

    async def _run(self, prepared: Prepared, store: Store, outbox: Outbox) -> None:
        spec, plan, server, inputs = self._spec, prepared.plan, prepared.server, prepared.inputs
        traits = server.traits
        await check_plan(store, plan.description, rerun=spec.plan_changed == "rerun")
        budget = await self._budget(traits, plan.rules.model, store)
        backend = server if budget is None else Spending(server, budget, spec.spend.deadline)
        shared = prefix_chars(plan.rules.prompt) + len(prepared.layout.lead)
        gate = open_gate(spec, plan.rules, backend, shared, prepared.chars_per_token, self._events)
        self._emit(RunStarted(traits.name, plan.rules.model, gate.slots.limit, inputs.total, traits.seen))
        self._tell(prepared.report)
        window = await open_window(spec, plan.rules, server)
        summarizer = Summarizer(backend, gate.slots, plan.rules.model)
        async with open_tools(prepared.tools, spec, summarizer.shorten) as fabric, upkeep(server, gate):
            loop = self._loop(prepared, backend, fabric, store, gate, summarizer)
            leave = backend.leave if traits.keeps_agents else None
            most = spec.limits.max_dispatched
            executor = Chunked(loop, gate, store, window, max_dispatched=most, leave=leave)
            engine = Engine(
                InputSource(inputs, plan.job, self._only or _asking(prepared.layout, inputs)),
                executor,
                store,
                gate,
                Delivery(outbox, spec.on_result).deliver,
                max_dispatched=most,
                leave=leave,
                fit=self._fit(window, prepared.layout),
                complete=executor.complete,
                events=self._events,
            )
            try:
                await engine.run()
            finally:
                outbox.scheduling = gate.report()
                outbox.prefix = replace(prepared.report, measured=_cached_share(gate.first_turns))
                self._emit(Scheduled(outbox.scheduling))
                if outbox.prefix.measured is not None:
                    self._emit(Shared(outbox.prefix))
                if prepared.tools:
                    self._emit(ToolsUsed(fabric.uses, summarizer.usage))
                if budget is not None:
                    self._emit(Spent(budget.tokens, budget.usd))

    def _fit(self, window: Window | None, layout: Layout) -> Fit | None:
        if window is None:
            return None
        if self._spec.context.oversized == "refuse":
            return window.fit
        return Splitting(window, layout.task, layout.template.fields).fit

    def _tell(self, report: PrefixReport) -> None:
        """Before the run. Without a sink, only what is wrong is worth a line."""
        if self._events is not None:
            self._emit(Shared(report))
        elif report.findings:
            self._preparation.notify(_listed(report))

    async def _budget(self, traits: Traits, model: str, store: Store) -> Budget | None:
        spend = self._spec.spend
        if not spend.is_limited:
            return None
        price = (
            price_of(model, traits.name, spend.prices) if spend.max_usd is not None or model in spend.prices else None
        )
        return Budget(max_tokens=spend.max_total_tokens, max_usd=spend.max_usd, price=price, spent=await store.spent())

    def _loop(
        self,
        prepared: Prepared,
        backend: Backend,
        tools: Toolbox,
        store: Store,
        gate: Gate,
        summarizer: Summarizer,
    ) -> AgentLoop:
        spec, rules = self._spec, prepared.plan.rules
        lead, total = prepared.layout.lead, prepared.inputs.total
        asking = Asking(
            backend,
            gate,
            Health(spec.retry.max_retries * _PATIENCE_PER_RETRY),
            Deadlines(spec.timeouts.turn),
            spec.retry,
            self._warming(backend, rules, lead, total),
            self._events,
        )
        return AgentLoop(
            rules, asking, tools, store, Deadlines(spec.timeouts.agent), spec.retry.retry_failed, summarizer
        )

    def _emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.emit(event)

    def _warming(self, backend: Backend, rules: Rules, lead: str, total: int | None) -> Warming | None:
        wanted = self._spec.prefix.warm_prefix
        if wanted is None:
            several = total is None or total > 1
            is_long = prefix_chars(rules.prompt) + len(lead) >= _WORTH_WARMING
            wanted = backend.traits.managed_cache and several and is_long
        return Warming(backend, rules, self._preparation.notify, self._spec.timeouts.turn, lead) if wanted else None


def _asking(layout: Layout, inputs: Inputs) -> Iterator[int] | None:
    """The inputs in the order in which they are asked, and then those that have come to the list since."""
    if layout.asking is None or inputs.rows is None:
        return None
    return chain(layout.asking, takewhile(lambda row: row < len(inputs.rows or ()), count(len(layout.asking))))


def _cached_share(usage: Usage) -> float | None:
    """None from a server that never says what it found in its cache."""
    return usage.cached / usage.input if usage.input and usage.cached else None


def _listed(report: PrefixReport) -> str:
    return " ".join(map(str, report.findings))


def _store(spec: BatchSpec) -> Store:
    return NoStore() if spec.checkpoint_dir is None else SqliteStore(spec.checkpoint_dir)
