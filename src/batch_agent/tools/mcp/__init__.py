"""The tools of MCP servers."""

from .config import MCP
from .errors import MCPServerGone, MCPToolError

__all__ = ["MCP", "MCPServerGone", "MCPToolError"]
