"""Tools that agents may call, and their executor."""

from ..lazy_imports import lazy_imports

with lazy_imports(globals()):  # runs without tools need none of them
    from .adapters import ToolProvider as ToolProvider
    from .adapters import as_tool as as_tool
    from .builtin.claude_code import claude_code_tool as claude_code_tool
    from .builtin.files import grep_tool as grep_tool
    from .builtin.files import list_files_tool as list_files_tool
    from .builtin.files import read_file_tool as read_file_tool
    from .builtin.python_eval import python_eval_tool as python_eval_tool
    from .builtin.search import web_search_tool as web_search_tool
    from .builtin.sql import sql_lookup_tool as sql_lookup_tool
    from .builtin.sql import sql_tool as sql_tool
    from .builtin.web import http_get_tool as http_get_tool
    from .executor import ToolExecutor as ToolExecutor
    from .mcp import MCP as MCP
    from .no_tools import NoTools as NoTools
    from .run_tools import ToolSubset as ToolSubset
    from .run_tools import open_tools as open_tools
    from .subsets import check_names as check_names
    from .subsets import group_by_tools as group_by_tools
    from .tool import Tool as Tool
