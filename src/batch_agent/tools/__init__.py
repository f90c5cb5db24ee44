"""Tools: what agents may do besides talking."""

from ..core.lazily import lazy_imports
from .accept import as_tool as as_tool
from .fabric import ToolFabric as ToolFabric
from .opening import open_tools as open_tools
from .provider import ToolProvider as ToolProvider
from .selection import NoTools as NoTools
from .selection import Selection as Selection
from .tool import Tool as Tool
from .toolsets import check_names as check_names
from .toolsets import toolsets as toolsets

with lazy_imports(globals()):
    from .builtin.claude_code import claude_code_tool as claude_code_tool
    from .builtin.files import grep_tool as grep_tool
    from .builtin.files import list_files_tool as list_files_tool
    from .builtin.files import read_file_tool as read_file_tool
    from .builtin.python_eval import python_eval_tool as python_eval_tool
    from .builtin.search import web_search_tool as web_search_tool
    from .builtin.sql import sql_lookup_tool as sql_lookup_tool
    from .builtin.sql import sql_tool as sql_tool
    from .builtin.web import http_get_tool as http_get_tool
    from .mcp import MCP as MCP
