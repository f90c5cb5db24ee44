"""Session with an MCP server, shared by all agents of a run: its tools, and their results as text for the model."""

import asyncio
import os
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson

from ...core.errors import SpecError
from ...core.images import Image
from ...core.images.image_format import SUPPORTED, media_type_of, pixels_of
from ..parameters.json_schema import RawArguments, sanitize_name
from ..policy import ExecutionLimits, SharingPolicy
from ..tool import Tool
from .mcp_connection import McpConnection
from .mcp_errors import McpRejection, MCPServerGone, MCPToolError
from .server_config import McpConfig

if TYPE_CHECKING:
    import mcp_types
    from mcp import MCPError


def as_text(result: "mcp_types.CallToolResult") -> str:
    """Text of a result. Structured content is omitted if the text repeats it, as the specification asks servers to
    do."""
    text = "\n".join(filter(None, map(_block, result.content)))
    if result.structured_content is None or _repeats(text, result.structured_content):
        return text
    return f"{text}\n{orjson.dumps(result.structured_content).decode()}".strip()


def content_of(result: "mcp_types.CallToolResult") -> str | list[str | Image]:
    """Text of a result, and its images behind it."""
    text = as_text(result)
    images = [image for block in result.content if (image := _image(block)) is not None]
    return [text, *images] if images else text


def _image(block: "mcp_types.ContentBlock") -> Image | None:
    """The image of a block, if it is one that models take."""
    if block.type != "image":
        return None
    try:
        data = b64decode(block.data, validate=True)
    except ValueError:
        return None
    media_type = media_type_of(data[:64])
    return Image(data) if media_type in SUPPORTED and pixels_of(data, media_type) is not None else None


def _repeats(text: str, content: Any) -> bool:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = text
    return content in (parsed, {"result": parsed}, {"result": text})


def _block(block: "mcp_types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            resource = block.resource
            text = getattr(resource, "text", None)
            return (
                f"[resource {resource.uri}]\n{text}"
                if text is not None
                else f"[resource {resource.uri}, {resource.mime_type}]"
            )


_MAX_RESTARTS = 3
"""Consecutive restarts of a command without a successful call in between."""

_TOO_LARGE_EVENT = "SSE stream failed: "
"""How the SDK's error for a response over the limit begins. The session remains usable."""


class _SessionRejected(Exception):
    """The server does not know the session, or may not know it."""

    def __init__(self, rejection: McpRejection) -> None:
        super().__init__(rejection.message)
        self.is_certain = rejection.is_certain


class McpSession:
    """The connection that agents share. If the server has died, or no longer knows the session, the next call starts or
    reaches it again."""

    def __init__(self, config: McpConfig) -> None:
        self._config = config
        self._connections = [McpConnection(config)]
        self._restarts_left = _MAX_RESTARTS

    async def tools(self) -> list[Tool]:
        _, listed = await self._connections[-1].opened()
        names = {tool.name for tool in listed}
        unknown = sorted({*(self._config.include or ()), *self._config.exclude} - names)
        if unknown:
            raise SpecError(
                f"The MCP server {self._config.display_name!r} has no tool {unknown[0]!r}; "
                f"it has {', '.join(sorted(names))}."
            )
        wanted = names if self._config.include is None else set(self._config.include)
        return [self._tool(tool) for tool in listed if tool.name in wanted - set(self._config.exclude)]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Calls a tool. A call that the server rejected because it does not know the session has not reached the tool;
        it is repeated once, in a new session. Raises MCPToolError, MCPServerGone."""
        connection = self._current_connection()
        try:
            return await self._call(connection, name, arguments)
        except _SessionRejected as rejected:
            connection.retire()
            if not rejected.is_certain:
                raise MCPServerGone(f"the MCP server refused {name!r} ({rejected}): a lost session, perhaps") from None
        connection = self._current_connection()
        try:
            return await self._call(connection, name, arguments)
        except _SessionRejected as rejected:
            connection.rejected_tools.add(name)
            raise MCPToolError(str(rejected)) from None

    async def _call(self, connection: McpConnection, name: str, arguments: dict[str, Any]) -> Any:
        from mcp import MCPError

        try:
            client, _ = await connection.opened()
        except SpecError as error:
            raise MCPServerGone(str(error)) from None
        try:
            with connection.track_call():
                result = await client.call_tool(name, arguments)
        except MCPError as error:
            raise self._failure(connection, name, error) from None
        self._restarts_left = _MAX_RESTARTS
        connection.rejected_tools.discard(name)
        if result.is_error:
            raise MCPToolError(as_text(result) or "the tool failed without saying why")
        return content_of(result)

    def _failure(self, connection: McpConnection, name: str, error: "MCPError") -> Exception:
        from mcp_types import CONNECTION_CLOSED

        rejection = McpRejection.from_data(error.data)
        if rejection is not None and rejection.is_of_session and name not in connection.rejected_tools:
            return _SessionRejected(rejection)
        if rejection is not None and not rejection.is_of_session:
            done = "it was not done" if rejection.is_certain else "it may or may not have been done"
            return MCPServerGone(f"the MCP server does not answer {name!r} now ({rejection.message}); {done}")
        is_answer = error.code != CONNECTION_CLOSED or error.message.startswith(_TOO_LARGE_EVENT)
        # Servers use this code too, for errors of any kind.
        if is_answer or not (self._config.is_remote or connection.is_closed):
            return MCPToolError(error.message)
        connection.retire()
        reason = connection.problem or error.message
        return MCPServerGone(
            f"the MCP server went away while {name!r} was under way ({reason}); it may or may not have been done. The "
            "next call reaches it again"
        )

    async def aclose(self) -> None:
        self._restarts_left = 0
        tasks = [connection.task for connection in self._connections]
        for connection in self._connections:
            connection.close()
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for connection in self._connections:
                connection.kill()
            await asyncio.wait(tasks)
            raise

    def _current_connection(self) -> McpConnection:
        if self._connections[-1].is_closed:
            if self._restarts_left == 0:
                raise MCPServerGone(f"the MCP server {self._config.display_name!r} has ended for good; do without it")
            if not self._config.is_remote:  # a remote server may be down for any time and come back
                self._restarts_left -= 1
            self._connections = [
                *(connection for connection in self._connections if not connection.task.done()),
                McpConnection(self._config),
            ]
        return self._connections[-1]

    def _tool(self, listed: "mcp_types.Tool") -> Tool:
        """Raises SpecError for a schema that no server could use."""

        async def call(**arguments: Any) -> Any:
            return await self.call(listed.name, arguments)

        name = sanitize_name(self._config.prefix + listed.name)
        reads = listed.annotations is not None and bool(listed.annotations.read_only_hint)
        repeats = reads or (listed.annotations is not None and bool(listed.annotations.idempotent_hint))
        try:
            arguments = RawArguments(listed.input_schema, name)
        except SpecError as error:
            raise SpecError(f"{error} exclude=[{listed.name!r}] leaves it out.") from None
        return Tool(
            name,
            listed.description or listed.title or "",
            call,
            arguments,
            SharingPolicy("read" if reads else "write", idempotent=repeats and not reads),
            ExecutionLimits(self._config.timeout, retries=int(repeats), retry_on=(MCPServerGone,) if repeats else ()),
        )


class MCP(McpConfig):
    """An MCP server for a run's `tools`: a command to start, or the URL of a running server.

        MCP("npx -y some-server --flag"), MCP(["python", "server.py"], env={"KEY": "..."}), MCP("https://host/mcp")

    A command gets HOME, PATH and a few more variables of this process, and `env`. Tools keep their names, with `prefix`
    in front; `include` and `exclude` select them by their names without it. Agents share the results of tools that the
    server declares read-only. Those and idempotent tools are retried once if the server dies."""

    __slots__ = ()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sequence[Tool]]:
        """Starts or reaches the server and lists its tools. A started server ends with the context. Raises
        SpecError."""
        self.check_installed()
        session = McpSession(self)
        try:
            yield await session.tools()
        finally:
            await session.aclose()

    def check_installed(self) -> None:
        """Raises SpecError if the package, or the program of a command, is missing."""
        _check_installed(self)


def _check_installed(config: McpConfig) -> None:
    try:
        from mcp import Client  # noqa: F401 - 1.x has none
    except ImportError as error:
        raise SpecError("MCP servers need a package: pip install 'batch-agent[mcp]' (mcp>=2).") from error
    if config.is_remote:
        return
    program = config.command[0]
    path = {**os.environ, **config.env}.get("PATH")
    found = shutil.which(program if os.sep not in program else os.path.join(config.cwd or "", program), path=path)
    if found is None:
        raise SpecError(f"The MCP server's command {program!r} is not installed; install it, or give its full path.")
