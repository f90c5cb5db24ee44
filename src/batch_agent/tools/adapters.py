"""Adapters for what `tools=` accepts: functions, LangChain tools, and providers of tools such as MCP servers.

LangChain tools are recognized by their attributes; LangChain itself is not imported.
"""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, cast, runtime_checkable

from ..core.errors import SpecError
from ..core.schema import is_model_class
from ..core.spec import BatchSpec
from ..core.task_fields import is_path, is_url
from ..lazy_imports import lazy_modules
from .tool import Tool, make_tool

with lazy_modules(globals()):
    from .parameters import json_schema


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
    """Converts a LangChain tool; returns None for other values. Its effect is unknown, so it counts as "write": to let
    agents share its results, use dataclasses.replace(tool, sharing=SharingPolicy("read")). Raises SpecError."""
    if isinstance(value, type) or not isinstance(value, _Described):
        return None
    schema = _schema(value)
    if schema is None or not isinstance(value, _Invoked | _InvokedAsync):
        return None
    name = json_schema.sanitize_name(value.name)
    parameters = {key: part for key, part in schema.items() if key != "description"}  # it repeats the tool's own
    return Tool(name, value.description, _function(value), json_schema.RawArguments(parameters, name))


def _function(value: "_Invoked | _InvokedAsync") -> Any:
    if isinstance(value, _InvokedAsync):
        async_tool = value

        async def ainvoke(**arguments: Any) -> Any:
            return await async_tool.ainvoke(arguments)

        return ainvoke

    sync_tool = value

    def invoke(**arguments: Any) -> Any:
        return sync_tool.invoke(arguments)

    return invoke


def _schema(value: Any) -> Mapping[str, Any] | None:
    """Prefers `tool_call_schema`, which omits what the program fills in; `args` does not say which properties are
    required."""
    for attribute in ("tool_call_schema", "args_schema"):
        schema = getattr(value, attribute, None)
        if isinstance(schema, Mapping):
            return schema
        if is_model_class(schema):
            return schema.model_json_schema()
    args = getattr(value, "args", None)
    return {"type": "object", "properties": cast(Mapping[str, Any], args)} if isinstance(args, Mapping) else None


def as_tool(value: Any) -> Tool:
    """Converts a function or a LangChain tool; returns a Tool unchanged. Raises SpecError."""
    if isinstance(value, Tool):
        return value
    if isinstance(value, FunctionType):
        return make_tool(value)
    if (tool := from_langchain(value)) is not None:
        return tool
    if callable(value) and not isinstance(value, type):
        return make_tool(value)
    raise SpecError(f"tools must be functions or Tool objects; got {value!r}. Decorate a function with @Tool.define.")


def locate_file_tools(spec: BatchSpec, inputs: Any, encoding: str | None) -> BatchSpec:
    """The spec with file tools that read the folder of the inputs, unless they have a folder of their own: they accept
    the `{path}` of an input."""
    if not any(isinstance(tool, Tool) and tool.relocate is not None for tool in spec.tools):
        return spec
    folder = _input_folder(inputs)
    if folder is None and encoding is None:
        return spec
    return replace(spec, tools=[_located(tool, folder, encoding) for tool in spec.tools])


def _input_folder(inputs: Any) -> Path | None:
    """The folder that `{path}` is relative to, or that of an absolute pattern such as /data/*.md; None for other
    inputs."""
    if not is_path(inputs) or is_url(inputs):
        return None
    from glob import has_magic  # only for file tools

    path = Path(inputs).expanduser()
    if path.is_dir():
        return path.absolute()
    if not has_magic(str(path)) or not path.is_absolute():
        return None
    return next(parent for parent in path.parents if not has_magic(str(parent)))


def _located(tool: Any, folder: Path | None, encoding: str | None) -> Any:
    """The tool for another folder. Attributes that the caller has changed, such as `summarize`, are kept."""
    if not isinstance(tool, Tool) or tool.relocate is None:
        return tool
    made = tool.relocate(folder, encoding)
    sharing = replace(tool.sharing, version=made.sharing.version)
    return replace(tool, function=made.function, sharing=sharing, relocate=None)


@runtime_checkable
class ToolProvider(Protocol):
    """Provider of tools, such as an MCP server. In `tools=[...]`, it is opened for the duration of the run, which gets
    all of its tools."""

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Raises SpecError if the provider cannot be reached, before any request is sent to a model."""
        ...
