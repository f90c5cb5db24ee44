"""Hosted services on loopback: their paths, keys, lists of models, refused fields, rate limits and errors, as
their documentation and the reports of users have them: docs/guides/hosted-services.md, docs/guides/local-servers.md."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

KEY = "service-key-0123456789abcdef"
OPENAI_FIELDS = frozenset(
    {
        *("model", "messages", "temperature", "top_p", "stop", "max_tokens", "max_completion_tokens", "seed", "tools"),
        *("tool_choice", "response_format", "stream", "stream_options", "service_tier", "prompt_cache_key"),
    }
)
_EXTRA = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}


@dataclass(frozen=True)
class Heard:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]


Refuse = Callable[[Heard], web.Response | None]


@dataclass(frozen=True)
class Service:
    """How a service responds. `refuse`: its response to a request that it does not accept; None: it does."""

    root: str
    models: Any
    key_header: str = "authorization"
    refuse: Refuse = field(default=lambda heard: None)
    headers: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    """Of each tool call, which must come back with it."""
    comment: bytes = b""
    """What precedes the events of a stream."""


@dataclass
class ServiceServer:
    url: str
    heard: list[Heard] = field(default_factory=list)

    @property
    def requests(self) -> list[Heard]:
        return [each for each in self.heard if each.method == "POST"]


@asynccontextmanager
async def service_server(service: Service) -> AsyncIterator[ServiceServer]:
    async def serve(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = orjson.loads(raw) if raw else {}
        heard = Heard(request.method, request.path, dict(request.query), headers, body)
        server.heard.append(heard)
        given = headers.get(service.key_header, "").removeprefix("Bearer ")
        if given != KEY:
            return web.json_response({"error": {"message": f"Incorrect API key provided: {given}."}}, status=401)
        if heard.path == f"{service.root}/models":
            return web.json_response(service.models)
        if not heard.path.endswith("/chat/completions") or not heard.path.startswith(service.root):
            return web.json_response({"error": {"code": "404", "message": "Resource not found"}}, status=404)
        if (refusal := service.refuse(heard)) is not None:
            return refusal
        return await _stream(request, service) if body.get("stream") else _reply(service, body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = ServiceServer(f"http://127.0.0.1:{runner.addresses[0][1]}")
        yield server
    finally:
        await runner.cleanup()


def _reply(service: Service, body: Mapping[str, Any]) -> web.Response:
    """Calls the first tool in the first turn, and answers otherwise."""
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        function = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
        call: dict[str, Any] = {"id": "abcdefgh1", "type": "function", "function": function}
        if service.signature:
            call["extra_content"] = {"google": {"thought_signature": service.signature}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    elif body.get("response_format"):
        message["content"] = '{"answer": "done"}'
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    reply = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    return web.json_response({**reply, "usage": usage}, headers=dict(service.headers))


async def _stream(request: web.Request, service: Service) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **service.headers})
    await response.prepare(request)
    await response.write(service.comment)
    for choice in ({"delta": {"content": "done"}, "index": 0}, {"delta": {}, "index": 0, "finish_reason": "stop"}):
        await response.write(
            b"data: " + orjson.dumps({"object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"
        )
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    await response.write(b"data: " + orjson.dumps({"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n")
    return response


def unknown_fields(body: Mapping[str, Any], known: Collection[str]) -> list[str]:
    return sorted(set(body) - set(known))


def mistral(heard: Heard) -> web.Response | None:
    """422 with a list of the fields that it does not know, as Pydantic writes it."""
    known = {"model", "messages", "temperature", "top_p", "max_tokens", "stop", "random_seed", "stream", "tools"}
    refused = unknown_fields(heard.body, known | {"tool_choice", "response_format", "parallel_tool_calls"})
    if not refused:
        return None
    detail = [{**_EXTRA, "loc": ["body", name], "input": heard.body[name]} for name in refused]
    return web.json_response(
        {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None}, status=422
    )


def gemini(heard: Heard) -> web.Response | None:
    """400 in a list, as the endpoint writes its errors; also for a call without its signature."""
    problems = [
        f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
        for name in unknown_fields(heard.body, OPENAI_FIELDS - {"seed", "prompt_cache_key"})
    ]
    for message in heard.body["messages"]:
        calls = message.get("tool_calls") or []
        if calls and calls[0].get("extra_content") != {"google": {"thought_signature": "c2lnbmVk"}}:
            problems.append("Function call is missing a thought_signature in functionCall parts.")
    if not problems:
        return None
    error = {"code": 400, "message": "\n".join(problems), "status": "INVALID_ARGUMENT"}
    return web.json_response([{"error": error}], status=400)


def groq(heard: Heard) -> web.Response | None:
    refused = unknown_fields(heard.body, OPENAI_FIELDS - {"prompt_cache_key"})
    if heard.body.get("response_format") and "gpt-oss" not in heard.body["model"]:
        text = "This model does not support response format `json_schema`."
    elif refused:
        text = f"property '{refused[0]}' is unsupported"
    else:
        return None
    return web.json_response({"error": {"message": text, "type": "invalid_request_error"}}, status=400)


def lmstudio(heard: Heard) -> web.Response | None:
    if isinstance(heard.body.get("tool_choice"), dict):
        text = "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"
        return web.json_response({"error": text}, status=400)
    return None


def azure(heard: Heard) -> web.Response | None:
    """Refuses what an API version, or a model of another maker, does not know."""
    known = OPENAI_FIELDS - {"prompt_cache_key"}
    version = heard.query.get("api-version", "v1")
    if version != "v1" and version < "2024-09":
        known -= {"max_completion_tokens"}
    if not (refused := unknown_fields(heard.body, known)):
        return None
    text = f"Unrecognized request argument supplied: {refused[0]}"
    return web.json_response({"error": {"message": text, "type": "invalid_request_error"}}, status=400)
