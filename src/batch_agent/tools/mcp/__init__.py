"""Tools of MCP servers."""

from .errors import MCPServerGone, MCPToolError
from .provider import MCP

__all__ = ["MCP", "MCPServerGone", "MCPToolError"]
