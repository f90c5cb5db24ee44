"""Adapts programs' requests to the run's model. A model without tool calls is asked for actions."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from hashlib import blake2b

import orjson

from ..agent.action_mode import FinalAction, read_action, render_history
from ..core.agent_config import ACTION_ARGUMENTS, ACTION_TOOL, AgentConfig, InvalidOutput, repeated_seed
from ..core.fast_dataclass import dataclass
from ..core.json import dumps_ascii
from ..core.messages import Assistant, Message, Prompt, ToolCall, ToolSpec
from ..core.program_runtime import CompletionRequest
from ..core.protocols.backend import Traits
from ..core.requests import Reply, Request, Sampling
from ..core.schema import JsonSchema
from ..plan import action_schema as actions
from ..plan.action_schema import is_enforced, schema_instruction

_MAX_PROMPTS = 64
_TEXT: JsonSchema = {"type": "string"}


@dataclass(frozen=True, slots=True)
class ActionAdapter:
    """Adapter shared by all programs of a run. The run's sampling options override the programs'."""

    config: AgentConfig
    traits: Traits
    uses_actions: bool
    """Whether tools are called through actions."""
    _prompts: dict[bytes, Prompt] = field(default_factory=dict)
    """Interned prompts: equal prompts are one object, which is encoded once."""

    def request(
        self,
        completion: CompletionRequest,
        agent: str,
        turn: int,
        action_texts: Mapping[str, str],
        index: int | None = None,
    ) -> Request:
        """The request for the model. `action_texts`: the model's own text of each action, by call id. `index`: index of
        the agent's input."""
        uses_actions = self.uses_actions and bool(completion.tools)
        schema, instructions = self._schema(completion) if uses_actions else self._answer_schema(completion)
        system = [completion.system, *([actions.instructions(completion.tools)] if uses_actions else []), *instructions]
        return Request(
            prompt=self._prompt("\n\n".join(filter(None, system)), () if uses_actions else completion.tools),
            messages=tuple(_as_action(each, action_texts) for each in completion.messages)
            if uses_actions
            else completion.messages,
            model=self.config.model,
            sampling=self._sampling(completion.sampling),
            answer_schema=schema,
            may_call_tools=completion.tool_choice != "none",
            must_call=completion.tool_name if completion.tool_choice == "required" and not uses_actions else None,
            stream=self.config.stream,
            agent=agent,
            index=index,
            turn=turn,
            priority=self.config.priority,
            tokens=self.config.tokens,
            seed=None if self.config.sampling.seed is None else repeated_seed(self.config.sampling.seed, agent),
        )

    def reply(self, completion: CompletionRequest, reply: Reply, turn: int) -> Reply:
        """The reply as the program reads it."""
        return _filter_calls(completion, self._read(completion, reply, turn))

    def _read(self, completion: CompletionRequest, reply: Reply, turn: int) -> Reply:
        if not (self.uses_actions and completion.tools):
            return reply
        try:
            action = read_action(reply.text, f"call_{turn}", is_whole=reply.finish != "length")
        except InvalidOutput:
            return reply
        if isinstance(action, FinalAction):
            text = action.value if isinstance(action.value, str) else dumps_ascii(action.value)
            return replace(reply, text=text)
        return replace(reply, text="", finish="calls", calls=(action,))

    def _schema(self, completion: CompletionRequest) -> tuple[JsonSchema | None, Sequence[str]]:
        """The schema of actions for the server to enforce, or instructions for the prompt."""
        answer = completion.answer_schema or _TEXT
        may_call = completion.tool_choice != "none"
        turn = actions.turn_schema(completion.tools, answer) if may_call else actions.last_turn_schema(answer)
        if not is_enforced(turn, self.traits):
            return None, (schema_instruction(turn),)  # equal in all requests, to keep the prompt's prefix
        if completion.tool_choice == "required":
            turn = actions.call_schema([tool for tool in completion.tools if completion.tool_name in ("", tool.name)])
        return turn, ()

    def _answer_schema(self, completion: CompletionRequest) -> tuple[JsonSchema | None, Sequence[str]]:
        schema = completion.answer_schema
        if schema is None:
            return None, ()
        is_possible = not completion.tools or self.traits.json_schema_with_tools
        return (
            (schema, ()) if is_possible and is_enforced(schema, self.traits) else (None, (schema_instruction(schema),))
        )

    def _prompt(self, system: str, tools: tuple[ToolSpec, ...]) -> Prompt:
        key = blake2b(orjson.dumps([system, tools]), digest_size=16).digest()
        prompt = self._prompts.get(key)
        if prompt is None:
            if len(self._prompts) >= _MAX_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
            salt = self.config.prompt.cache_salt
            prompt = self._prompts[key] = Prompt(system, tools, salt)
        return prompt

    def _sampling(self, requested: Sampling) -> Sampling:
        own, context_tokens = self.config.sampling, self.traits.context_tokens
        values = {each.name: getattr(own, each.name) for each in fields(Sampling)}
        overrides = {name: value for name, value in values.items() if value not in (None, (), {})}
        merged = replace(requested, **overrides)
        if own.max_tokens is None and context_tokens and merged.max_tokens and merged.max_tokens > context_tokens // 2:
            return replace(merged, max_tokens=None)  # programs request what large models allow; some servers reject it
        return merged


def keeps_choice(completion: CompletionRequest, reply: Reply) -> bool:
    """Whether the required tool is called. A truncated or refused reply counts as keeping the choice."""
    return not completion.tool_name or bool(reply.calls) or reply.finish in ("length", "refusal")


def _filter_calls(completion: CompletionRequest, reply: Reply) -> Reply:
    """Removes calls that the program ruled out."""
    calls = tuple(call for call in reply.calls if completion.tool_name in ("", call.name))
    calls = calls[:1] if completion.single_call else calls
    return reply if calls == reply.calls else replace(reply, calls=calls)


def _as_action(message: Message, action_texts: Mapping[str, str]) -> Message:
    """The message in the form that a model without tool calls reads and writes."""
    if isinstance(message, Assistant) and message.calls:
        call = message.calls[0]
        return Assistant(action_texts.get(call.id) or _action(call))
    return render_history(message)


def _action(call: ToolCall) -> str:
    name = orjson.dumps(call.name).decode()
    return f'{{"{ACTION_TOOL}":{name},"{ACTION_ARGUMENTS}":{call.arguments or "{}"}}}'
