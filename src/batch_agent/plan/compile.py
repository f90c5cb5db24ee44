"""Compiler of a spec and the traits of its backend to the plan of a run: its agent configuration and its jobs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import orjson

from ..core.agent_config import WRAPPED_ANSWER, AgentConfig, Compaction, Job, OutputType, ToolMode
from ..core.errors import ErrorKind, SpecError
from ..core.images import Image, PlacedImage
from ..core.messages import PREAMBLE, Prompt, ToolSpec
from ..core.options import Prefix
from ..core.protocols.backend import Traits
from ..core.requests import Sampling, TokenRequest
from ..core.results import AgentError
from ..core.schema import JsonSchema, is_object, object_of
from ..core.spec import BatchSpec
from ..core.task_fields import Fields
from . import action_schema as actions
from .action_schema import is_enforced, schema_instruction
from .fingerprint import Keys, canonical, fingerprint
from .image_rules import Identify, ImageRules, name_only
from .layout import MIN_BREAKPOINT_CHARS, Layout, last_line_end
from .row_keys import RowKeys
from .template import MARK_OPEN, BadInput, without_marks

_TEXT: JsonSchema = {"type": "string"}
PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of values that are not images. Nearly all inputs have only these."""


class Plan:
    """Plan of a run: the configuration of all agents, and a job for each input."""

    def __init__(
        self,
        spec: BatchSpec,
        layout: Layout,
        config: AgentConfig,
        tools: tuple[ToolSpec, ...],
        backend: str,
        stage: str,
        images: ImageRules,
    ) -> None:
        self.config = config
        self._images = images
        self._names_images = bool(spec.rows.images)
        self.question = _question(spec, layout, config, tools, stage)
        """Everything except the input that can change an answer, as JSON data."""
        self.description = {**_request_format(config), "backend": backend, "question": self.question}
        """Question, request format and limits for this server, as stored in a checkpoint."""
        if spec.evaluation.samples > 1:
            self.description["samples"] = spec.evaluation.samples
        self.layout = layout
        self.references_at = last_line_end(layout.lead)
        """Position in the task where references are inserted, in characters."""
        run, field = fingerprint(self.question), spec.rows.key
        self._has_samples = spec.evaluation.samples > 1
        self._run, self._key_field = run, field
        self._keys: Keys | RowKeys = Keys(run) if field is None else RowKeys(run, field, layout.template.cells)

    def keys(self, values: Iterable[Any]) -> Iterator[str | None]:
        """The keys of the jobs of these inputs, without samples. `values`: in run order. None for an input that has no
        agent or whose images would have to be read."""
        field, cells = self._key_field, self.layout.template.cells
        keys = Keys(self._run) if field is None else RowKeys(self._run, field, cells)
        for value in values:
            try:
                yield None if self.reads_images(value) else keys.key(value)
            except ValueError:
                yield None

    def job(self, index: int, value: Any, sample: int = 0) -> Job:
        """The job of an input, or of one of its samples, which are consecutive. If the input does not fit the task, the
        job carries the error."""
        try:
            task, shared = self.layout.task(index, value)
            if MARK_OPEN in task and (images := self.layout.template.images(value)):
                return self._job_with_images(index, value, sample, task, shared, images)
        except BadInput as error:
            problem = AgentError(ErrorKind.BAD_INPUT, f"Input {index}: {error}")
            return Job(index, self._keys.key(value, sample), value, "", problem)
        references_at = min(self.references_at, shared)
        if self._has_samples and len(task) >= MIN_BREAKPOINT_CHARS:
            shared = len(task)
        return Job(index, self._keys.key(value, sample), value, task, shared=shared, references_at=references_at)

    def reads_images(self, value: Any) -> bool:
        """Whether `job` reads files of this input, so that it may block."""
        if type(value) is dict and not self._names_images and PLAIN.issuperset(map(type, value.values())):
            return False
        try:
            return bool(self.layout.template.images(value))
        except BadInput:
            return False

    def _job_with_images(
        self, index: int, value: Any, sample: int, task: str, shared: int, images: Mapping[str, Image]
    ) -> Job:
        try:
            found = {mark: self._images.checked(image) for mark, image in images.items()}
        except ValueError as error:
            raise BadInput(f"{str(error).rstrip('.')}.") from error
        text, marks = without_marks(task, images)
        before, _ = without_marks(task[:shared], images)
        return Job(
            index,
            self._keys.key(value, sample, [image.digest for image in found.values()]),
            value,
            text,
            shared=len(before),
            references_at=min(len(without_marks(task[: self.references_at], images)[0]), len(before)),
            images=tuple(PlacedImage(at, found[mark]) for at, mark in marks),
        )


def compile_plan(
    spec: BatchSpec,
    layout: Layout,
    tools: tuple[ToolSpec, ...],
    output: OutputType | None,
    traits: Traits,
    *,
    may_start_early: bool = False,
    stage: str = "",
    tool_mode: ToolMode | None = None,
    identify: Identify | None = None,
) -> Plan:
    """Compiles the plan of a run. `tool_mode`: that of a checkpoint with answers to the same question. `identify`:
    reads an image; None identifies images by name only. Raises SpecError."""
    config = _agent_config(spec, tools, output, traits, may_start_early, tool_mode)
    distribution = spec.distribution
    is_shared = (distribution.store, distribution.cluster) != (None, None)
    return Plan(spec, layout, config, tools, traits.name, stage, ImageRules(traits, identify or name_only, is_shared))


def prefix_chars(prompt: Prompt) -> int:
    """Characters of the prompt that all agents share."""
    return len(prompt.system) + sum(len(orjson.dumps(tool)) for tool in prompt.tools)


def _agent_config(
    spec: BatchSpec,
    tools: tuple[ToolSpec, ...],
    output: OutputType | None,
    traits: Traits,
    may_start_early: bool,
    tool_mode: ToolMode | None,
) -> AgentConfig:
    mode = tool_mode or _tool_mode(spec, tools, traits)
    starts_early = spec.context.streaming_tool_dispatch and may_start_early and mode == "native" and bool(tools)
    system = _system_prompt(spec.prefix)
    turn: JsonSchema | None = None
    last: JsonSchema | None = None
    if mode == "action":
        answer = output.json_schema if output else _TEXT
        turn, last = actions.turn_schema(tools, answer), actions.last_turn_schema(answer)
        system.append(actions.instructions(tools))
        if not (is_enforced(turn, traits) and is_enforced(last, traits)):
            system.append(schema_instruction(turn))
            turn = last = None
    elif output is not None:
        schema = _as_object(output.json_schema)
        if is_enforced(schema, traits):
            last = schema  # the last turn may not call tools, so the schema cannot suppress a call
            turn = schema if not tools or traits.json_schema_with_tools else None
        if turn is None:
            system.append(schema_instruction(schema if last is not None else output.json_schema))
    prompt = Prompt(
        "\n\n".join(system),
        tools if mode == "native" else (),
        spec.prefix.cache_salt,
        output.json_schema if output else None,
    )
    return AgentConfig(
        prompt=prompt,
        model=spec.model or traits.model,
        sampling=spec.sampling,
        tool_mode=mode,
        output=output,
        turn_schema=turn,
        last_turn_schema=last,
        max_turns=spec.max_turns,
        max_retries=spec.retry.max_retries,
        stream=(spec.context.streaming or starts_early) and spec.lane != "batch",
        starts_early=starts_early,
        priority=spec.limits.priority,
        lane="standard" if spec.lane == "auto" else spec.lane,
        tokens=TokenRequest() if spec.tokens else None,
        compaction=_compaction(spec, prompt, traits) if tools else None,
        takes_images=traits.images is True,
    )


def _compaction(spec: BatchSpec, prompt: Prompt, traits: Traits) -> Compaction | None:
    return Compaction.of(spec.context, traits.context_tokens, spec.sampling.max_tokens, prefix_chars(prompt))


def _tool_mode(spec: BatchSpec, tools: tuple[ToolSpec, ...], traits: Traits) -> ToolMode:
    if not tools:
        return "native"
    wanted = spec.prefix.tool_mode
    if wanted == "native" and not traits.native_tools:
        raise SpecError(
            f"tool_mode='native', but {traits.name} does not support tool calls. Use tool_mode='auto' or 'action', "
            "or start the server with a tool parser (vLLM: --enable-auto-tool-choice --tool-call-parser hermes)."
        )
    if wanted == "auto":
        return "native" if traits.native_tools else "action"
    return wanted


def _system_prompt(prefix: Prefix) -> list[str]:
    text = prefix.system_prompt or ""
    if prefix.strip_preamble:
        text = PREAMBLE.sub("", text)
    return [text] if text else []


def _as_object(schema: JsonSchema) -> JsonSchema:
    return schema if is_object(schema) else object_of({WRAPPED_ANSWER: schema})


def _question(
    spec: BatchSpec, layout: Layout, config: AgentConfig, tools: tuple[ToolSpec, ...], stage: str
) -> dict[str, Any]:
    """Everything that can change an answer. Excludes the server's address and traits, and limits, which cannot change
    an existing answer."""
    task, runtime = spec.task, spec.runtime
    sampling = _as_dict(config.sampling)
    del sampling["max_tokens"]
    shape = {
        **({"stage": stage} if stage else {}),  # two stages of a flow may have the same task and inputs
        **({} if spec.rows.key is None else {"key": spec.rows.key}),
        **({"images": list(spec.rows.images)} if spec.rows.images else {}),
        **({} if runtime is None else {"runtime": {"name": runtime.name, **runtime.description}}),
        "task": str(task.named(layout.template.fields) if isinstance(task, Fields) else task),
        "system prompt": "\n\n".join(_system_prompt(spec.prefix)),
        "tools": [_as_dict(tool) for tool in tools],
        **({"tool mode": spec.prefix.tool_mode} if tools else {}),
        "output schema": config.output.json_schema if config.output else None,
        "model": config.model,
        "sampling": sampling,
    }
    described: dict[str, Any] = json.loads(canonical(shape))
    return described


def _request_format(config: AgentConfig) -> dict[str, Any]:
    """Format of the requests to this server, and the limits."""
    shape = {
        "system prompt": config.prompt.system,
        "tools": [_as_dict(tool) for tool in config.prompt.tools],
        "tool mode": config.tool_mode,
        "output schema": [config.turn_schema, config.last_turn_schema],
        "model": config.model,
        "sampling": _as_dict(config.sampling),
        "max_turns": config.max_turns,
    }
    described: dict[str, Any] = json.loads(canonical(shape))
    return described


def _as_dict(settings: Sampling | ToolSpec) -> dict[str, Any]:
    """Like `dataclasses.asdict`, without copying the values of fields."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}
