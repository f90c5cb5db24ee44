"""LangChain tools as they are, by their shape: nothing of LangChain is imported.

What people give as tools.

Tools that come from elsewhere, such as an MCP server, and must be opened first.
"""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import FunctionType
from typing import Any, Protocol, cast, runtime_checkable

from ..core.errors import SpecError
from ..core.schema import is_model_class
from .tool import Tool, make_tool


@runtime_checkable
class _Described(Protocol):
    name: str
    description: str


@runtime_checkable
class _Invoked(Protocol):
    def invoke(self, input: dict[str, Any], /) -> Any: ...


@runtime_checkable
class _InvokedAsync(Protocol):
    def ainvoke(self, input: dict[str, Any], /) -> Awaitable[Any]: ...


def from_langchain(value: Any) -> Tool | None:
    """The tool that `value` is in LangChain's terms; None if it is none. Its effect is unknown and thus "write": use
    dataclasses.replace(tool, sharing=Sharing("read")) where agents may share its results. Raises SpecError."""
    if isinstance(value, type) or not isinstance(value, _Described):
        return None
    schema = _schema(value)
    if schema is None or not isinstance(value, _Invoked | _InvokedAsync):
        return None
    from .parameters.json_schema import RawArguments, sound_name  # brings jsonschema_rs, which most tools do not need

    name = sound_name(value.name)
    parameters = {key: part for key, part in schema.items() if key != "description"}  # it repeats the tool's own
    return Tool(name, value.description, _function(value), RawArguments(parameters, name))


def _function(value: "_Invoked | _InvokedAsync") -> Any:
    if isinstance(value, _InvokedAsync):
        runs = value

        async def ainvoke(**arguments: Any) -> Any:
            return await runs.ainvoke(arguments)

        return ainvoke

    blocks = value

    def invoke(**arguments: Any) -> Any:
        return blocks.invoke(arguments)

    return invoke


def _schema(value: Any) -> Mapping[str, Any] | None:
    """`tool_call_schema` leaves out what the program fills in; `args` does not say which properties are needed."""
    for attribute in ("tool_call_schema", "args_schema"):
        given = getattr(value, attribute, None)
        if isinstance(given, Mapping):
            return given
        if is_model_class(given):
            return given.model_json_schema()
    args = getattr(value, "args", None)
    return {"type": "object", "properties": cast(Mapping[str, Any], args)} if isinstance(args, Mapping) else None


def as_tool(value: Any) -> Tool:
    """A tool as the user gave it: a Tool, a plain function, or a LangChain tool. Raises SpecError."""
    if isinstance(value, Tool):
        return value
    if isinstance(value, FunctionType):
        return make_tool(value)
    pass

    if (tool := from_langchain(value)) is not None:
        return tool
    if callable(value) and not isinstance(value, type):
        return make_tool(value)
    raise SpecError(f"tools must be functions or Tool objects; got {value!r}. Decorate a function with @Tool.define.")


@runtime_checkable
class ToolProvider(Protocol):
    """One of these among `tools=[...]` gives all its tools to the run, for as long as the run lasts."""

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Raises SpecError where it cannot be reached, before anything is sent to a model."""
        ...
