"""The tools of MCP servers."""

from .errors import MCPServerGone, MCPToolError
from .server import MCP

__all__ = ["MCP", "MCPServerGone", "MCPToolError"]
