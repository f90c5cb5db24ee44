"""Tools: what agents may do besides talking."""

from .accept import as_tool
from .builtin.claude_code import claude_code_tool
from .builtin.files import grep_tool, list_files_tool, read_file_tool
from .builtin.python_eval import python_eval_tool
from .builtin.search import web_search_tool
from .builtin.sql import sql_lookup_tool, sql_tool
from .builtin.web import http_get_tool
from .fabric import ToolFabric, check_names
from .mcp import MCP
from .opening import open_tools
from .provider import ToolProvider
from .selection import Selection
from .tool import Tool
from .toolsets import toolsets

__all__ = [
    "MCP",
    "Selection",
    "Tool",
    "ToolFabric",
    "ToolProvider",
    "as_tool",
    "check_names",
    "claude_code_tool",
    "grep_tool",
    "http_get_tool",
    "list_files_tool",
    "open_tools",
    "python_eval_tool",
    "read_file_tool",
    "sql_lookup_tool",
    "sql_tool",
    "toolsets",
    "web_search_tool",
]
