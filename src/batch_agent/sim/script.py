"""Decides the answer to a request from the request alone."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from batch_agent.sim.answer import Answer, Call
from batch_agent.sim.config import FaultRates
from batch_agent.sim.directive import answer_of, fault_of, find_directive
from batch_agent.sim.schema_instance import Instances, flatten
from batch_agent.sim.tokens import TOKEN_BYTES, text_of

_WORDS = (
    b"the engine reads every prompt once and keeps what it has read so that a later turn which begins with the same "
    b"words costs only what is new in it while other agents wait for tools or for a free slot in the next batch "
)
_TEXT = _WORDS * 64


@dataclass(frozen=True, slots=True)
class Script:
    """How the simulated model behaves where a prompt gives no `[[sim: ...]]` directive.

    It calls tools for `tool_turns` turns, `parallel_calls` at a time, with string arguments out of `keys` values; then
    it answers: an instance of the response schema, or `answer_tokens` tokens of text. Free strings inside an instance
    are `string_tokens` long. The seed changes all of them.
    """

    tool_turns: int = 1
    parallel_calls: int = 1
    keys: int = 8
    answer_tokens: int = 64
    string_tokens: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("parallel_calls", "keys", "answer_tokens", "string_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")


class Author:
    """Writes the answers of a script."""

    def __init__(self, script: Script, rates: FaultRates) -> None:
        self._script = script
        self._rates = rates
        self._arguments = Instances(lambda seed: f"key-{seed % script.keys}", only_required=True)
        self._results = Instances(lambda seed: words(seed, script.string_tokens).strip())

    def chat(self, body: Mapping[str, Any], prompt_key: int, tokens: int | None = None) -> Answer:
        """The answer to a chat request; `tokens` is the length of a text where the request sets it.

        Raises ValueError for a directive or a schema that cannot be read.
        """
        messages: Sequence[Mapping[str, Any]] = body["messages"]
        order = find_directive(messages) or {}
        answer = answer_of(order)
        if answer is None:
            answer = self._default(body, messages, prompt_key, tokens or order.get("tokens"))
        fault = fault_of(order, self._rates)
        return replace(answer, fault=fault) if fault else answer

    def text(self, prompt_key: int, tokens: int | None = None) -> Answer:
        """The answer to a plain prompt."""
        # The end of the answer is a token too.
        return Answer(words(prompt_key + self._script.seed, (tokens or self._script.answer_tokens) - 1))

    def _default(
        self, body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], key: int, tokens: int | None
    ) -> Answer:
        schema = schema_of(body)
        choice = body.get("tool_choice") or "auto"
        offered = body.get("tools") if choice != "none" else None
        if not offered and schema is None:
            return self.text(key, tokens)
        turn = tool_turns_of(messages)
        wants_tool = turn < self._script.tool_turns
        if offered and (wants_tool or choice != "auto"):
            return self._calls(offered, choice, messages, turn)
        if schema is None:
            return self.text(key, tokens)
        seed = agent_seed(messages) + self._script.seed + (turn if wants_tool else 0)
        chosen, arguments_in = choose_action(schema, wants_tool=wants_tool)
        maker = self._arguments if arguments_in else self._results
        return Answer(orjson.dumps(maker.make(chosen, seed)).decode())

    def _calls(self, tools: Sequence[Any], choice: Any, messages: Sequence[Mapping[str, Any]], turn: int) -> Answer:
        functions = [tool["function"] for tool in tools]
        if isinstance(choice, dict):
            name = choice.get("function", {}).get("name")
            functions = [function for function in functions if function["name"] == name] or functions
        first = agent_seed(messages) + self._script.seed + turn * self._script.parallel_calls
        calls = []
        for index in range(self._script.parallel_calls):
            function = functions[(turn + index) % len(functions)]
            arguments = self._arguments.make(function.get("parameters") or {"type": "object"}, first + index)
            calls.append(Call(function["name"], orjson.dumps(arguments).decode()))
        return Answer(calls=tuple(calls))


def agent_seed(messages: Sequence[Mapping[str, Any]]) -> int:
    """A number for the agent: its first user message decides it, in every process."""
    for message in messages:
        if message.get("role") == "user":
            return zlib.crc32(text_of(message.get("content")).encode())
    return 0


def tool_turns_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many answers so far were tool calls, native or written as `{"tool": ...}`."""
    return sum(1 for message in messages if message.get("role") == "assistant" and _is_call(message))


def schema_of(body: Mapping[str, Any]) -> Any:
    """The JSON schema the answer must fit, or None: OpenAI's response_format, or vLLM's own two fields."""
    form = body.get("response_format")
    if isinstance(form, Mapping):
        if form.get("type") == "json_schema":
            return (form.get("json_schema") or {}).get("schema") or {"type": "object"}
        if form.get("type") == "json_object":
            return {"type": "object", "properties": {"answer": {"type": "string"}}}
    outputs = body.get("structured_outputs")
    return outputs.get("json") if isinstance(outputs, Mapping) else body.get("guided_json")


def choose_action(schema: Any, *, wants_tool: bool) -> tuple[Any, bool]:
    """Of a schema that offers a tool call or an end, the branch to take; and whether it is the tool call."""
    flat = flatten(schema, schema) if isinstance(schema, Mapping) else {}
    branches = flat.get("anyOf") or flat.get("oneOf") or []
    calls = [branch for branch in branches if "tool" in flatten(branch, schema).get("properties", {})]
    if not calls:
        return schema, False
    ends = [branch for branch in branches if branch not in calls]
    chosen = calls if wants_tool or not ends else ends
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {**definitions, **flatten(chosen[0], schema)}, chosen is calls


def words(seed: int, tokens: int) -> str:
    """Exactly `tokens` tokens of text, another text for another seed."""
    start = seed % len(_WORDS)
    length = tokens * TOKEN_BYTES
    text = _TEXT if start + length <= len(_TEXT) else _WORDS * ((start + length) // len(_WORDS) + 1)
    return text[start : start + length].decode()


def _is_call(message: Mapping[str, Any]) -> bool:
    if message.get("tool_calls"):
        return True
    text = text_of(message.get("content"))
    if not text.startswith("{") or '"tool"' not in text:
        return False
    try:
        return "tool" in orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
