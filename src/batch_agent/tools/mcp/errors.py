"""How calls of MCP servers fail."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

_KEY = "batch_agent_refusal"

LARGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes of one message of a server, as it is kept in memory: a longer one fails its call."""


class MCPToolError(Exception):
    """The call failed, in the server's words."""


class MCPServerGone(Exception):
    """The server went away; the next call starts or reaches it again."""


@dataclass(frozen=True, slots=True)
class McpRejection:
    """An HTTP answer that refused a call as such."""

    message: str
    is_of_session: bool
    """The session is not known there, or may not be: a new one is needed. Otherwise the server is unavailable."""
    is_certain: bool
    """The call cannot have reached its tool, so any call may be made again."""

    def as_data(self) -> dict[str, Any]:
        """As the `data` of a JSON-RPC error carries it."""
        return {_KEY: asdict(self)}

    @classmethod
    def from_data(cls, data: Any) -> Self | None:
        held = data.get(_KEY) if isinstance(data, Mapping) else None
        try:
            return None if held is None else cls(**held)
        except TypeError:  # a server's own data
            return None
