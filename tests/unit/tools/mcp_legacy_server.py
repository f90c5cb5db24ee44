"""An MCP server of the protocol before 2026, without the SDK: it starts in a moment. Over stdio it is run as a script;
`over_http` serves it to tests from their own process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_NAMES = ("echo", "whoami", "die", "fork", "broken")
_ABOUT: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "legacy", "version": "1"},
}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    match message["method"]:
        case "initialize":
            return _result(message, _ABOUT)
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": _hints(name)} for name in _NAMES]
            return _result(message, {"tools": tools})
        case "tools/call":
            return _called(message, message["params"]["name"], message["params"].get("arguments", {}))
        case method if "id" in message:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": f"no {method}"}}
    return None


def _hints(name: str) -> dict[str, bool]:
    return {"readOnlyHint": True} if name == "whoami" else {}


def _called(message: dict[str, Any], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = arguments.get("text", "")
    match name:
        case "whoami":
            text = str(os.getpid())
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fork":
            text = str(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid)
        case "broken":
            error = {"code": -32602, "message": "text is too long"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return _result(message, {"content": [{"type": "text", "text": text}]})


def _result(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


@dataclass
class Served:
    url: str = ""
    sessions: set[str] = field(default_factory=set)
    """Those that it knows."""
    keys: list[str] = field(default_factory=list)
    """What every request said as X-Key."""
    farewell: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def over_http() -> AsyncIterator[Served]:
    """It never answers to a farewell."""
    served = Served()

    async def post(request: web.Request) -> web.Response:
        served.keys.append(request.headers.get("X-Key", ""))
        message = await request.json()
        given = answer(message)
        if message["method"] == "initialize":
            session = f"session-{len(served.keys)}"
            served.sessions.add(session)
            return web.json_response(given, headers={"Mcp-Session-Id": session})
        if request.headers.get("Mcp-Session-Id") not in served.sessions:
            return web.Response(status=404)
        return web.Response(status=202) if given is None else web.json_response(given)

    async def delete(request: web.Request) -> web.Response:
        served.farewell.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    app = web.Application()
    app.router.add_post("/mcp", post)
    app.router.add_delete("/mcp", delete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        yield served
    finally:
        await runner.cleanup()


def main() -> None:
    for line in sys.stdin:
        given = answer(json.loads(line))
        if given is not None:
            print(json.dumps(given), flush=True)


if __name__ == "__main__":
    main()
