"""Configuration of a client of an MCP server."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from ...core.errors import SpecError
from ...core.safe_text import mask_user_info, public_url


@dataclass(frozen=True, slots=True, repr=False)
class McpConfig:
    """How to start or reach an MCP server, and which of its tools to use."""

    server: str | Sequence[str]
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    include: Collection[str] | None = None
    exclude: Collection[str] = ()
    timeout: float | None = None
    """Timeout of one call in seconds; None: the run's timeout_per_tool."""
    start_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.is_remote and not self.command:
            raise SpecError("MCP needs a command, such as 'npx some-server', or the http(s) URL of a server.")
        if self.is_remote and (self.env or self.cwd):
            raise SpecError(f"MCP server {self.server!r} is already running: env and cwd have no effect; remove them.")
        if not self.is_remote and self.headers:
            raise SpecError(f"MCP server {self.command[0]!r} is a command: headers have no effect; use env.")
        if isinstance(self.include, str) or isinstance(self.exclude, str):
            raise SpecError("include and exclude must be collections of names, such as ['search'].")

    @property
    def is_remote(self) -> bool:
        return isinstance(self.server, str) and self.server.startswith(("http://", "https://"))

    @property
    def command(self) -> list[str]:
        return shlex.split(self.server) if isinstance(self.server, str) else list(self.server)

    def __repr__(self) -> str:
        return f"MCP({self.display_name!r})"

    @property
    def display_name(self) -> str:
        """The server without anything that may be a secret: messages go to logs and models."""
        if self.is_remote:
            return public_url(str(self.server))
        program, *arguments = self.command
        words = [program, *(part for part in arguments if not part.startswith("-") and "=" not in part)]
        return mask_user_info(" ".join(words[program == "env" :][:2]))
