"""A real MCP server for the tests: `mcp_server.py stdio`, or `mcp_server.py http FILE`, which writes its port there.

What it counts lasts as long as its process, so that a test can tell one server from the next."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

_ASKS_FOR_TEXT = {"type": "object", "title": "EchoArguments", "properties": {"text": {"type": "string"}}}
_PER_PAGE = 3
_rooms: dict[str, list[anyio.Event]] = {}
_cancelled: list[str] = []


async def echo(text: str = "", self: str = "") -> Any:
    return [types.TextContent(text=text or self)]


async def whoami() -> Any:
    return [types.TextContent(text=str(os.getpid()))]


async def environment(name: str) -> Any:
    return [types.TextContent(text=os.environ.get(name, "not set"))]


async def meet(room: str, people: int) -> Any:
    """Answers nobody before all of them are there."""
    present = _rooms.setdefault(room, [])
    mine = anyio.Event()
    present.append(mine)
    if len(present) == people:
        for each in present:
            each.set()
    await mine.wait()
    return [types.TextContent(text=f"met {people}")]


async def hang(note: str = "") -> Any:
    if note:
        Path(note).write_text("under way\n")
    try:
        await anyio.sleep_forever()
    finally:
        _cancelled.append("hang")


async def cancelled() -> Any:
    return [types.TextContent(text=",".join(_cancelled) or "none")]


async def die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def fork() -> Any:
    child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return [types.TextContent(text=str(child.pid))]


async def fail() -> Any:
    return types.CallToolResult(content=[types.TextContent(text="the disk is full")], is_error=True)


async def forecast() -> Any:
    return types.CallToolResult(content=[], structured_content={"sky": "blue", "degrees": 20})


async def both(same: bool = False) -> Any:
    text = '{"a": 1}' if same else "A summary."
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content={"a": 1})


async def mixed() -> Any:
    page = types.TextResourceContents(uri="file:///notes.txt", mime_type="text/plain", text="the notes")
    data = types.BlobResourceContents(uri="file:///data.bin", mime_type="application/x-data", blob="AAAA")
    return [
        types.TextContent(text="Here:"),
        types.ImageContent(data="AAAA", mime_type="image/png"),
        types.AudioContent(data="AAAA", mime_type="audio/wav"),
        types.ResourceLink(uri="file:///more.txt", name="more"),
        types.EmbeddedResource(resource=page),
        types.EmbeddedResource(resource=data),
    ]


_READS = types.ToolAnnotations(read_only_hint=True)
_TOOLS: list[tuple[str, Callable[..., Awaitable[Any]], types.ToolAnnotations | None]] = [
    ("echo", echo, _READS),
    ("whoami", whoami, _READS),
    ("environment", environment, None),
    ("meet", meet, None),
    ("hang", hang, None),
    ("cancelled", cancelled, None),
    ("die", die, types.ToolAnnotations(destructive_hint=True)),
    ("files.fork", fork, None),
    ("fail", fail, None),
    ("forecast", forecast, types.ToolAnnotations(idempotent_hint=True)),
    ("both", both, None),
    ("mixed", mixed, None),
]


async def list_tools(context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    start = int(params.cursor) if params and params.cursor else 0
    page = [
        types.Tool(
            name=name,
            description=f"It can {name}.",
            input_schema=_ASKS_FOR_TEXT if name == "echo" else {"type": "object"},
            annotations=annotations,
        )
        for name, _, annotations in _TOOLS[start : start + _PER_PAGE]
    ]
    end = start + _PER_PAGE
    return types.ListToolsResult(tools=page, next_cursor=str(end) if end < len(_TOOLS) else None)


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    function = {name: function for name, function, _ in _TOOLS}[params.name]
    answer = await function(**(params.arguments or {}))
    return answer if isinstance(answer, types.CallToolResult) else types.CallToolResult(content=answer)


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def over_http(server: Server[Any], port_file: str, port: int) -> None:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    Path(port_file).write_text(f"{listening.getsockname()[1]}\n")
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    server: Server[Any] = Server("test", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    print("the server says hello", file=sys.stderr, flush=True)
    if sys.argv[1] == "stdio":
        anyio.run(over_stdio, server)
    else:
        over_http(server, sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
