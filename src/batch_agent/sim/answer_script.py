"""Answer script: decides the answer to a request from the request alone."""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from .answer import Call, SimAnswer
from .faults import FaultOrder, parse
from .schema_instance import Instances, flatten
from .sim_config import FaultRates, Script
from .tokens import CALL_CLOSING, END, TOKEN_BYTES, TOOLS, decode, render_call, text_of

MARK = "[[sim:"
_KEYS = {"text", "json", "calls", "tokens", "fault", "times", "retry_after_s", "stall_s"}
_DECODER = json.JSONDecoder()


class DirectiveError(ValueError):
    """Raised for a directive that cannot be read. The request is answered with 400 and this message."""


def find_directive(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The directive for this turn, taken from the newest user message that has one.

    A single object is for the first answer after that message; a list has an object for each answer in turn. None if
    there is no directive or all were used."""
    answers = 0
    for message in reversed(messages):
        if message.get("role") == "assistant":
            answers += 1
        elif message.get("role") == "user" and MARK in (text := text_of(message.get("content"))):
            directives = read(text)
            return directives[answers] if answers < len(directives) else None
    return None


def read(text: str) -> list[Mapping[str, Any]]:
    """The directives in a text. Raises DirectiveError."""
    body = text.partition(MARK)[2].lstrip()
    try:
        value = _decode(body)
    except ValueError as error:
        raise DirectiveError(f"a {MARK} ...]] directive needs JSON after the colon: {error}") from error
    directives = value if isinstance(value, list) else [value]
    for directive in directives:
        if not isinstance(directive, dict) or not directive.keys() <= _KEYS:
            raise DirectiveError(
                f"a {MARK} ...]] directive must be an object with keys from {sorted(_KEYS)}, got {directive!r}"
            )
    return directives


def answer_of(directive: Mapping[str, Any]) -> SimAnswer | None:
    """The answer in a directive; None if it leaves the answer to the script."""
    if "calls" in directive:
        return SimAnswer(text=str(directive.get("text", "")), calls=tuple(_call(call) for call in directive["calls"]))
    if "json" in directive:
        return SimAnswer(text=json.dumps(directive["json"], ensure_ascii=False))
    if "text" in directive:
        return SimAnswer(text=str(directive["text"]))
    return None


def fault_of(directive: Mapping[str, Any], rates: FaultRates) -> FaultOrder | None:
    """The fault requested by a directive. Raises DirectiveError for a fault that does not exist."""
    if "fault" not in directive:
        return None
    try:
        fault = parse(str(directive["fault"]), rates, directive.get("retry_after_s"), directive.get("stall_s"))
    except ValueError as error:
        raise DirectiveError(str(error)) from error
    return FaultOrder(fault, directive.get("times"))


def _decode(body: str) -> Any:
    try:
        return _DECODER.raw_decode(body)[0]
    except ValueError:
        if '\\"' not in body:
            raise
    # The directive was in a value that the prompt contains as a JSON string.
    return _DECODER.raw_decode(body.replace('\\"', '"').replace("\\\\", "\\"))[0]


def _call(call: Any) -> Call:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise DirectiveError(f"a call in a directive needs a name, got {call!r}")
    arguments = call.get("arguments", {})
    return Call(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


_MESSAGE = re.compile(r"<\|(\w+)\|>(.*?)(?:<//>|\Z)", re.DOTALL)


class Chat(NamedTuple):
    messages: list[dict[str, Any]]
    tools: list[Any] | None


def parse_chat(prompt: bytes) -> Chat:
    """Parses the conversation that renders as `prompt`. A prompt without the template's marks is one user message.

    Raises ValueError if the tools are not JSON."""
    text = decode(prompt)
    if not text.startswith("<|"):
        return Chat([{"role": "user", "content": text}], None)
    parts = _MESSAGE.findall(text)
    if parts and parts[-1] == ("assistant", "") and not text.endswith(END.decode()):
        parts.pop()
    tools = orjson.loads(parts.pop(0)[1]) if parts and parts[0][0] == "tools" else None
    return Chat([_message(role, content) for role, content in parts], tools)


def _message(role: str, content: str) -> dict[str, Any]:
    """Parses a message. The calls of an answer are not parsed: they stay in its text."""
    if role == "assistant" and CALL_CLOSING.decode() in content:
        return {"role": role, "content": content, "tool_calls": [content]}
    return {"role": role, "content": content}


_FILLER = (
    b"the engine reads every prompt once and keeps what it has read so that a later turn which begins with the same "
    b"words costs only what is new in it while other agents wait for tools or for a free slot in the next batch "
)
_TEXT = _FILLER * 64
_MARK = MARK.encode()
_SCHEMA_MARK = "JSON schema:\n"
"""Precedes the schema in a system prompt, for requests that carry none, such as requests with tools."""
_SCHEMA_MARK_BYTES = _SCHEMA_MARK.encode()
_DECODER = json.JSONDecoder()


class AnswerScript:
    """Writes answers according to a script."""

    def __init__(self, script: Script, rates: FaultRates) -> None:
        self._script = script
        self._rates = rates
        self._arguments = Instances(lambda seed: f"key-{seed % script.keys}", only_required=True)
        self._results = Instances(lambda seed: filler_text(seed, script.string_tokens).strip())

    def chat(self, body: Mapping[str, Any], prompt: bytes, tokens: int | None = None) -> SimAnswer:
        """The answer to a chat request that renders as `prompt`. `tokens`: required length of a text, if known.

        Raises ValueError for a directive or a schema that cannot be read."""
        messages: Sequence[Mapping[str, Any]] = body["messages"]
        directive = find_directive(messages) if _MARK in prompt else None
        if directive is None:
            return self._default(body, messages, prompt, tokens)
        answer = answer_of(directive) or self._default(body, messages, prompt, tokens or directive.get("tokens"))
        return replace(answer, fault=fault_of(directive, self._rates))

    def completion(self, body: Mapping[str, Any], prompt: bytes, tokens: int | None = None) -> SimAnswer:
        """The answer to a rendered prompt: as `chat` answers the conversation in it, with calls as text.

        Raises ValueError like `chat`."""
        is_bare = _MARK not in prompt and TOOLS not in prompt and _SCHEMA_MARK_BYTES not in prompt
        if is_bare and schema_of(body) is None:
            return self.text(prompt, tokens)
        chat = parse_chat(prompt)
        answer = self.chat({**body, "messages": chat.messages, "tools": chat.tools}, prompt, tokens)
        calls = b"".join([render_call(call.name, call.arguments) for call in answer.calls])
        return replace(answer, text=answer.text + calls.decode(), calls=())

    def text(self, prompt: bytes, tokens: int | None = None) -> SimAnswer:
        """Text with the length from the script, determined by the prompt."""
        # The end of the answer takes one token.
        length = (tokens or self._script.answer_tokens) - 1
        return SimAnswer(filler_text(zlib.crc32(prompt) + self._script.seed, length))

    def _default(
        self, body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], prompt: bytes, tokens: int | None
    ) -> SimAnswer:
        schema = schema_of(body)
        if schema is None and _SCHEMA_MARK_BYTES in prompt:
            schema = schema_in_system_prompt(messages)
        choice = body.get("tool_choice") or "auto"
        tools = body.get("tools") if choice != "none" else None
        if not tools and schema is None:
            return self.text(prompt, tokens)
        turn = tool_turns_of(messages)
        wants_tool = turn < self._script.tool_turns
        if tools and (wants_tool or choice != "auto"):
            return self._calls(tools, choice, messages, turn)
        if schema is None:
            return self.text(prompt, tokens)
        seed = agent_seed(messages) + self._script.seed + (turn if wants_tool else 0)
        action = choose_action(schema, turn if wants_tool else None)
        maker = self._arguments if action.is_call else self._results
        return SimAnswer(orjson.dumps(maker.make(action.schema, seed)).decode())

    def _calls(self, tools: Sequence[Any], choice: Any, messages: Sequence[Mapping[str, Any]], turn: int) -> SimAnswer:
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
        return SimAnswer(calls=tuple(calls))


def agent_seed(messages: Sequence[Mapping[str, Any]]) -> int:
    """Seed of an agent, determined by its first user message in every process."""
    for message in messages:
        if message.get("role") == "user":
            return zlib.crc32(text_of(message.get("content")).encode())
    return 0


def tool_turns_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Number of answers so far that were tool calls, native or written as `{"tool": ...}`."""
    return sum(1 for message in messages if message.get("role") == "assistant" and _is_call(message))


def schema_of(body: Mapping[str, Any]) -> Any:
    """The JSON schema of the answer, or None: from OpenAI's response_format, or vLLM's own two fields."""
    form = body.get("response_format")
    if isinstance(form, Mapping):
        if form.get("type") == "json_schema":
            return (form.get("json_schema") or {}).get("schema") or {"type": "object"}
        if form.get("type") == "json_object":
            return {"type": "object", "properties": {"answer": {"type": "string"}}}
    outputs = body.get("structured_outputs")
    return outputs.get("json") if isinstance(outputs, Mapping) else body.get("guided_json")


def schema_in_system_prompt(messages: Sequence[Mapping[str, Any]]) -> Any:
    """The JSON schema in a system prompt, or None."""
    texts = [text_of(message.get("content")) for message in messages if message.get("role") == "system"]
    return next((schema for text in texts if (schema := _schema_in_text(text)) is not None), None)


@lru_cache(maxsize=16)
def _schema_in_text(text: str) -> Any:
    """The last schema in a text. Cached, because all agents of a run have the same."""
    _, mark, rest = text.rpartition(_SCHEMA_MARK)
    try:
        return _DECODER.raw_decode(rest)[0] if mark else None
    except ValueError:
        return None


class Action(NamedTuple):
    schema: Any
    is_call: bool


def choose_action(schema: Any, call_turn: int | None) -> Action:
    """Chooses the branch of a schema that has tool calls and a final answer: a call in a turn for calls, otherwise the
    answer."""
    flat = flatten(schema, schema) if isinstance(schema, Mapping) else {}
    branches = flat.get("anyOf") or flat.get("oneOf") or []
    calls = [branch for branch in branches if "tool" in flatten(branch, schema).get("properties", {})]
    if not calls:
        return Action(schema, is_call=False)
    ends = [branch for branch in branches if branch not in calls]
    is_call = call_turn is not None or not ends
    chosen = calls[(call_turn or 0) % len(calls)] if is_call else ends[0]
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return Action({**definitions, **flatten(chosen, schema)}, is_call)


def filler_text(seed: int, tokens: int) -> str:
    """Exactly `tokens` tokens of text, different for each seed."""
    start = seed % len(_FILLER)
    length = tokens * TOKEN_BYTES
    text = _TEXT if start + length <= len(_TEXT) else _FILLER * ((start + length) // len(_FILLER) + 1)
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
