"""Tools: what agents may do besides talking."""

from .builtin.files import read_file_tool
from .fabric import ToolFabric
from .tool import Tool, as_tool

__all__ = ["Tool", "ToolFabric", "as_tool", "read_file_tool"]
