"""Tools: what agents may do besides talking."""

from typing import TYPE_CHECKING

from ..core.lazily import names_from
from .accept import as_tool
from .fabric import ToolFabric
from .opening import open_tools
from .provider import ToolProvider
from .selection import NoTools, Selection
from .tool import Tool
from .toolsets import check_names, toolsets

if TYPE_CHECKING:
    from .builtin.claude_code import claude_code_tool
    from .builtin.files import grep_tool, list_files_tool, read_file_tool
    from .builtin.python_eval import python_eval_tool
    from .builtin.search import web_search_tool
    from .builtin.sql import sql_lookup_tool, sql_tool
    from .builtin.web import http_get_tool
    from .mcp import MCP

__all__ = [
    "MCP",
    "NoTools",
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

if not TYPE_CHECKING:  # a type checker sees the imports above, and names that are not there
    __getattr__ = names_from(
        __name__,
        {
            ".builtin.claude_code": "claude_code_tool",
            ".builtin.files": "grep_tool list_files_tool read_file_tool",
            ".builtin.python_eval": "python_eval_tool",
            ".builtin.search": "web_search_tool",
            ".builtin.sql": "sql_lookup_tool sql_tool",
            ".builtin.web": "http_get_tool",
            ".mcp": "MCP",
        },
    )
