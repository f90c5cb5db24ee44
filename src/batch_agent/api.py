"""The facade: what people call. The only place, with the CLI, that puts adapters together."""

import asyncio
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from .agent.output import output_type
from .backends.connect import connect
from .backends.prices import price_of
from .core.errors import RunStopped, SpecError
from .core.events import Event, Notice, RunStarted, Scheduled, Spent, ToolsUsed
from .core.interfaces import Backend, EventSink, Store, Toolbox
from .core.results import AgentResult, Results
from .core.rules import OutputType, Rules
from .core.spec import BatchSpec
from .core.traits import Traits
from .engine.blocking import run_blocking
from .engine.cancellation import is_being_cancelled
from .engine.collector import rarer_collections
from .engine.deadlines import Deadlines
from .engine.engine import Engine
from .engine.gate import Gate
from .engine.loop import AgentLoop
from .engine.opening import open_gate
from .engine.source import Inputs, InputSource
from .engine.spending import Spending
from .engine.stream import Outbox, ResultStream
from .engine.summarizer import Summarizer
from .engine.upkeep import upkeep
from .engine.warming import Warming
from .observe.progress import progress_for
from .plan.changes import check_plan
from .plan.compile import compile_plan, prefix_chars
from .plan.template import Template, check_first, parse_template
from .replaying import replay
from .schedule.budget import Budget
from .schedule.health import Health
from .store.memory import NoStore
from .store.sqlite import SqliteStore
from .tools import Tool, ToolProvider, as_tool, check_names, open_tools

_log = logging.getLogger("batch_agent")
_PATIENCE_PER_RETRY = 5.0
"""Seconds for which a backend that is gone is waited for, for each retry that the user allows."""
_WORTH_WARMING = 4096
"""Characters: prefixes of less than a thousand tokens are not cached by the services which need warming."""


class BatchAgent:
    """Runs one task over a list of inputs, each by an agent of its own."""

    @classmethod
    async def run(cls, spec: BatchSpec | None = None, /, **options: Any) -> Results:
        """One result per input, in input order. Failures are results; it raises only for a run that cannot start
        (SpecError, BackendError, before anything is sent), for a backend that went away in mid-run (RunStopped, which
        holds the results so far) and for a checkpoint that cannot be written (StoreError)."""
        results: dict[int, AgentResult] = {}
        try:
            async with cls.stream(spec, **options) as stream:
                async for result in stream:
                    results[result.index] = result
        except RunStopped as stopped:
            stopped.results = [results[index] for index in sorted(results)]
            raise
        return Results((results[index] for index in sorted(results)), stream.scheduling)

    @classmethod
    async def replay(cls, run_dir: str | Path, agent: str | int | None = None, **options: Any) -> list[AgentResult]:
        """Runs the agents of a checkpoint again from what was recorded, without a server and without calling tools:
        see `batch_agent.replaying.replay`."""
        return await replay(run_dir, agent, **options)

    @classmethod
    def run_sync(cls, spec: BatchSpec | None = None, /, **options: Any) -> Results:
        """`run` for scripts; inside a running event loop (a notebook) it works from a thread of its own."""
        return run_blocking(lambda: cls.run(spec, **options))

    @classmethod
    def stream(
        cls,
        spec: BatchSpec | None = None,
        /,
        *,
        events: EventSink | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> ResultStream:
        """Results as the agents finish: `async for result in BatchAgent.stream(...)`. Leaving the loop early cancels
        the rest. `events` sees everything that happens; without it, `progress` (None: in a terminal) is shown."""
        if events is None and (sys.stderr.isatty() if progress is None else progress):
            events = progress_for(sys.stderr)
        if spec is not None and options:
            raise SpecError(f"Give either a BatchSpec or options, not both: {', '.join(options)}.")
        return ResultStream(_Run.check(spec or BatchSpec.of(**options), events).drive)


class _Run:
    """A spec whose parts were found to be sound, before anything is opened."""

    def __init__(
        self,
        spec: BatchSpec,
        template: Template,
        output: OutputType | None,
        tools: list[Tool],
        providers: list[ToolProvider],
        events: EventSink | None,
    ) -> None:
        self._spec = spec
        self._template = template
        self._output = output
        self._tools = tools
        self._providers = providers
        self._events = events

    @classmethod
    def check(cls, spec: BatchSpec, events: EventSink | None) -> "_Run":
        template = parse_template(spec.task)
        if not template.fields:
            warnings.warn("The task names no {field}: every agent is asked the same thing.", stacklevel=4)
        if spec.tools and spec.limits.max_turns == 1:
            warnings.warn("max_turns=1 leaves no turn for a tool call: the only one must be the answer.", stacklevel=4)
        providers = [tool for tool in spec.tools if isinstance(tool, ToolProvider)]
        tools = [as_tool(tool) for tool in spec.tools if not isinstance(tool, ToolProvider)]
        check_names(tools)
        return cls(spec, template, output_type(spec.output_schema), tools, providers, events)

    async def drive(self, outbox: Outbox) -> None:
        spec = self._spec
        inputs = Inputs(spec.inputs)
        for first in await inputs.peek():
            check_first(self._template, first)
        async with AsyncExitStack() as stack:
            stack.enter_context(rarer_collections())
            if isinstance(self._events, AbstractContextManager):
                stack.enter_context(self._events)
            store = _store(spec)
            await store.open()
            stack.push_async_callback(store.aclose)
            tools = [*self._tools, *[tool for each in self._providers for tool in await self._provided(each, stack)]]
            backend = await self._backend(stack)
            await self._run(backend, store, tools, inputs, outbox)

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

    async def _run(self, backend: Backend, store: Store, tools: list[Tool], inputs: Inputs, outbox: Outbox) -> None:
        spec, traits = self._spec, backend.traits
        specs = tuple(tool.spec for tool in tools)
        may_start_early = any(tool.sharing.is_shared for tool in tools)
        plan = compile_plan(spec, self._template, specs, self._output, traits, may_start_early=may_start_early)
        await check_plan(store, plan.description, rerun=spec.plan_changed == "rerun")
        budget = await self._budget(traits, plan.rules.model, store)
        server = backend
        if budget is not None:
            backend = Spending(backend, budget, spec.spend.deadline)
        gate = await open_gate(spec, plan.rules, server, backend, await inputs.peek(), self._events)
        self._emit(RunStarted(traits.name, plan.rules.model, gate.slots.limit, inputs.total, traits.seen))
        summarizer = Summarizer(backend, gate.slots, plan.rules.model)
        async with open_tools(tools, spec, summarizer.shorten) as fabric, upkeep(server, gate):
            engine = Engine(
                InputSource(inputs, plan.job),
                self._loop(plan.rules, backend, fabric, store, gate, inputs.total),
                store,
                gate,
                _Delivery(outbox, spec.on_result).deliver,
                max_dispatched=spec.limits.max_dispatched,
                leave=backend.leave if traits.keeps_agents else None,
                events=self._events,
            )
            try:
                await engine.run()
            finally:
                outbox.scheduling = gate.report()
                self._emit(Scheduled(outbox.scheduling))
                if tools:
                    self._emit(ToolsUsed(fabric.uses, summarizer.usage))
                if budget is not None:
                    self._emit(Spent(budget.tokens, budget.usd))

    async def _budget(self, traits: Traits, model: str, store: Store) -> Budget | None:
        spend = self._spec.spend
        if not spend.is_limited:
            return None
        price = (
            price_of(model, traits.name, spend.prices) if spend.max_usd is not None or model in spend.prices else None
        )
        return Budget(max_tokens=spend.max_total_tokens, max_usd=spend.max_usd, price=price, spent=await store.spent())

    def _loop(
        self, rules: Rules, backend: Backend, tools: Toolbox, store: Store, gate: Gate, total: int | None
    ) -> AgentLoop:
        spec = self._spec
        return AgentLoop(
            rules,
            backend,
            tools,
            store,
            gate,
            Health(spec.retry.max_retries * _PATIENCE_PER_RETRY),
            Deadlines(spec.timeouts.agent),
            Deadlines(spec.timeouts.turn),
            spec.retry,
            spec.retry.retry_failed,
            self._warming(backend, rules, total),
            self._events,
        )

    def _emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.emit(event)

    def _warming(self, backend: Backend, rules: Rules, total: int | None) -> Warming | None:
        wanted = self._spec.prefix.warm_prefix
        if wanted is None:
            several = total is None or total > 1
            wanted = backend.traits.managed_cache and several and prefix_chars(rules.prompt) >= _WORTH_WARMING
        return Warming(backend, rules, self._notify, self._spec.timeouts.turn) if wanted else None


class _Delivery:
    """Hands results to the caller, and to `on_result` first. A callback that raises is reported once."""

    def __init__(self, outbox: Outbox, on_result: Callable[[AgentResult], Any] | None) -> None:
        self._outbox = outbox
        self._on_result = on_result
        self._reported = False

    async def deliver(self, result: AgentResult) -> None:
        if self._on_result is not None:
            try:
                waiting = self._on_result(result)
                if inspect.isawaitable(waiting):
                    await waiting
            except (Exception, asyncio.CancelledError) as error:  # a user's callback may raise anything
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                if not self._reported:
                    _log.exception(
                        "on_result raised for agent %d; the run goes on, later ones are not shown", result.index
                    )
                self._reported = True
        await self._outbox.put(result)


def _store(spec: BatchSpec) -> Store:
    return NoStore() if spec.checkpoint_dir is None else SqliteStore(spec.checkpoint_dir)


__all__: Sequence[str] = ["BatchAgent"]
