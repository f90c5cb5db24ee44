"""Contents of requests, replies and tool calls as span attributes: JSON by the conventions for generative AI, with
secrets masked and long texts cut."""

import re
from collections.abc import Callable, Sequence
from typing import Any, assert_never
from urllib.parse import urlsplit

from ...core.images import text_with_labels
from ...core.json import dumps, loads, replace_surrogates
from ...core.messages import Assistant, Message, Prompt, ToolResult, ToolResults, ToolSpec, User, result_text
from ...core.requests import Exchange, FinishReason, Reply
from ...core.results import AgentResult
from ...core.run_reports import RunDescription
from . import semconv as genai

Content = dict[str, str | int]
Show = Callable[[str], str]
"""Returns the part of a text to show."""
_MODEL = re.compile(r'"model"\s*:\s*"([^"\\]+)"')
_HEAD_CHARS = 4_096
"""Length of the beginning of a streamed response, which names the model."""
_PORTS = {"http": 80, "https": 443}


class RunContents:
    """Contents of a run. Secrets are known from exchanges, so there are no contents before the first exchange."""

    def __init__(self, max_chars: int) -> None:
        """`max_chars`: limit of the texts in one attribute."""
        self._max_chars = max_chars
        self._masks: dict[Show, None] = {}
        """Masks, one per server: a tool result may contain the secret of any of them."""
        self._prompts: dict[Prompt, Content] = {}
        self._exchanges: dict[tuple[str, str, int], Exchange] = {}
        """Exchanges of turns that have not ended, by stage, key and turn."""

    def add(self, exchange: Exchange) -> None:
        """Adds an attempt, which replaces the previous attempt of the same turn."""
        self._masks.setdefault(exchange.mask)
        request = exchange.request
        if request.agent:
            self._exchanges[request.stage, request.agent, request.turn + 1] = exchange

    def request(self, stage: str, key: str, turn: int) -> Content:
        """The request of a turn, the address of the server, and the model named in the response. Empty if another
        process sent the request. Can be read once."""
        exchange = self._exchanges.pop((stage, key, turn), None)
        if exchange is None:
            return {}
        content = _server(exchange.sent.url)
        if model := _response_model(exchange.response):
            content[genai.RESPONSE_MODEL] = model
        request = exchange.request
        return content | self._prompt(request.prompt) | {genai.INPUT_MESSAGES: self._messages(request.messages)}

    def reply(self, reply: Reply) -> Content:
        if not self._masks:
            return {}
        message = Assistant(reply.text, reply.calls, reply.thoughts)
        return {genai.OUTPUT_MESSAGES: self._messages([message], reply.finish)}

    def call(self, arguments: str, result: ToolResult) -> Content:
        if not self._masks:
            return {}
        return {
            genai.CALL_ID: result.call.id,
            genai.CALL_ARGUMENTS: self._cut(arguments),
            genai.CALL_RESULT: self._cut(result_text(result)),
        }

    def run(self, description: RunDescription | None) -> Content:
        """The task of a run or stage, with its placeholders; a flow as a whole has none."""
        content: Content = {genai.OPENINFERENCE_KIND: genai.CHAIN}
        if not self._masks or description is None:
            return content
        if system := description.system_prompt:
            content[genai.SYSTEM_INSTRUCTIONS] = self._json(lambda show: [_text(show(system))])
        return content | self._task(description.task)

    def agent(self, result: AgentResult) -> Content:
        """The task of an agent and its answer."""
        if not self._masks:
            return {}
        content = {} if result.prompt is None else dict(self._prompt(result.prompt))
        for message in result.transcript[:1]:
            if isinstance(message, User):
                content |= self._task(text_with_labels(message.text, message.images))
        if result.error is None:
            content[genai.OUTPUT_MESSAGES] = self._messages([Assistant(result.text)], result.finish)
            content[genai.OUTPUT_VALUE] = self._cut(result.text)
        return content

    def _task(self, text: str) -> Content:
        return {genai.INPUT_MESSAGES: self._messages([User(text)]), genai.INPUT_VALUE: self._cut(text)}

    def _messages(self, messages: Sequence[Message], finish: FinishReason | None = None) -> str:
        """`finish`: finish reason of the last message."""

        def build(show: Show) -> list[dict[str, Any]]:
            shown = [_message(message, show) for message in messages]
            if finish is not None:
                shown[-1]["finish_reason"] = genai.finish_reason(finish)
            return shown

        return self._json(build)

    def _prompt(self, prompt: Prompt) -> Content:
        """Encoded once, because all agents of a run share it."""
        known = self._prompts.get(prompt)
        if known is None:
            known = self._prompts[prompt] = {}
            if prompt.system:
                known[genai.SYSTEM_INSTRUCTIONS] = self._json(lambda show: [_text(show(prompt.system))])
            if prompt.tools:
                known[genai.TOOL_DEFINITIONS] = self._tools(prompt.tools)
        return known

    def _tools(self, tools: Sequence[ToolSpec]) -> str:
        """Definitions of the tools, or only their names if the definitions are too long: half a schema is useless."""
        names = [{"type": genai.FUNCTION, "name": tool.name} for tool in tools]
        whole = [
            {**name, "description": tool.description, "parameters": tool.parameters}
            for name, tool in zip(names, tools, strict=True)
        ]
        text = self._masked(dumps(whole).decode())
        return text if len(text) <= self._max_chars else dumps(names).decode()

    def _json(self, build: Callable[[Show], Any]) -> str:
        lengths: list[int] = []

        def whole(text: str) -> str:
            masked = self._masked(text)
            lengths.append(len(masked))
            return masked

        data = build(whole)
        if sum(lengths) > self._max_chars:
            limit = fair_limit(lengths, self._max_chars)
            data = build(lambda text: cut(self._masked(text), limit))
        return dumps(data).decode()

    def _cut(self, text: str) -> str:
        return replace_surrogates(cut(self._masked(text), self._max_chars))

    def _masked(self, text: str) -> str:
        for mask in self._masks:
            text = mask(text)
        return text


def fair_limit(lengths: Sequence[int], total: int) -> int:
    """The length to which texts are cut so that their total is at most `total` characters. Short texts stay whole; the
    longest ones are cut to the same length."""
    left = total
    for count, length in zip(range(len(lengths), 0, -1), sorted(lengths), strict=True):
        if length * count > left:
            return left // count
        left -= length
    return total


def cut(text: str, limit: int) -> str:
    """The beginning of a text, with the number of omitted characters."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit:,} more characters)"


def _message(message: Message, show: Show) -> dict[str, Any]:
    match message:
        case User():
            return {"role": "user", "parts": [_text(show(text_with_labels(message.text, message.images)))]}
        case Assistant():
            thoughts = [{"type": "reasoning", "content": show(each.text)} for each in message.thoughts if each.text]
            texts = [_text(show(message.text))] if message.text else []
            calls = [
                {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _arguments(show(call.arguments))}
                for call in message.calls
            ]
            return {"role": "assistant", "parts": [*thoughts, *texts, *calls]}
        case ToolResults():
            responses = [
                {"type": "tool_call_response", "id": each.call.id, "response": show(result_text(each))}
                for each in message.results
            ]
            return {"role": "tool", "parts": responses}
        case _:
            assert_never(message)


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _arguments(text: str) -> Any:
    """Arguments as data, or as text if they are not JSON because of the model or because they were cut."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text


def _server(url: str) -> Content:
    parts = urlsplit(url)
    if not parts.hostname:
        return {}
    content: Content = {genai.SERVER_ADDRESS: parts.hostname}
    if port := parts.port or _PORTS.get(parts.scheme):
        content[genai.SERVER_PORT] = port
    return content


def _response_model(response: Any) -> str | None:
    match response:
        case {"model": str(model)}:
            return model
        case str():
            found = _MODEL.search(response, 0, _HEAD_CHARS)
            return None if found is None else found[1]
        case _:
            return None
