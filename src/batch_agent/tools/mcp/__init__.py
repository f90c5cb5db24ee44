"""Tools of MCP servers."""

from .mcp_errors import MCPServerGone, MCPToolError
from .provider import MCP

__all__ = ["MCP", "MCPServerGone", "MCPToolError"]
