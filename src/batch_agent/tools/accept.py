"""What people give as tools."""

from types import FunctionType
from typing import Any

from ..core.errors import SpecError
from .tool import Tool, make_tool


def as_tool(value: Any) -> Tool:
    """A tool as the user gave it: a Tool, a plain function, or a LangChain tool. Raises SpecError."""
    if isinstance(value, Tool):
        return value
    if isinstance(value, FunctionType):
        return make_tool(value)
    from .langchain import from_langchain  # with what checks JSON schemas, which most tools do not need

    if (tool := from_langchain(value)) is not None:
        return tool
    if callable(value) and not isinstance(value, type):
        return make_tool(value)
    raise SpecError(f"tools must be functions or Tool objects; got {value!r}. Decorate a function with @Tool.define.")
