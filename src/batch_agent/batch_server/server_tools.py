"""Tools that run on the batch server. A line that names them is answered by an agent that may call them."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps
from ..core.messages import ToolCall, ToolResult, chat_tools
from ..tools import Tool, ToolExecutor

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def check_server_tools(tools: Sequence[Tool]) -> None:
    """Raises SpecError for a tool that writes, because an interrupted line is answered again from its beginning, and
    for one that needs the context of a run."""
    for tool in tools:
        if tool.context_arg is not None:
            raise SpecError(f"Tool {tool.name!r} takes a ToolContext, and the lines of a batch have none.")
        if tool.sharing.effect == "write":
            raise SpecError(
                f"Tool {tool.name!r} writes, and lines of a batch may be answered again after a restart. Allow only "
                'tools that read: declare it with @Tool.define(effect="read"), or effect="pure", if that is so.'
            )


@dataclass(frozen=True, slots=True)
class ServerTools:
    """Tools that lines may name. As in OpenAI's API, a line names one by a function with the same name. Its description
    and parameters are replaced by those of the server's tool."""

    executor: ToolExecutor
    max_turns: int

    def prepare(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The body with the server's definitions; None if it names none of the tools."""
        offered = body.get("tools")
        if not isinstance(offered, list) or not any(map(self._own, offered)):
            return None
        own = {spec.name: chat_tools((spec,))[0] for spec in self.executor.specs}
        return {**body, "tools": [own.get(self._own(tool) or "", tool) for tool in offered]}

    def calls_in(self, response: bytes) -> tuple[ToolCall, ...]:
        """The calls of a response, if all of them are of the server's tools; empty otherwise, in which case the client
        answers them."""
        calls = _message(orjson.loads(response)).get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return ()
        found = [_call(each) for each in calls]
        known = [call for call in found if call is not None and call.name in self.executor.names]
        return tuple(known) if len(known) == len(found) else ()

    async def results(self, key: str, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        return await self.executor.session(key).results(calls)

    def next_body(
        self, body: Mapping[str, Any], response: bytes, results: Sequence[ToolResult], turns_left: int
    ) -> dict[str, Any]:
        """The request of the next turn. A choice that forces a call applies only to the first turn. In the last turn,
        no tool may be called."""
        answers = [{"role": "tool", "tool_call_id": each.call.id, "content": each.content} for each in results]
        said = {name: value for name, value in _message(orjson.loads(response)).items() if value is not None}
        following = {**body, "messages": [*body["messages"], said, *answers]}
        following.pop("tool_choice", None)
        return following if turns_left > 1 else {**following, "tool_choice": "none"}

    def _own(self, tool: Any) -> str | None:
        """The name of an offered tool if it is one of the server's, else None."""
        match tool:
            case {"function": {"name": str(name)}} if name in self.executor.names:
                return name
        return None


def with_total_usage(responses: Sequence[bytes]) -> bytes:
    """The last response, with the total usage."""
    if len(responses) == 1:
        return responses[0]
    bodies = [orjson.loads(response) for response in responses]
    usages = [body.get("usage") or {} for body in bodies]
    total = {name: sum(usage.get(name) or 0 for usage in usages) for name in _COUNTS}
    details = [usage.get("prompt_tokens_details") or {} for usage in usages]
    cached = sum(each.get("cached_tokens") or 0 for each in details)
    return dumps({**bodies[-1], "usage": {**total, "prompt_tokens_details": {"cached_tokens": cached}}})


def _message(response: Any) -> dict[str, Any]:
    match response:
        case {"choices": [{"message": dict(message)}, *_]}:
            return message
    return {}


def _call(call: Any) -> ToolCall | None:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
            return ToolCall(call_id, name, arguments)
    return None
