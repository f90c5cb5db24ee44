"""A run before it begins: what was asked for, found to be sound, and then its tools, its backend and its plan."""

import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from itertools import chain, count, takewhile
from typing import Any

from ..agent.output import output_type
from ..backends.connect import Trial, connect
from ..core.errors import PlanMismatch
from ..core.events import Notice
from ..core.interfaces import Backend, EventSink
from ..core.prompt import ToolSpec
from ..core.quick import dataclass
from ..core.requests import NO_USAGE, Usage
from ..core.rules import OutputType, ToolMode
from ..core.safe_text import safe_text
from ..core.sharing import PrefixReport
from ..core.spec import BatchSpec
from ..core.traits import Traits
from ..data import check_apart, gather_inputs
from ..engine.opening import calibrate
from ..engine.source import Inputs
from ..observe.safe_log import make_safe
from ..plan.compile import Plan, compile_plan
from ..plan.field_checks import check_first, escaped_fields, settled_by
from ..plan.layout import Layout, as_they_come, lay_out
from ..plan.report import CHARS_PER_TOKEN, prefix_report
from ..plan.template import Template, names_in, template_of
from ..tools import Tool, ToolProvider, as_tool, check_names
from .plan_check import is_same_question, kept_tool_mode

_SAME_FOR_ALL = "The task names no {field}: every agent is asked the same thing."
_MOST_LAID_OUT = 200_000
"""Inputs. Looking for what more of them share takes longer than people wait for a first result."""
_NOBODY = Traits("nobody", "", True, True, True, 1)
"""For a look at the prompts without a server: one that can do everything."""

make_safe(logging.getLogger("batch_agent"))


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The inputs, and how their tasks are put together."""

    inputs: Inputs
    layout: Layout


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
    is_finished: bool = False
    """Every result is in its checkpoint: there is no server, and there are no tools."""


def asking_order(layout: Layout, inputs: Inputs) -> Iterator[int] | None:
    """The inputs in the order in which they are asked, and then those that have come to the list since."""
    if layout.asking is None or inputs.rows is None:
        return None
    return chain(layout.asking, takewhile(lambda row: row < len(inputs.rows or ()), count(len(layout.asking))))


class Openings:
    """The backends and the providers of tools of runs that go side by side: each is opened once, and all are closed
    with the stack."""

    def __init__(
        self, preparations: Sequence["Preparation"], stack: AsyncExitStack, trial: Trial | None = None
    ) -> None:
        """`trial`: in a run with a budget, which pays for what is sent while they are opened."""
        self._stack = stack
        self._trial = replace(trial or Trial(), tell=self._count)
        self.tried = NO_USAGE
        """What it took to find out whether servers take tools."""
        self._call_natively = [each.spec.backend for each in preparations if each.may_call_natively]
        self._backends: dict[tuple[str | Sequence[str], str | None], Backend] = {}
        self._provided: dict[int, Sequence[Tool]] = {}

    async def backend(self, url: str | Sequence[str], model: str | None, notify: Callable[[str], None]) -> Backend:
        """Raises SpecError and BackendError."""
        known = self._backends.get((url, model))
        if known is None:
            tried = url in self._call_natively
            known = await connect(url, model, uses_tools=tried, notify=notify, trial=self._trial)
            self._stack.push_async_callback(known.aclose)
            self._backends[url, model] = known
        return known

    def _count(self, usage: Usage) -> None:
        self.tried += usage

    async def provided(self, provider: ToolProvider, notify: Callable[[str], None]) -> Sequence[Tool]:
        known = self._provided.get(id(provider))
        if known is None:
            notify(f"Starting {provider} ...")
            known = self._provided[id(provider)] = await self._stack.enter_async_context(provider.open())
        return known


class Preparation:
    """A spec whose parts were found to be sound, before anything is opened."""

    def __init__(
        self,
        spec: BatchSpec,
        output: OutputType | None,
        tools: list[Tool],
        providers: list[ToolProvider],
        events: EventSink | None,
        stage: str,
    ) -> None:
        self.spec = spec
        self.events = events
        self.stage = stage
        """Its name in a flow; empty for a run of its own."""
        self._output = output
        self._tools = tools
        self._providers = providers

    @classmethod
    def check(cls, spec: BatchSpec, events: EventSink | None, stage: str = "") -> "Preparation":
        """Raises SpecError."""
        if isinstance(spec.task, str) and not stage and not template_of(spec.task).fields:
            warnings.warn(_SAME_FOR_ALL, stacklevel=4)
        if spec.tools and spec.max_turns == 1:
            warnings.warn("max_turns=1 leaves no turn for a tool call: the only one must be the answer.", stacklevel=4)
        if spec.runtime is not None:
            spec.runtime.check()
        if spec.out is not None:
            check_apart(spec.inputs, spec.out)
        providers = [tool for tool in spec.tools if isinstance(tool, ToolProvider)]
        tools = [as_tool(tool) for tool in spec.tools if not isinstance(tool, ToolProvider)]
        check_names(tools)
        return cls(spec, output_type(spec.output_schema), tools, providers, events, stage)

    async def lay_out(self) -> LaidOut:
        """Raises SpecError for inputs that cannot be read, and for a task that does not fit the first of them."""
        inputs, prefix = Inputs(await gather_inputs(self.spec.inputs)), self.spec.prefix
        first = await inputs.peek()
        template = settled_by(template_of(self.spec.task, first), inputs.known)
        if first and isinstance(self.spec.task, str) and template.fields and not template.has_fields:
            warnings.warn(_SAME_FOR_ALL, stacklevel=2)  # no input has what stands in its braces
        for value in first:
            self._tell_of_text(check_first(template, value), value)
            self._tell_of_escapes(template, value)
        if inputs.rows is None or len(inputs.rows) > _MOST_LAID_OUT:
            return LaidOut(inputs, as_they_come(template))
        return LaidOut(inputs, lay_out(template, inputs.rows, hoist=prefix.hoist, reorder=prefix.reorder))

    def as_they_come(self, names: Collection[str] = ()) -> LaidOut:
        """For inputs that are not there yet: nobody waits for the first. `names`: of fields that they will have. Raises
        SpecError for fields without names."""
        template = template_of(self.spec.task).settled(names)
        return LaidOut(Inputs(self.spec.inputs, is_fed=True), as_they_come(template))

    async def lint(self) -> PrefixReport:
        """What the prompts share, as far as it can be told without a server."""
        laid_out = await self.lay_out()
        async with AsyncExitStack() as stack:
            plan = self._plan(await self._all_tools(Openings([self], stack)), laid_out.layout, _NOBODY)
            return self._report(laid_out, plan, None)

    async def opened(self, laid_out: LaidOut, openings: Openings, kept: Mapping[str, Any] | None = None) -> Prepared:
        """With its tools and its backend. `kept`: the plan of its checkpoint. Raises SpecError and BackendError."""
        tools = await self._all_tools(openings)
        server = await self._backend(openings)
        plan = self._plan(tools, laid_out.layout, server.traits)
        if mode := kept_tool_mode(kept, plan.description):
            plan = self._in_mode(mode, tools, laid_out.layout, server.traits)
        known = laid_out.inputs.known
        scale = await calibrate(server, f"{plan.rules.prompt.system}\n{known[0] if known else ''}")
        report = self._report(laid_out, plan, scale)
        return Prepared(server, plan, laid_out.layout, tools, laid_out.inputs, scale or CHARS_PER_TOKEN, report)

    def recorded_traits(self, kept: Mapping[str, Any]) -> Traits:
        """A server that could have been asked as the checkpoint was; that of the checkpoint, where it is known."""
        if kept_traits := kept.get("finished", {}).get("traits"):
            traits: dict[str, Any] = {each.name: kept_traits[each.name] for each in fields(Traits)}
            return Traits(**{**traits, "ignores": tuple(traits["ignores"]), "seen": ()})
        return replace(_NOBODY, name=kept["backend"], model=kept["model"])

    def recorded_plan(self, layout: Layout, kept: Mapping[str, Any]) -> Plan | None:
        """The plan by what its checkpoint keeps of the server and of tools that would have to be opened; None where it
        was asked something else."""
        own = tuple(tool.spec for tool in self._tools)
        if "question" not in kept or kept.get("providers") != list(map(repr, self._providers)):
            return None
        provided = kept["question"]["tools"][len(own) :] if self._providers else []
        specs = (*own, *(ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in provided))
        traits, mode = self.recorded_traits(kept), kept["tool mode"]
        plan = compile_plan(self.spec, layout, specs, self._output, traits, stage=self.stage, tool_mode=mode)
        return plan if is_same_question(kept, plan.description) else None

    def without_server(self, laid_out: LaidOut, plan: Plan, server: Backend) -> Prepared:
        """For a run that asks nobody."""
        report = self._report(laid_out, plan, None)
        return Prepared(server, plan, laid_out.layout, [], laid_out.inputs, CHARS_PER_TOKEN, report, is_finished=True)

    def notify(self, text: str) -> None:
        """Tells whoever waits."""
        if self.events is not None:
            self.events.emit(Notice(text))
        else:
            print(f"batch-agent: {safe_text(text)}", file=sys.stderr, flush=True)

    def _tell_of_text(self, words: Sequence[str], value: Any) -> None:
        """Braces that are sent as they stand, where somebody may have meant a field."""
        for text in words:
            self.notify(f"The task has {{{text}}}, which no input has as a field: it is sent as it stands.")
        said = self.spec.prefix.system_prompt or ""
        if named := [name for name in names_in(value) if not isinstance(value, str) and f"{{{name}}}" in said]:
            self.notify(
                f"The system prompt has {{{named[0]}}}, which is sent as it stands: a system prompt is the same for "
                "all agents. Fields belong into the task."
            )

    def _tell_of_escapes(self, template: Template, value: Any) -> None:
        for name in [] if isinstance(value, str) else escaped_fields(template, list(names_in(value))):
            self.notify(
                f"The task has {{{{{name}}}}}, which is the text {{{name}}} and not the field. Write {{{name}}} if the "
                "field is meant."
            )

    def _report(self, laid_out: LaidOut, plan: Plan, scale: float | None) -> PrefixReport:
        inputs = laid_out.inputs
        return prefix_report(self.spec, plan.rules, laid_out.layout, inputs.known, inputs.total, scale)

    async def _all_tools(self, openings: Openings) -> list[Tool]:
        found = [tool for each in self._providers for tool in await openings.provided(each, self.notify)]
        return [*self._tools, *found]

    async def _backend(self, openings: Openings) -> Backend:
        spec = self.spec
        if not isinstance(spec.backend, str | Sequence):
            return spec.backend  # it stays its owner's: one backend may serve several runs
        backend = await openings.backend(spec.backend, spec.model, self.notify)
        for name in backend.traits.ignores:
            if getattr(spec.sampling, name) is not None:
                self.notify(f"{backend.traits.name} has no {name}=: it is not sent.")
        return backend

    @property
    def may_call_natively(self) -> bool:
        return bool(self.spec.tools or self.spec.runtime) and self.spec.prefix.tool_mode != "action"

    def _in_mode(self, mode: ToolMode, tools: list[Tool], layout: Layout, traits: Traits) -> Plan:
        """As the agents of the checkpoint were asked. Raises PlanMismatch where this server cannot be asked so."""
        if mode == "native" and not traits.native_tools:
            raise PlanMismatch(
                f"The agents of the checkpoint make tool calls of their server, and {traits.name} does not take any. "
                "Use a server that does, or give this run another checkpoint_dir.",
                f"tool mode (was 'native', {traits.name} has only 'action')",
            )
        return self._plan(tools, layout, traits, mode)

    def _plan(self, tools: list[Tool], layout: Layout, traits: Traits, mode: ToolMode | None = None) -> Plan:
        specs = tuple(tool.spec for tool in tools)
        may_start_early = any(tool.sharing.is_shared for tool in tools)
        if self.spec.runtime is not None:
            traits = replace(traits, json_schema=False)  # what a program says at last, no server can keep to a schema
        plan = compile_plan(
            self.spec,
            layout,
            specs,
            self._output,
            traits,
            may_start_early=may_start_early,
            stage=self.stage,
            tool_mode=mode,
        )
        plan.description["providers"] = list(map(repr, self._providers))
        return plan
