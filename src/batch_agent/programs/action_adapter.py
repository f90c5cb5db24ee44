"""The requests of programs as the run's model can read them: one without tool calls is asked for actions."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from hashlib import blake2b

import orjson

from ..agent.action_mode import FinalAction, read_action, render_history
from ..core.agent_config import ACTION_ARGUMENTS, ACTION_TOOL, AgentConfig, InvalidOutput
from ..core.fast_dataclass import dataclass
from ..core.json import dumps_ascii
from ..core.messages import Assistant, Message, Prompt, ToolCall, ToolSpec
from ..core.program_runtime import CompletionRequest
from ..core.protocols import Traits
from ..core.requests import Reply, Request, Sampling
from ..core.schema import JsonSchema
from ..plan import action_mode as actions
from ..plan.action_mode import inject, is_kept

_MOST_PROMPTS = 64
_TEXT: JsonSchema = {"type": "string"}


@dataclass(frozen=True, slots=True)
class ActionAdapter:
    """The same for all programs of a run. What the run says of sampling counts more than what they say."""

    rules: AgentConfig
    traits: Traits
    acts: bool
    """Tools are called by actions."""
    _prompts: dict[bytes, Prompt] = field(default_factory=dict)
    """Equal ones are one, which is written once."""

    def request(self, asked: CompletionRequest, agent: str, turn: int, said: Mapping[str, str]) -> Request:
        """`said`: the model's own words for its calls, by their ids."""
        acts = self.acts and bool(asked.tools)
        schema, told = self._schema(asked) if acts else self._answer_schema(asked)
        system = [asked.system, *([actions.instructions(asked.tools)] if acts else []), *told]
        return Request(
            prompt=self._prompt("\n\n".join(filter(None, system)), () if acts else asked.tools),
            messages=tuple(_as_action(each, said) for each in asked.messages) if acts else asked.messages,
            model=self.rules.model,
            sampling=self._sampling(asked.sampling),
            answer_schema=schema,
            may_call_tools=asked.tool_choice != "none",
            must_call=asked.tool_name if asked.tool_choice == "required" and not acts else None,
            stream=self.rules.stream,
            agent=agent,
            turn=turn,
            priority=self.rules.priority,
        )

    def reply(self, asked: CompletionRequest, reply: Reply, turn: int) -> Reply:
        """As the program shall read it."""
        return _chosen(asked, self._read(asked, reply, turn))

    def _read(self, asked: CompletionRequest, reply: Reply, turn: int) -> Reply:
        if not (self.acts and asked.tools):
            return reply
        try:
            action = read_action(reply.text, f"call_{turn}", is_whole=reply.finish != "length")
        except InvalidOutput:
            return reply
        if isinstance(action, FinalAction):
            said = action.value if isinstance(action.value, str) else dumps_ascii(action.value)
            return replace(reply, text=said)
        return replace(reply, text="", finish="calls", calls=(action,))

    def _schema(self, asked: CompletionRequest) -> tuple[JsonSchema | None, Sequence[str]]:
        """What the server keeps actions to; or else what the prompt says of it."""
        answer = asked.answer_schema or _TEXT
        may_call = asked.tool_choice != "none"
        turn = actions.turn_schema(asked.tools, answer) if may_call else actions.last_turn_schema(answer)
        if not is_kept(turn, self.traits):
            return None, (inject(turn),)  # the same in each request, so that prompts begin alike
        if asked.tool_choice == "required":
            turn = actions.call_schema([tool for tool in asked.tools if asked.tool_name in ("", tool.name)])
        return turn, ()

    def _answer_schema(self, asked: CompletionRequest) -> tuple[JsonSchema | None, Sequence[str]]:
        schema = asked.answer_schema
        if schema is None:
            return None, ()
        is_possible = not asked.tools or self.traits.json_schema_with_tools
        return (schema, ()) if is_possible and is_kept(schema, self.traits) else (None, (inject(schema),))

    def _prompt(self, system: str, tools: tuple[ToolSpec, ...]) -> Prompt:
        key = blake2b(orjson.dumps([system, tools]), digest_size=16).digest()
        known = self._prompts.get(key)
        if known is None:
            if len(self._prompts) >= _MOST_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
            salt = self.rules.prompt.cache_salt
            known = self._prompts[key] = Prompt(system, tools, salt)
        return known

    def _sampling(self, asked: Sampling) -> Sampling:
        own, window = self.rules.sampling, self.traits.context_tokens
        said = {each.name: getattr(own, each.name) for each in fields(Sampling)}
        given = {name: value for name, value in said.items() if value not in (None, (), {})}
        merged = replace(asked, **given)
        if own.max_tokens is None and window and merged.max_tokens and merged.max_tokens > window // 2:
            return replace(merged, max_tokens=None)  # programs ask for what large models give; some servers refuse it
        return merged


def keeps_choice(asked: CompletionRequest, reply: Reply) -> bool:
    """Whether the tool that was named is called; a reply that was cut off or refused says by itself that it is not."""
    return not asked.tool_name or bool(reply.calls) or reply.finish in ("length", "refusal")


def _chosen(asked: CompletionRequest, reply: Reply) -> Reply:
    """Without calls that the program has ruled out."""
    calls = tuple(call for call in reply.calls if asked.tool_name in ("", call.name))
    calls = calls[:1] if asked.single_call else calls
    return reply if calls == reply.calls else replace(reply, calls=calls)


def _as_action(message: Message, said: Mapping[str, str]) -> Message:
    """As a model without calls of its own has said or reads it."""
    if isinstance(message, Assistant) and message.calls:
        call = message.calls[0]
        return Assistant(said.get(call.id) or _action(call))
    return render_history(message)


def _action(call: ToolCall) -> str:
    name = orjson.dumps(call.name).decode()
    return f'{{"{ACTION_TOOL}":{name},"{ACTION_ARGUMENTS}":{call.arguments or "{}"}}}'
