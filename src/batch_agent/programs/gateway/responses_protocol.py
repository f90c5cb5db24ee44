"""OpenAI's responses API, which Codex speaks: responses and their events."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...core.json import dumps
from ...core.messages import Thought
from ...core.requests import FinishReason, Reply, Usage
from .api_protocol import ParsedRequest, ResponseMeta
from .gateway_error import GatewayError
from .openai_protocol import error_data
from .responses_request import read
from .responses_tools import read_tools

Data = dict[str, Any]
Event = tuple[str, Data]

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "temperature",
    "text",
    "top_p",
    "truncation",
    "user",
)
_INCOMPLETE: Mapping[FinishReason, str] = {"length": "max_output_tokens", "refusal": "content_filter"}


class ResponsesProtocol:
    """OpenAI's responses API."""

    keep_alive = b": waiting\n\n"

    def read(self, body: Mapping[str, Any]) -> ParsedRequest:
        return read(body)

    def reply(self, reply: Reply, meta: ResponseMeta) -> bytes:
        return dumps(_finished(reply, meta))

    def events(self, reply: Reply, meta: ResponseMeta) -> bytes:
        finished = _finished(reply, meta)
        items = [event for index, item in enumerate(finished["output"]) for event in _item_events(index, item)]
        return _stream([*_begin(meta), *items, (f"response.{finished['status']}", {"response": finished})])

    def error(self, error: GatewayError) -> bytes:
        return dumps({"error": error_data(error)})

    def error_event(self, error: GatewayError, meta: ResponseMeta) -> bytes:
        failure = {"code": _failure_code(error), "message": str(error)}
        failed = _response(meta, "failed") | {"error": failure}
        return _stream([*_begin(meta), ("response.failed", {"response": failed})])


def _failure_code(error: GatewayError) -> str:
    """The error code for Codex, which ends its turn after invalid_prompt and context_length_exceeded, and repeats the
    request after other codes."""
    if error.code is not None:
        return error.code
    return "server_error" if error.status >= 500 else "invalid_prompt"


def _begin(meta: ResponseMeta) -> list[Event]:
    begun = {"response": _response(meta, "in_progress")}
    return [("response.created", begun), ("response.in_progress", begun)]


def _response(meta: ResponseMeta, status: str) -> Data:
    """A response without output. It lists the tools that were offered to the model."""
    body = meta.body
    return {
        **{name: body.get(name) for name in _ECHOED},
        "id": f"resp_{meta.id}",
        "object": "response",
        "created_at": meta.created,
        "model": meta.model,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": read_tools(body).definitions,
        "usage": None,
    }


def _finished(reply: Reply, meta: ResponseMeta) -> Data:
    reason = _INCOMPLETE.get(reply.finish)
    status = "completed" if reason is None else "incomplete"
    return _response(meta, status) | {
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": list(_items(reply, meta, status)),
        "usage": _usage(reply.usage),
    }


def _items(reply: Reply, meta: ResponseMeta, status: str) -> Iterator[Data]:
    for number, thought in enumerate(reply.thoughts):
        yield _reasoning(thought, f"rs_{meta.id}{number:02}")
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        shown = "completed" if reply.calls else status
        yield {"id": f"msg_{meta.id}", "type": "message", "role": "assistant", "status": shown, "content": [part]}
    tools = read_tools(meta.body)
    for number, call in enumerate(reply.calls):
        is_last = number == len(reply.calls) - 1
        yield tools.call_item(call, f"fc_{meta.id}{number:02}", status if is_last else "completed")


def _reasoning(thought: Thought, item_id: str) -> Data:
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": thought.text}] if thought.text else [],
        "encrypted_content": thought.signature or thought.redacted or None,
        "status": "completed",
    }


def _item_events(index: int, item: Data) -> Iterator[Event]:
    where = {"item_id": item["id"], "output_index": index}
    yield "response.output_item.added", {"output_index": index, "item": _begun(item)}
    match item["type"]:
        case "message" | "reasoning" as kind:
            event = "output_text" if kind == "message" else "reasoning_text"
            for number, part in enumerate(item["content"]):
                yield from _part_events(event, {**where, "content_index": number}, part)
        case "function_call":
            yield "response.function_call_arguments.delta", {**where, "delta": item["arguments"]}
            done = {**where, "arguments": item["arguments"], "name": item["name"]}
            yield "response.function_call_arguments.done", done
        case "custom_tool_call":
            yield "response.custom_tool_call_input.delta", {**where, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**where, "input": item["input"]}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _begun(item: Data) -> Data:
    empty: Data = {"content": [], "arguments": "", "input": ""}
    return item | {"status": "in_progress"} | {name: value for name, value in empty.items() if name in item}


def _part_events(event: str, where: Data, part: Data) -> Iterator[Event]:
    logprobs: Data = {"logprobs": []} if event == "output_text" else {}
    yield "response.content_part.added", {**where, "part": part | {"text": ""}}
    if part["text"]:
        yield f"response.{event}.delta", {**where, **logprobs, "delta": part["text"]}
    yield f"response.{event}.done", {**where, **logprobs, "text": part["text"]}
    yield "response.content_part.done", {**where, "part": part}


def _usage(usage: Usage) -> Data:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.all_written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


def _stream(events: list[Event]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, "sequence_number": number, **data}))
        for number, (kind, data) in enumerate(events)
    )
