"""LangChain tools are taken as they are, by their shape. Arguments are held against whatever JSON schema there is."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, Field

from batch_agent import SpecError
from batch_agent.core.messages import ToolCall
from batch_agent.tools import Tool, ToolExecutor
from batch_agent.tools.adapters import from_langchain
from batch_agent.tools.parameters import BadArguments
from batch_agent.tools.parameters.json_schema import RawArguments, sanitize_name


class Search(BaseModel):
    """Repeats what the tool is for."""

    query: str
    limit: int = Field(3, ge=1)


class StructuredTool:
    """As langchain_core.tools.StructuredTool: both ways to call it, parameters as a Pydantic model."""

    name = "search the web"
    description = "Searches the web."
    args_schema = Search

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        raise AssertionError("the async way is there")

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        self.inputs.append(input)
        if input["query"] == "bad":
            raise LookupError("nothing found")
        return [f"about {input['query']}"]


class SyncTool:
    """The older shape: only `args`, only `invoke`."""

    name = "add"
    description = "Adds."
    args = {"a": {"title": "A", "type": "integer"}, "b": {"type": "integer"}}

    def invoke(self, input: dict[str, Any]) -> int:
        total: int = input["a"] + input["b"]
        return total


class InjectedTool(StructuredTool):
    """Some parameters are filled in by the program: the model must not see them."""

    tool_call_schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


async def outcome(tool: Tool, arguments: str) -> tuple[str, bool]:
    executor = ToolExecutor([tool], timeout=10.0, max_tokens=1000)
    [result] = await executor.session("a").results([ToolCall("c", tool.name, arguments)])
    await executor.aclose()
    return result.content, result.is_error


def adapted(value: Any) -> Tool:
    tool = from_langchain(value)
    assert tool is not None
    return tool


async def test_an_async_structured_tool_is_adapted() -> None:
    search = StructuredTool()
    tool = adapted(search)
    assert (tool.name, tool.description, tool.is_async) == ("search_the_web", "Searches the web.", True)
    assert tool.spec.parameters == {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 3, "minimum": 1}},
        "required": ["query"],
    }
    assert await outcome(tool, '{"query": "cats"}') == ('["about cats"]', False)
    assert search.inputs == [{"query": "cats"}]


async def test_a_sync_tool_with_bare_properties_runs_beside_the_loop() -> None:
    tool = adapted(SyncTool())
    assert not tool.is_async
    assert tool.spec.parameters["properties"]["a"] == {"type": "integer"}
    assert await outcome(tool, '{"a": 1, "b": 2}') == ("3", False)


def test_injected_arguments_are_not_shown_to_the_model() -> None:
    assert list(adapted(InjectedTool()).spec.parameters["properties"]) == ["query"]


async def test_errors_and_bad_arguments_of_an_adapted_tool_are_results() -> None:
    tool = adapted(StructuredTool())
    assert await outcome(tool, '{"query": "bad"}') == ("LookupError: nothing found", True)
    said, is_error = await outcome(tool, '{"limit": 0}')
    assert is_error
    assert "limit: 0 is less than the minimum of 1" in said
    assert '"query" is a required property' in said


async def test_an_adapted_tool_has_an_unknown_effect_and_is_never_shared() -> None:
    search = StructuredTool()
    executor = ToolExecutor([adapted(search)], timeout=10.0, max_tokens=1000)
    call = ToolCall("c", "search_the_web", '{"query": "cats"}')
    async with asyncio.TaskGroup() as group:
        for agent in ("a", "b"):
            group.create_task(executor.session(agent).results([call]))
    await executor.aclose()
    assert len(search.inputs) == 2


@Tool.define
def own_tool(query: str) -> str:
    return query


class Named:
    name = "x"
    description = "Not a tool: nothing can be invoked."
    args_schema = Search


@pytest.mark.parametrize("value", [None, 7, "text", print, StructuredTool, Named(), own_tool])
def test_objects_of_another_shape_are_not_adapted(value: Any) -> None:
    assert from_langchain(value) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array"}, "must be a JSON object"),
        ({"properties": {"a": {"type": "nonsense"}}}, "not a valid JSON schema"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}, r"put the definition under \$defs"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "not a valid JSON schema"),
    ],
)
def test_a_schema_that_describes_no_arguments_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=f"Tool 'x': .*{says}"):
        RawArguments(schema, "x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "one JSON object, not list"),
        ('{"a": {"b": "x"}}', r'a\.b: "x" is not of type "integer"'),
    ],
)
def test_arguments_that_do_not_fit_a_schema_are_explained(text: str, says: str) -> None:
    part = {"properties": {"b": {"type": "integer"}}}
    schema = {"properties": {"a": {"$ref": "#/$defs/part"}}, "$defs": {"part": part}}
    with pytest.raises(BadArguments, match=says):
        RawArguments(schema, "x").read(text)


def test_a_long_complaint_is_cut() -> None:
    arguments = RawArguments({"properties": {"a": {"type": "integer"}}}, "x")
    with pytest.raises(BadArguments) as raised:
        arguments.read('{"a": "' + "y" * 5000 + '"}')
    assert len(str(raised.value)) < 500


def test_a_name_from_elsewhere_is_put_into_letters_that_servers_take() -> None:
    assert sanitize_name("files/read.all ö") == "files_read_all__"
    assert len(sanitize_name("x" * 200)) == 64
