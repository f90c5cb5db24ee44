"""Setup of a run: a validated spec, and the plan that is compiled from it."""

import inspect
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, count, takewhile
from typing import TYPE_CHECKING, Any

from ..agent.output import output_type
from ..core.agent_config import OutputType, ToolMode
from ..core.errors import PlanMismatch, SpecError
from ..core.events import Notice
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolSpec
from ..core.protocols.backend import Traits
from ..core.protocols.event_sink import EventSink
from ..core.spec import BatchSpec
from ..data import check_output_path, read_inputs_async
from ..data.inputs import print_notice
from ..engine.job_source import JobSource
from ..engine.sync import is_user_frame
from ..lazy_imports import lazy_modules
from ..media.image_files import identify
from ..observe.sanitize import make_safe
from ..plan.compile import Plan, compile_plan
from ..plan.field_checks import check_first_input, escaped_fields, resolve_uncertain_fields
from ..plan.layout import Layout, compute_layout, default_layout
from ..plan.row_keys import check_row_keys
from ..plan.template import BadInput, Template, names_in, template_of
from .plan_check import is_same_question, kept_tool_mode

with lazy_modules(globals()):
    from .. import tools as tool_package
    from ..scores import scorer
    from ..tools import tool_context

if TYPE_CHECKING:
    from ..tools import Tool, ToolProvider
    from ..tools.tool_context import ArtifactFolders

_SAME_FOR_ALL = "The task names no {field}: every agent gets the same prompt."
_MAX_LAID_OUT = 200_000
"""Inputs that are laid out. Comparing more would delay the first result for too long."""
ANY_SERVER = Traits("none", "", True, True, True, 1)
"""Traits of a server that supports everything, to inspect prompts without a server."""

make_safe(logging.getLogger("batch_agent"))


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Validated spec of a run, before anything is opened. Each stage of a flow has one."""

    spec: BatchSpec
    events: EventSink | None
    stage: str
    """Name of the stage in a flow; empty for a run of its own."""
    template: Template | None
    """The parsed task; None if its fields depend on the first input."""
    tools: "list[Tool]"
    """Tools that need not be opened."""
    providers: "list[ToolProvider]"
    """Providers of tools, such as MCP servers."""
    output: OutputType | None
    input_fields: Collection[str] | None = None
    """Field names of inputs that come later, from another stage or process; None: the spec has the inputs."""
    artifacts: "ArtifactFolders | None" = None
    """Folders for what tools make; None if no tool takes a ToolContext."""
    compared_model: str | None = None
    """The model to name in results, if the run compares several."""

    @classmethod
    def validate(
        cls, spec: BatchSpec, events: EventSink | None, stage: str = "", input_fields: Collection[str] | None = None
    ) -> "RunSetup":
        """Raises SpecError."""
        template = template_of(spec.task) if isinstance(spec.task, str) else None
        if template is not None and not stage and not template.fields:
            _warn_caller(_SAME_FOR_ALL)
        if spec.tools and spec.max_turns == 1:
            _warn_caller("max_turns=1 leaves no turn for a tool call: the only turn must be the answer.")
        if spec.evaluation.samples > 1 and spec.sampling.temperature == 0:
            _warn_caller(f"samples={spec.evaluation.samples} with temperature=0: all samples of an input are alike.")
        if spec.evaluation.score:
            scorer.scorers_of(spec.evaluation.score)
        if spec.runtime is not None:
            spec.runtime.check()
        if spec.out is not None:
            check_output_path(spec.inputs, spec.out)
        tools, providers, artifacts = _tools(spec) if spec.tools else ([], [], None)
        output = None if spec.output_schema is None else output_type(spec.output_schema)
        return cls(spec, events, stage, template, tools, providers, output, input_fields, artifacts)

    @property
    def uses_native_tools(self) -> bool:
        """Whether the run may use native tool calls."""
        return bool(self.spec.tools or self.spec.runtime) and self.spec.prefix.tool_mode != "action"

    def shows_images(self, inputs: JobSource, layout: Layout, tools: "Sequence[Tool]") -> bool:
        """Whether requests may have images: those of the first input, or of a tool."""
        if any(tool.returns_images for tool in tools):
            return True
        return self.first_has_images(inputs, layout)

    def first_has_images(self, inputs: JobSource, layout: Layout) -> bool:
        """Whether the task contains images of the first input."""
        try:
            return bool(inputs.known) and bool(layout.template.images(inputs.known[0]))
        except BadInput:
            return False

    def notify(self, text: str) -> None:
        """Reports to the event sink, or on standard error if there is none."""
        if self.events is not None:
            self.events.emit(Notice(text))
        else:
            print_notice(text)

    async def layout_inputs(self) -> tuple[JobSource, Layout]:
        """The inputs and the layout of their prompts. Inputs of a later stage are not awaited. Raises SpecError for
        inputs that cannot be read, and for a task that does not fit the first input."""
        if self.input_fields is not None:
            template = (self.template or template_of(self.spec.task)).with_fields(self.input_fields)
            if self.spec.rows.images:
                template = template.with_images(self.spec.rows.images)
            return JobSource(self.spec.inputs, is_fed=True), default_layout(template)
        inputs, prefix = (
            JobSource(await read_inputs_async(self.spec.inputs, self.spec.rows, self.notify)),
            self.spec.prefix,
        )
        first = await inputs.peek()
        template = resolve_uncertain_fields(self.template or template_of(self.spec.task, first), inputs.known)
        if self.spec.rows.images:
            template = template.with_images(self.spec.rows.images)
        if first:
            self._check_first(template, first[0])
        rows = inputs.rows
        if rows is not None and self.spec.rows.key is not None:
            check_row_keys(rows, self.spec.rows.key)
        if rows is None or not 1 < len(rows) <= _MAX_LAID_OUT:
            return inputs, default_layout(template)
        return inputs, compute_layout(template, rows, hoist=prefix.hoist, reorder=prefix.reorder)

    def compile(self, tools: "Sequence[Tool]", layout: Layout, traits: Traits, kept: Mapping[str, Any] | None) -> Plan:
        """The plan for a server. `kept`: the plan of the checkpoint, whose agents continue in their tool mode. Raises
        SpecError, and PlanMismatch if the server does not support that mode."""
        plan = self._compile(tools, layout, traits, None)
        mode = None if kept is None else kept_tool_mode(kept, plan.description)
        if mode is None:
            return plan
        if mode == "native" and not traits.native_tools:
            raise PlanMismatch(
                f"The agents of the checkpoint use native tool calls, which {traits.name} does not support. Use a "
                "server that does, or another checkpoint_dir.",
                f"tool mode (was 'native', {traits.name} has only 'action')",
            )
        return self._compile(tools, layout, traits, mode)

    def recorded_traits(self, kept: Mapping[str, Any]) -> Traits:
        """Traits of a checkpoint's server, as far as they are recorded."""
        if kept_traits := kept.get("finished", {}).get("traits"):
            known = {each.name for each in fields(Traits)}  # another version may have recorded others
            traits: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in kept_traits.items()
                if name in known
            }
            return Traits(**traits)
        return replace(ANY_SERVER, name=kept["backend"], model=kept["model"])

    def recorded_plan(self, layout: Layout, kept: Mapping[str, Any]) -> Plan | None:
        """The plan of a checkpoint, from the recorded server and the recorded tools of providers; None if the
        checkpoint answers another question."""
        own = tuple(tool.spec for tool in self.tools)
        if "question" not in kept or kept.get("providers") != list(map(repr, self.providers)):
            return None
        provided = kept["question"]["tools"][len(own) :] if self.providers else []
        specs = (*own, *(ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in provided))
        traits, mode = self.recorded_traits(kept), kept["tool mode"]
        plan = compile_plan(
            self.spec, layout, specs, self.output, traits, stage=self.stage, tool_mode=mode, identify=identify
        )
        return plan if is_same_question(kept, plan.description) else None

    def _compile(self, tools: "Sequence[Tool]", layout: Layout, traits: Traits, mode: ToolMode | None) -> Plan:
        if self.spec.runtime is not None:
            traits = replace(traits, json_schema=False)  # no server can enforce a schema on a program's output
        plan = compile_plan(
            self.spec,
            layout,
            tuple([tool.spec for tool in tools]),
            self.output,
            traits,
            may_start_early=any(tool.is_shared for tool in tools),
            stage=self.stage,
            tool_mode=mode,
            identify=identify,
        )
        plan.description["providers"] = list(map(repr, self.providers))
        return plan

    def _check_first(self, template: Template, value: Any) -> None:
        """Warns of braces that are sent verbatim but look like a field. Raises SpecError."""
        if isinstance(self.spec.task, str) and template.fields and not template.has_fields:
            _warn_caller(_SAME_FOR_ALL)  # the braces name no field of the inputs
        for text in check_first_input(template, value):
            self.notify(f"The task contains {{{text}}}, which is not a field of the inputs: it is sent verbatim.")
        if isinstance(value, str):
            return
        names, system = list(names_in(value)), self.spec.prefix.system_prompt or ""
        if named := [name for name in names if f"{{{name}}}" in system]:
            self.notify(
                f"The system prompt contains {{{named[0]}}}, which is sent verbatim: a system prompt is the same for "
                "all agents. Use fields in the task."
            )
        for name in escaped_fields(template, names):
            self.notify(
                f"The task contains {{{{{name}}}}}, which is sent as the text {{{name}}}. Write {{{name}}} to insert "
                "the field."
            )


def input_order(layout: Layout, inputs: JobSource) -> Iterator[int] | None:
    """Indices of the inputs in the order of the layout, followed by inputs that were appended to the list since."""
    if layout.run_order is None or inputs.rows is None:
        return None
    return chain(layout.run_order, takewhile(lambda row: row < len(inputs.rows or ()), count(len(layout.run_order))))


def check_lane(spec: BatchSpec, traits: Traits) -> None:
    """Raises SpecError for a lane that the backend does not offer."""
    if spec.lane == "auto" or spec.lane in traits.lanes:
        return
    offered = " and ".join(repr(lane) for lane in traits.lanes)
    raise SpecError(
        f"lane={spec.lane!r}: {traits.name} has no such lane, only {offered}. docs/lanes.md lists the lanes of each "
        "backend."
    )


def check_tokens(traits: Traits, *, has_checkpoint: bool) -> None:
    """Raises SpecError for a backend that returns no token ids, and for a run without a checkpoint in which to keep
    them."""
    if not has_checkpoint:
        raise SpecError("tokens=True keeps token ids in the checkpoint: pass checkpoint_dir=.")
    if not traits.token_ids:
        raise SpecError(
            f"tokens=True: {traits.name} returns no token ids. Use vLLM (vllm://HOST:PORT) or SGLang "
            "(sglang://HOST:PORT), or omit tokens=True."
        )


def _tools(spec: BatchSpec) -> "tuple[list[Tool], list[ToolProvider], ArtifactFolders | None]":
    """The tools of a spec, the providers of further tools, and the folders for artifacts. Raises SpecError."""
    providers, tools = list[tool_package.ToolProvider](), list[tool_package.Tool]()
    for each in spec.tools:
        # Not of a Tool: it suggests names for the attributes that it lacks, which takes a millisecond.
        if not isinstance(each, tool_package.Tool) and isinstance(each, tool_package.ToolProvider):
            providers.append(each)
        else:
            tools.append(tool_package.as_tool(each))
    tool_package.check_names(tools)
    takes_context = any(tool.context_arg is not None for tool in tools)
    return tools, providers, tool_context.ArtifactFolders(spec.checkpoint_dir) if takes_context else None


def _warn_caller(text: str) -> None:
    """Issues a warning at the line of the user's code that called this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and not is_user_frame(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
