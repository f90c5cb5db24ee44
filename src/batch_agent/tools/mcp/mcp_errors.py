"""Errors of MCP calls."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

_KEY = "batch_agent_rejection"

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message of a server that is accepted; the call of a larger one fails."""


class MCPToolError(Exception):
    """The call failed; the message is the server's."""


class MCPServerGone(Exception):
    """The server ended or cannot be reached; the next call starts or reaches it again."""


@dataclass(frozen=True, slots=True)
class McpRejection:
    """HTTP response that rejected a request before any tool handled it."""

    message: str
    is_of_session: bool
    """The server does not know the session, or may not: a new one is needed. False: the server is unavailable."""
    is_certain: bool
    """The call cannot have reached its tool, so it may be repeated whatever it does."""

    def as_data(self) -> dict[str, Any]:
        """For the `data` of a JSON-RPC error."""
        return {_KEY: asdict(self)}

    @classmethod
    def from_data(cls, data: Any) -> Self | None:
        fields = data.get(_KEY) if isinstance(data, Mapping) else None
        try:
            return None if fields is None else cls(**fields)
        except TypeError:  # a server's own data
            return None
