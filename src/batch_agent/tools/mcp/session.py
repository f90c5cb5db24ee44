"""One session with an MCP server, shared by all agents of a run."""

import asyncio
from typing import TYPE_CHECKING, Any

from ...core.errors import SpecError
from ..parameters.json_schema import RawArguments, sound_name
from ..policy import ExecutionLimits, SharingPolicy
from ..tool import Tool
from .connection import McpConnection
from .errors import McpRejection, MCPServerGone, MCPToolError
from .result_text import as_text

if TYPE_CHECKING:
    import mcp_types
    from mcp import MCPError

    from .config import MCP

_MOST_RESTARTS = 3
"""Of a command, in a row, without a call that was answered."""

_TOO_LARGE_EVENT = "SSE stream failed: "
"""What the SDK says, with the limit, of an answer that it stopped to read; the session goes on."""


class _SessionRefused(Exception):
    """The server does not know the session, or may not."""

    def __init__(self, refusal: McpRejection) -> None:
        super().__init__(refusal.message)
        self.is_certain = refusal.is_certain


class McpSession:
    """What agents share. A server that has died, or does not know the session any more, is started or reached again by
    the next call."""

    def __init__(self, server: "MCP") -> None:
        self._server = server
        self._lives = [McpConnection(server)]
        self._restarts_left = _MOST_RESTARTS

    async def tools(self) -> list[Tool]:
        _, listed = await self._lives[-1].opened()
        names = {tool.name for tool in listed}
        unknown = sorted({*(self._server.include or ()), *self._server.exclude} - names)
        if unknown:
            raise SpecError(
                f"The MCP server {self._server.shown!r} has no tool {unknown[0]!r}; it has {', '.join(sorted(names))}."
            )
        wanted = names if self._server.include is None else set(self._server.include)
        return [self._tool(tool) for tool in listed if tool.name in wanted - set(self._server.exclude)]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """A call whose session the server does not know has not reached its tool: it is made again, once, in a new
        session, which all agents share. Raises MCPToolError, MCPServerGone."""
        life = self._living()
        try:
            return await self._call(life, name, arguments)
        except _SessionRefused as refused:
            life.retire()
            if not refused.is_certain:
                raise MCPServerGone(f"the MCP server refused {name!r} ({refused}): a lost session, perhaps") from None
        life = self._living()
        try:
            return await self._call(life, name, arguments)
        except _SessionRefused as refused:
            life.refused_tools.add(name)
            raise MCPToolError(str(refused)) from None

    async def _call(self, life: McpConnection, name: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError

        try:
            client, _ = await life.opened()
        except SpecError as error:
            raise MCPServerGone(str(error)) from None
        try:
            with life.calling():
                result = await client.call_tool(name, arguments)
        except MCPError as error:
            raise self._failure(life, name, error) from None
        self._restarts_left = _MOST_RESTARTS
        life.refused_tools.discard(name)
        if result.is_error:
            raise MCPToolError(as_text(result) or "the tool failed without saying why")
        return as_text(result)

    def _failure(self, life: McpConnection, name: str, error: "MCPError") -> Exception:
        from mcp_types import CONNECTION_CLOSED

        refusal = McpRejection.from_data(error.data)
        if refusal is not None and refusal.is_of_session and name not in life.refused_tools:
            return _SessionRefused(refusal)
        if refusal is not None and not refusal.is_of_session:
            done = "it was not done" if refusal.is_certain else "it may or may not have been done"
            return MCPServerGone(f"the MCP server does not answer {name!r} now ({refusal.message}); {done}")
        if error.code != CONNECTION_CLOSED or error.message.startswith(_TOO_LARGE_EVENT):
            return MCPToolError(error.message)
        life.retire()
        reason = life.problem or error.message
        return MCPServerGone(
            f"the MCP server went away while {name!r} was under way ({reason}); it may or may not have been done. The "
            "next call reaches it again"
        )

    async def aclose(self) -> None:
        self._restarts_left = 0
        tasks = [life.task for life in self._lives]
        for life in self._lives:
            life.end()
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for life in self._lives:
                life.kill()
            await asyncio.wait(tasks)
            raise

    def _living(self) -> McpConnection:
        if self._lives[-1].is_over:
            if self._restarts_left == 0:
                raise MCPServerGone(f"the MCP server {self._server.shown!r} has ended for good; do without it")
            if not self._server.is_remote:  # another's server may be down for any time, and is there again after it
                self._restarts_left -= 1
            self._lives = [*(life for life in self._lives if not life.task.done()), McpConnection(self._server)]
        return self._lives[-1]

    def _tool(self, listed: "mcp_types.Tool") -> Tool:
        async def call(**arguments: Any) -> str:
            return await self.call(listed.name, arguments)

        name = sound_name(self._server.prefix + listed.name)
        reads = listed.annotations is not None and bool(listed.annotations.read_only_hint)
        repeats = reads or (listed.annotations is not None and bool(listed.annotations.idempotent_hint))
        return Tool(
            name,
            listed.description or listed.title or "",
            call,
            RawArguments(listed.input_schema, name),
            SharingPolicy("read" if reads else "write", idempotent=repeats and not reads),
            ExecutionLimits(self._server.timeout, retries=int(repeats), retry_on=(MCPServerGone,) if repeats else ()),
        )
