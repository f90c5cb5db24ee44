"""From a spec and what its backend can do to the rules of a run and its jobs."""

from dataclasses import asdict
from typing import Any

import orjson

from ..core.errors import ErrorKind, SpecError
from ..core.interfaces import Traits
from ..core.prompt import Prompt, ToolSpec
from ..core.results import AgentError
from ..core.rules import WRAPPED_ANSWER, Job, OutputType, Rules, ToolMode
from ..core.schema import JsonSchema, is_object, object_of
from ..core.spec import BatchSpec
from . import actions
from .identity import Keys, fingerprint
from .template import BadInput, Template

_TEXT: JsonSchema = {"type": "string"}


class Plan:
    """The rules that all agents follow, and a job for each input."""

    def __init__(self, spec: BatchSpec, template: Template, rules: Rules) -> None:
        self.rules = rules
        self._template = template
        self._keys = Keys(_fingerprint(spec, rules))

    def job(self, index: int, value: Any) -> Job:
        """The job of one input. An input that does not fit the task makes a job that says so."""
        try:
            task, problem = self._template.render(value), None
        except BadInput as error:
            task, problem = "", AgentError(ErrorKind.BAD_INPUT, f"Input {index}: {error}")
        return Job(index, self._keys.key(value), value, task, problem)


def compile_plan(
    spec: BatchSpec, template: Template, tools: tuple[ToolSpec, ...], output: OutputType | None, traits: Traits
) -> Plan:
    return Plan(spec, template, _rules(spec, tools, output, traits))


def _rules(spec: BatchSpec, tools: tuple[ToolSpec, ...], output: OutputType | None, traits: Traits) -> Rules:
    mode = _tool_mode(spec, tools, traits)
    system = [spec.prefix.system_prompt] if spec.prefix.system_prompt else []
    turn: JsonSchema | None = None
    last: JsonSchema | None = None
    if mode == "action":
        answer = output.json_schema if output else _TEXT
        turn, last = actions.turn_schema(tools, answer), actions.last_turn_schema(answer)
        system.append(actions.instructions(tools))
        if not traits.json_schema:
            system.append(_inject(turn))
            turn = last = None
    elif output is not None:
        server_keeps_schema = traits.json_schema and (not tools or traits.json_schema_beside_tools)
        if server_keeps_schema:
            turn = last = _as_object(output.json_schema)
        else:
            system.append(_inject(output.json_schema))
    return Rules(
        prompt=Prompt("\n\n".join(system), tools if mode == "native" else ()),
        model=spec.model or traits.model,
        sampling=spec.sampling,
        tool_mode=mode,
        output=output,
        turn_schema=turn,
        last_turn_schema=last,
        max_turns=spec.limits.max_turns,
        max_retries=spec.retry.max_retries,
        stream=spec.context.streaming,
    )


def _tool_mode(spec: BatchSpec, tools: tuple[ToolSpec, ...], traits: Traits) -> ToolMode:
    if not tools:
        return "native"
    wanted = spec.prefix.tool_mode
    if wanted == "native" and not traits.native_tools:
        raise SpecError(
            f"tool_mode='native', but {traits.name} does not make tool calls. Use tool_mode='auto' or 'action', "
            "or start the server with a tool parser (vLLM: --enable-auto-tool-choice --tool-call-parser hermes)."
        )
    if wanted == "auto":
        return "native" if traits.native_tools else "action"
    return wanted


def _inject(schema: JsonSchema) -> str:
    return "Answer with JSON only, no other text. It must fit this JSON schema:\n" + orjson.dumps(schema).decode()


def _as_object(schema: JsonSchema) -> JsonSchema:
    return schema if is_object(schema) else object_of({WRAPPED_ANSWER: schema})


def _fingerprint(spec: BatchSpec, rules: Rules) -> bytes:
    return fingerprint(
        {
            "task": spec.task,
            "system": rules.prompt.system,
            "tools": [asdict(tool) for tool in rules.prompt.tools],
            "tool_mode": rules.tool_mode,
            "schemas": [rules.turn_schema, rules.last_turn_schema],
            "model": rules.model,
            "sampling": asdict(rules.sampling),
            "max_turns": rules.max_turns,
        }
    )
