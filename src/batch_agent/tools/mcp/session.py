"""One session with an MCP server, shared by all agents of a run."""

import asyncio
from typing import TYPE_CHECKING, Any

from ...core.errors import SpecError
from ..policy import Pace, Sharing
from ..raw_arguments import RawArguments, sound_name
from ..tool import Tool
from .errors import MCPServerGone, MCPToolError
from .life import Life
from .texts import as_text

if TYPE_CHECKING:
    import mcp_types

    from .server import MCP

_MOST_RESTARTS = 3
"""In a row, without a call that was answered."""
_SESSION_LOST = "Session terminated"
"""The SDK's words for a server that does not know our session any more."""


class Session:
    """What agents share. A server that has died is started again by the next call."""

    def __init__(self, server: "MCP") -> None:
        self._server = server
        self._lives = [Life(server)]
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
        """Raises MCPToolError, MCPServerGone."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        life = self._living()
        try:
            client, _ = await life.opened()
        except SpecError as error:
            raise MCPServerGone(str(error)) from None
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.message == _SESSION_LOST:
                life.end()
            elif error.code != CONNECTION_CLOSED:
                raise MCPToolError(error.message) from None
            raise MCPServerGone(
                f"the MCP server went away while {name!r} was under way ({error.message}); it may or may not have been "
                "done. The next call reaches it again"
            ) from None
        self._restarts_left = _MOST_RESTARTS
        if result.is_error:
            raise MCPToolError(as_text(result) or "the tool failed without saying why")
        return as_text(result)

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

    def _living(self) -> Life:
        if self._lives[-1].is_over:
            if self._restarts_left == 0:
                raise MCPServerGone(f"the MCP server {self._server.shown!r} has ended for good; do without it")
            self._restarts_left -= 1
            self._lives = [*(life for life in self._lives if not life.task.done()), Life(self._server)]
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
            Sharing("read" if reads else "write", idempotent=repeats and not reads),
            Pace(self._server.timeout, retries=int(repeats), retry_on=(MCPServerGone,) if repeats else ()),
        )
