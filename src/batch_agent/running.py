"""One run, from a spec to the last result. Puts the adapters together."""

import sys
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, takewhile

from .agent.output import output_type
from .backends.connect import connect
from .backends.prices import price_of
from .core.errors import SpecError
from .core.events import Event, Notice, RunStarted, Scheduled, Shared, Spent, ToolsUsed
from .core.interfaces import Backend, EventSink, Store, Toolbox
from .core.requests import Usage
from .core.rules import OutputType, Rules
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
from .engine.opening import calibrate, open_gate
from .engine.source import Inputs, InputSource
from .engine.spending import Spending
from .engine.splitting import Splitting
from .engine.stream import Outbox
from .engine.summarizer import Summarizer
from .engine.upkeep import upkeep
from .engine.warming import Warming
from .engine.window import Window, open_window
from .plan.changes import check_plan
from .plan.compile import Plan, compile_plan, prefix_chars
from .plan.layout import Layout, as_they_come, lay_out
from .plan.report import CHARS_PER_TOKEN, prefix_report
from .plan.template import check_first, template_of
from .schedule.budget import Budget
from .schedule.health import Health
from .store.memory import NoStore
from .store.sqlite import SqliteStore
from .tools import Tool, ToolProvider, as_tool, check_names, open_tools

_PATIENCE_PER_RETRY = 5.0
"""Seconds for which a backend that is gone is waited for, for each retry that the user allows."""
_WORTH_WARMING = 4096
"""Characters: prefixes of less than a thousand tokens are not cached by the services which need warming."""
_MOST_LAID_OUT = 200_000
"""Inputs. Looking for what more of them share takes longer than people wait for a first result."""
_NOBODY = Traits("nobody", "", True, True, True, 1)
"""For a look at the prompts without a server: one that can do everything."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could begin."""

    server: Backend
    plan: Plan
    layout: Layout
    tools: list[Tool]
    inputs: Inputs
    chars_per_token: float
    report: PrefixReport


class Run:
    """A spec whose parts were found to be sound, before anything is opened."""

    def __init__(
        self,
        spec: BatchSpec,
        output: OutputType | None,
        tools: list[Tool],
        providers: list[ToolProvider],
        events: EventSink | None,
        only: Sequence[int] | None = None,
    ) -> None:
        self._spec = spec
        self._only = only
        self._output = output
        self._tools = tools
        self._providers = providers
        self._events = events

    @classmethod
    def check(cls, spec: BatchSpec, events: EventSink | None, only: Sequence[int] | None = None) -> "Run":
        """`only`: the numbers of the inputs that are asked, for inputs that are all there; None: all of them."""
        if isinstance(spec.task, str) and not template_of(spec.task).fields:
            warnings.warn("The task names no {field}: every agent is asked the same thing.", stacklevel=4)
        if spec.tools and spec.limits.max_turns == 1:
            warnings.warn("max_turns=1 leaves no turn for a tool call: the only one must be the answer.", stacklevel=4)
        providers = [tool for tool in spec.tools if isinstance(tool, ToolProvider)]
        tools = [as_tool(tool) for tool in spec.tools if not isinstance(tool, ToolProvider)]
        check_names(tools)
        return cls(spec, output_type(spec.output_schema), tools, providers, events, only)

    async def drive(self, outbox: Outbox) -> None:
        """Raises SpecError, BackendError, RunStopped and StoreError."""
        inputs = Inputs(self._spec.inputs)
        layout = await self._lay_out(inputs)
        async with AsyncExitStack() as stack:
            stack.enter_context(rarer_collections())
            if isinstance(self._events, AbstractContextManager):
                stack.enter_context(self._events)
            store = _store(self._spec)
            await store.open()
            stack.push_async_callback(store.aclose)
            tools = await self._all_tools(stack)
            prepared = await self._prepare(await self._backend(stack), tools, inputs, layout)
            if prepared.report.findings and self._spec.prefix.strict_prefix:
                raise SpecError(
                    f"strict_prefix=True, and prompts are not shared as they are. {_listed(prepared.report)}"
                )
            await self._run(prepared, store, outbox)

    async def lint(self) -> PrefixReport:
        """What the prompts share, as far as it can be told without a server."""
        inputs = Inputs(self._spec.inputs)
        layout = await self._lay_out(inputs)
        async with AsyncExitStack() as stack:
            plan = self._plan(await self._all_tools(stack), layout, _NOBODY)
            return prefix_report(self._spec, plan.rules, layout, await inputs.known(), inputs.total, None)

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[Prepared]:
        """The run with its backend and its tools, before it begins."""
        inputs = Inputs(self._spec.inputs)
        layout = await self._lay_out(inputs)
        async with AsyncExitStack() as stack:
            tools = await self._all_tools(stack)
            yield await self._prepare(await self._backend(stack), tools, inputs, layout)

    async def _lay_out(self, inputs: Inputs) -> Layout:
        spec = self._spec
        first = await inputs.peek()
        template = template_of(spec.task, first)
        for value in first:
            check_first(template, value)
        if inputs.rows is None or len(inputs.rows) > _MOST_LAID_OUT:
            return as_they_come(template)
        return lay_out(template, inputs.rows, hoist=spec.prefix.hoist, reorder=spec.prefix.reorder)

    async def _all_tools(self, stack: AsyncExitStack) -> list[Tool]:
        return [*self._tools, *[tool for each in self._providers for tool in await self._provided(each, stack)]]

    async def _provided(self, provider: ToolProvider, stack: AsyncExitStack) -> Sequence[Tool]:
        self._notify(f"Starting {provider} ...")
        return await stack.enter_async_context(provider.open())

    async def _backend(self, stack: AsyncExitStack) -> Backend:
        spec = self._spec
        if not isinstance(spec.backend, str):
            return spec.backend  # it stays its owner's: one backend may serve several runs
        backend = await connect(spec.backend, spec.model, uses_tools=self._may_call_natively, notify=self._notify)
        stack.push_async_callback(backend.aclose)
        for name in backend.traits.ignores:
            if getattr(spec.sampling, name) is not None:
                self._notify(f"{backend.traits.name} has no {name}=: it is not sent.")
        return backend

    @property
    def _may_call_natively(self) -> bool:
        return bool(self._spec.tools) and self._spec.prefix.tool_mode != "action"

    def _notify(self, text: str) -> None:
        if self._events is not None:
            self._events.emit(Notice(text))
        else:
            print(f"batch-agent: {text}", file=sys.stderr, flush=True)

    def _plan(self, tools: list[Tool], layout: Layout, traits: Traits) -> Plan:
        specs = tuple(tool.spec for tool in tools)
        may_start_early = any(tool.sharing.is_shared for tool in tools)
        return compile_plan(self._spec, layout, specs, self._output, traits, may_start_early=may_start_early)

    async def _prepare(self, server: Backend, tools: list[Tool], inputs: Inputs, layout: Layout) -> Prepared:
        plan = self._plan(tools, layout, server.traits)
        known = await inputs.known()
        first = str(known[0]) if known else ""
        scale = await calibrate(server, f"{plan.rules.prompt.system}\n{first}")
        report = prefix_report(self._spec, plan.rules, layout, known, inputs.total, scale)
        return Prepared(server, plan, layout, tools, inputs, scale or CHARS_PER_TOKEN, report)

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
            self._notify(_listed(report))

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
        return Warming(backend, rules, self._notify, self._spec.timeouts.turn, lead) if wanted else None


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
