"""Tools of MCP servers."""

from .mcp_errors import MCPServerGone, MCPToolError
from .mcp_session import MCP

__all__ = ["MCP", "MCPServerGone", "MCPToolError"]
