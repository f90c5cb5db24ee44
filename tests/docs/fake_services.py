"""What stands before a simulated engine, so that it can take the place of the servers that the docs name.

It reads a JSON schema that stands in the system prompt, as a model would, and it serves the dialects of OpenAI,
Anthropic and Bedrock below /service, for any model's name. Only what snippets need: the dialects are tested
elsewhere."""

import asyncio
import json
import re
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientSession, web

_INJECTED = "It must fit this JSON schema:\n"
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Front:
    """Serves from a thread of its own while it is open, so that snippets may block."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._port: Future[int] = Future()
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = f"127.0.0.1:{self._port.result(10)}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        async with ClientSession() as self._client:
            app = web.Application(client_max_size=2**26)
            app.router.add_post("/service/v1/chat/completions", self._openai)
            app.router.add_post("/service/openai/v1/chat/completions", self._openai)
            app.router.add_route("*", "/service/v1/{path:(files|batches).*}", self._files)
            app.router.add_post("/service/v1/messages", self._anthropic)
            app.router.add_post("/service/model/{model}/converse", self._bedrock)
            app.router.add_post("/v1/traces", self._traces)
            app.router.add_route("*", "/{path:(?!service/).*}", self._pass_on)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port.set_result(runner.addresses[0][1])
            await self._stop.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path == "/v1/chat/completions":
            body = json.dumps(_read(json.loads(body))).encode()
        url = f"{self._engine}{request.raw_path}"
        async with self._client.request(request.method, url, data=body) as response:
            kind = response.content_type
            return web.Response(status=response.status, body=await response.read(), content_type=kind)

    async def _files(self, request: web.Request) -> web.Response:
        """Files and batches; the engine knows its own model only."""
        body = re.sub(rb'"model":"[^"]*"', b'"model":"sim"', await request.read())
        url, headers = (
            f"{self._engine}{request.raw_path.removeprefix('/service')}",
            {"Content-Type": request.content_type},
        )
        if "boundary" in request.headers.get("Content-Type", ""):
            headers["Content-Type"] = request.headers["Content-Type"]
        async with self._client.request(request.method, url, data=body, headers=headers) as response:
            kind = response.content_type
            return web.Response(status=response.status, body=await response.read(), content_type=kind)

    async def _traces(self, request: web.Request) -> web.Response:
        assert await request.read()
        return web.Response(content_type="application/x-protobuf")

    async def _openai(self, request: web.Request) -> web.Response:
        return web.json_response(await self._chat(await request.json()))

    async def _anthropic(self, request: web.Request) -> web.Response:
        asked = await request.json()
        chat: dict[str, Any] = {"messages": _messages(asked.get("system"), asked["messages"])}
        if tools := asked.get("tools"):
            chat["tools"] = [_function(tool["name"], tool["input_schema"]) for tool in tools]
        if form := asked.get("output_config", {}).get("format"):
            chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form["schema"]}}
        if asked.get("tool_choice", {}).get("type") == "none":
            chat["tool_choice"] = "none"
        told = await self._chat(chat)
        said, usage = told["choices"][0], told["usage"]
        blocks: list[Any] = [{"type": "text", "text": text} for text in [said["message"]["content"]] if text]
        for call_id, name, arguments in _calls(said):
            blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
        tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        stop = _STOPS[said["finish_reason"]]
        return web.json_response({"role": "assistant", "content": blocks, "stop_reason": stop, "usage": tokens})

    async def _bedrock(self, request: web.Request) -> web.Response:
        asked = await request.json()
        chat: dict[str, Any] = {"messages": _messages(asked.get("system"), asked["messages"])}
        if tools := asked.get("toolConfig", {}).get("tools"):
            specs = [tool["toolSpec"] for tool in tools if "toolSpec" in tool]
            chat["tools"] = [_function(spec["name"], spec["inputSchema"]["json"]) for spec in specs]
        if form := asked.get("outputConfig", {}).get("textFormat"):
            schema = json.loads(form["structure"]["jsonSchema"]["schema"])
            chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        told = await self._chat(chat)
        said, usage = told["choices"][0], told["usage"]
        blocks: list[Any] = [{"text": text} for text in [said["message"]["content"]] if text]
        for call_id, name, arguments in _calls(said):
            blocks.append({"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}})
        tokens = {"inputTokens": usage["prompt_tokens"], "outputTokens": usage["completion_tokens"]}
        message = {"role": "assistant", "content": blocks}
        stop = _STOPS[said["finish_reason"]]
        return web.json_response({"output": {"message": message}, "stopReason": stop, "usage": tokens})

    async def _chat(self, body: dict[str, Any]) -> Any:
        sent = _read({**body, "model": "sim"})
        async with self._client.post(f"{self._engine}/v1/chat/completions", json=sent) as response:
            if response.status == web.HTTPBadRequest.status_code:
                raise web.HTTPBadRequest(text=await response.text(), content_type="application/json")
            response.raise_for_status()
            return await response.json()


def _read(chat: dict[str, Any]) -> dict[str, Any]:
    """With the schema that the system prompt asks for, and the simulated model would not see."""
    first = chat["messages"][0] if chat.get("messages") else {}
    _, asks, schema = str(first.get("content")).partition(_INJECTED)
    if first.get("role") != "system" or not asks or "response_format" in chat:
        return chat
    found = json.JSONDecoder().raw_decode(schema)[0]
    return {**chat, "response_format": {"type": "json_schema", "json_schema": {"schema": found}}}


def _messages(system: Any, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As OpenAI has them; what stands in content blocks becomes text, calls or results."""
    told: list[dict[str, Any]] = [{"role": "system", "content": _text(system)}] if system else []
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
        calls = [use for block in blocks if (use := block.get("toolUse") or _is("tool_use", block))]
        results = [done for block in blocks if (done := block.get("toolResult") or _is("tool_result", block))]
        for result in results:
            told.append({"role": "tool", "tool_call_id": "", "content": str(result["content"])})
        if calls:
            asked = [{"name": call["name"], "arguments": json.dumps(call["input"])} for call in calls]
            made = [{"id": "", "type": "function", "function": function} for function in asked]
            told.append({"role": "assistant", "content": _text(blocks), "tool_calls": made})
        elif not results:
            told.append({"role": message["role"], "content": _text(blocks)})
    return told


def _is(kind: str, block: dict[str, Any]) -> dict[str, Any] | None:
    return block if block.get("type") == kind else None


def _text(blocks: Any) -> str:
    return blocks if isinstance(blocks, str) else "".join(block.get("text", "") for block in blocks)


def _function(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _calls(said: dict[str, Any]) -> list[tuple[str, str, Any]]:
    calls = said["message"].get("tool_calls") or []
    return [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")) for call in calls]
