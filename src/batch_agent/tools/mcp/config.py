"""An MCP server, as people name it."""

import os
import shlex
import shutil
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from ...core.errors import SpecError
from ...core.safe_text import public_url
from ..tool import Tool
from .session import McpSession


@dataclass(frozen=True, slots=True, repr=False)
class MCP:
    """An MCP server, as a run's `tools` take it: a command to start, or the address of one that is running.

        MCP("npx -y some-server --flag"), MCP(["python", "server.py"], env={"KEY": "..."}), MCP("https://host/mcp")

    A command sees HOME, PATH and a few more variables of ours, and `env`. A server's tools keep their names, with
    `prefix` before them; `include` and `exclude` choose among them, by their names without it. Tools that the server
    calls read-only are shared by agents and, like those it calls idempotent, tried once more if it dies."""

    server: str | Sequence[str]
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    include: Collection[str] | None = None
    exclude: Collection[str] = ()
    timeout: float | None = None
    """Seconds for one call; None: the run's timeout_per_tool."""
    start_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.is_remote and not self.command:
            raise SpecError("MCP needs a command, such as 'npx some-server', or the http(s) address of a server.")
        if self.is_remote and (self.env or self.cwd):
            raise SpecError(f"MCP server {self.server!r} is running already: env and cwd say nothing.")
        if not self.is_remote and self.headers:
            raise SpecError(f"MCP server {self.command[0]!r} is a command: headers say nothing; use env.")
        if isinstance(self.include, str) or isinstance(self.exclude, str):
            raise SpecError("include and exclude are collections of names, such as ['search'].")

    @property
    def is_remote(self) -> bool:
        return isinstance(self.server, str) and self.server.startswith(("http://", "https://"))

    @property
    def command(self) -> list[str]:
        return shlex.split(self.server) if isinstance(self.server, str) else list(self.server)

    def __repr__(self) -> str:
        return f"MCP({self.shown!r})"

    @property
    def shown(self) -> str:
        """Without what may be a secret: messages go to logs and models."""
        if self.is_remote:
            return public_url(str(self.server))
        program, *arguments = self.command
        return " ".join([program, *[part for part in arguments if not part.startswith("-")][:1]])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sequence[Tool]]:
        """Starts the server or reaches it, and lists its tools; leaving ends what was started. Raises SpecError."""
        _check(self)
        session = McpSession(self)
        try:
            yield await session.tools()
        finally:
            await session.aclose()


def _check(server: MCP) -> None:
    try:
        from mcp import Client  # noqa: F401 - 1.x has none
    except ImportError as error:
        raise SpecError("MCP servers need a package: pip install 'batch-agent[mcp]' (mcp>=2).") from error
    if server.is_remote:
        return
    program = server.command[0]
    path = {**os.environ, **server.env}.get("PATH")
    found = shutil.which(program if os.sep not in program else os.path.join(server.cwd or "", program), path=path)
    if found is None:
        raise SpecError(f"The MCP server's command {program!r} is not installed; install it, or give its whole path.")
