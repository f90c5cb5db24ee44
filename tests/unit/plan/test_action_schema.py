"""Action mode in words: one short line per tool."""

from typing import Any

import pytest

from batch_agent.core.messages import ToolSpec
from batch_agent.plan.action_schema import instructions


def line(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> str:
    tool = ToolSpec("t", "", {"type": "object", "properties": properties, "required": required or [], **more})
    return instructions([tool]).splitlines()[2]


def test_the_instructions_list_the_tools_and_say_how_to_reply() -> None:
    a = ToolSpec("a", "Does\n  this.", {"type": "object", "properties": {}})
    b = ToolSpec("b", "", {})
    assert instructions([a, b]) == (
        "You use tools. Reply with one JSON object.\nTools:\na() - Does this.\nb()\n"
        'To call a tool, reply {"tool": NAME, "arguments": {...}}.\n'
        'When you have the result, reply {"final": {...}}.'
    )


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "str"),
        ({}, "any"),
        ({"enum": ["a", 1]}, '"a"|1'),
        ({"const": "x"}, '"x"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "int|None"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        ({"type": "array"}, "list[any]"),
        ({"$ref": "#/$defs/Color"}, '"red"|"blue"'),
        ({"$ref": "#/$defs/Place"}, "Place"),
        ({"type": "array", "items": {"$ref": "#/$defs/Color"}}, 'list["red"|"blue"]'),
        ({"type": "string", "description": "What\n to find"}, "str (What to find)"),
    ],
)
def test_an_argument_is_shown_with_its_type(schema: dict[str, Any], shown: str) -> None:
    defs = {"Color": {"enum": ["red", "blue"]}, "Place": {"type": "object"}}
    assert line({"x": schema}, ["x"], **{"$defs": defs}) == f"t(x: {shown})"


def test_an_argument_that_may_be_left_out_has_a_question_mark() -> None:
    assert line({"x": {"type": "string"}, "y": {"type": "integer"}}, ["y"]) == "t(x?: str, y: int)"
