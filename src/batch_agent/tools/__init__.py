"""Tools: what agents may do besides talking."""

from .builtin.files import grep_tool, list_files_tool, read_file_tool
from .builtin.search import web_search_tool
from .builtin.web import http_get_tool
from .fabric import ToolFabric, check_names
from .opening import open_tools
from .provider import ToolProvider
from .tool import Tool, as_tool

__all__ = [
    "Tool",
    "ToolFabric",
    "ToolProvider",
    "as_tool",
    "check_names",
    "grep_tool",
    "http_get_tool",
    "list_files_tool",
    "open_tools",
    "read_file_tool",
    "web_search_tool",
]
