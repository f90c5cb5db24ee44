"""MCP servers as providers of tools."""

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ...core.errors import SpecError
from ..tool import Tool
from .mcp_session import McpSession
from .server_config import McpConfig


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
