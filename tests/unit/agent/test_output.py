"""An output type checks answers, makes them typed, and says what is wrong in words for the model."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from batch_agent.agent.output import RawSchemaOutput, output_type
from batch_agent.core.agent_config import InvalidOutput, OutputType
from batch_agent.core.errors import SpecError


class Priced(BaseModel):
    price: Decimal


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class City(BaseModel):
    name: str
    size: int = 0


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    day: date
    color: Color
    pair: tuple[int, int]
    size: int


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Alias(BaseModel):
    kind: str = Field(alias="type")


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look_it_up(cls, name: str) -> str:
        if name == "unlucky":
            raise ValueError("no such city")
        known: dict[str, str] = {"Roma": "Roma"}
        return known[name]


@dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    id: int


class Unknowable:
    pass


def made(schema: Any) -> OutputType:
    output = output_type(schema)
    assert output is not None
    return output


@pytest.mark.parametrize("schema", [None, str])
def test_no_schema_and_str_mean_plain_text(schema: Any) -> None:
    assert output_type(schema) is None


@pytest.mark.parametrize(
    ("schema", "value", "answer"),
    [
        (City, {"name": "Roma"}, City(name="Roma")),
        (list[City], [{"name": "Roma"}], [City(name="Roma")]),
        (dict[str, City], {"a": {"name": "Roma"}}, {"a": City(name="Roma")}),
        (Point, {"x": 1}, Point(1)),
        (Row, {"id": 1}, {"id": 1}),
        (int, 5, 5),
        (int, 12345678901234567890123, 12345678901234567890123),
        (float, 5, 5.0),
        (bool, True, True),
        (Literal["a", "b"], "a", "a"),
        (Color, "red", Color.RED),
        (Level, 1, Level.LOW),
        (int | None, None, None),
        (City | None, {"name": "Roma"}, City(name="Roma")),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (date, "2024-01-02", date(2024, 1, 2)),
        (Annotated[int, Field(ge=1)], 1, 1),
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
        (Alias, {"type": "x"}, Alias(type="x")),
        (Any, {"a": [1]}, {"a": [1]}),
        (City, {"name": "Ωμέγα 😀"}, City(name="Ωμέγα 😀")),
    ],
)
def test_an_answer_becomes_a_value_of_its_type(schema: Any, value: Any, answer: Any) -> None:
    for found in (made(schema).validate(value), made(schema).validate_json(json.dumps(value))):
        assert found == answer
        assert type(found) is type(answer)


@pytest.mark.parametrize("schema", [City, Priced, {"type": "object"}])
@pytest.mark.parametrize("text", ["", "Roma", '{"name": "Roma"', '{"name": "Roma", "price": 1} and', "[" * 100_000])
def test_a_text_that_is_not_json_is_no_answer(schema: Any, text: str) -> None:
    with pytest.raises(InvalidOutput):
        made(schema).validate_json(text)


def test_a_strict_model_takes_from_json_what_json_can_hold() -> None:
    fitting = {"day": "2024-01-02", "color": "red", "pair": [1, 2], "size": 3}
    assert made(Strict).validate(fitting) == Strict(day=date(2024, 1, 2), color=Color.RED, pair=(1, 2), size=3)
    with pytest.raises(InvalidOutput, match="size: Input should be a valid integer"):
        made(Strict).validate({**fitting, "size": "3"})
    with pytest.raises(InvalidOutput, match="more: Extra inputs are not permitted"):
        made(Strict).validate({**fitting, "more": 1})


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        (City, {}, "name: Field required"),
        (City, [], "answer: Input should be an object"),
        (City, "Roma", "answer: Input should be an object"),
        (list[City], [{"name": "a"}, {"name": 1}], "1.name: Input should be a valid string"),
        (int, 1.5, "answer: Input should be a valid integer"),
        (Literal["a", "b"], "c", "answer: Input should be 'a' or 'b'"),
        (City, {"name": "\ud800"}, "half of a character"),
        (Picky, {"name": "unlucky"}, "name: Value error, no such city"),
        (Picky, {"name": "Bari"}, "answer: KeyError: 'Bari'"),
    ],
)
def test_a_validation_problem_names_its_location(schema: Any, value: Any, problem: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        made(schema).validate(value)
    assert problem in str(caught.value)


def test_only_the_first_validation_problems_are_reported() -> None:
    with pytest.raises(InvalidOutput) as caught:
        made(list[int]).validate(["x"] * 100)
    assert str(caught.value).count("valid integer") == 5


def test_a_validation_problem_does_not_quote_the_whole_answer() -> None:
    with pytest.raises(InvalidOutput) as caught:
        made({"type": "array"}).validate({"text": "x" * 100_000})
    assert len(str(caught.value)) < 400


def test_the_schema_has_no_generated_titles_but_a_property_named_title() -> None:
    class Book(BaseModel):
        title: str

    assert made(Book).json_schema == {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
    }


@pytest.mark.parametrize("home", ["$defs", "definitions"])
def test_a_json_schema_is_used_as_it_is(home: str) -> None:
    schema = {
        "type": "object",
        "title": "Kept",
        "properties": {"a": {"$ref": f"#/{home}/A"}},
        "required": ["a"],
        home: {"A": {"type": "integer", "minimum": 1}},
    }
    output = made(MappingProxyType(schema))
    assert output.json_schema == schema
    assert output.validate({"a": 1, "more": "x"}) == {"a": 1, "more": "x"}
    with pytest.raises(InvalidOutput, match=r"^a: 0 is less than the minimum of 1$"):
        output.validate({"a": 0})
    with pytest.raises(InvalidOutput, match=r"answer: .* is a required property"):
        output.validate({})


def test_a_validation_problem_in_a_list_names_its_index() -> None:
    with pytest.raises(InvalidOutput, match=r"^1: "):
        made({"type": "array", "items": {"type": "integer"}}).validate([1, "x"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**70, "\ud800", [[[]]]])
def test_unusual_values_raise_nothing_unexpected(value: Any) -> None:
    for schema in (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}):
        try:
            assert made(schema).validate({"v": value}) == {"v": 2**70}
        except InvalidOutput:
            assert value != 2**70


def test_a_too_deeply_nested_answer_is_invalid() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidOutput):
        made(list[Any]).validate(deep)
    while deep:  # freeing it at once would recurse
        deep = deep[0]


@pytest.mark.parametrize(
    "schema",
    [
        5,
        True,
        Unknowable,
        Unknowable(),
        City(name="an instance"),
        Point(1, 2),
        [City],
        "City",
        lambda: 1,
        type,
    ],
)
def test_an_output_schema_that_is_not_a_type_is_rejected(schema: Any) -> None:
    with pytest.raises(SpecError, match=r"^output_schema must be a Pydantic model, a type such as") as caught:
        output_type(schema)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "city", "strict": True, "schema": {"type": "object"}},
        {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"}}},
    ],
)
def test_a_response_format_of_openai_is_not_taken_for_a_schema(schema: Any) -> None:
    with pytest.raises(SpecError, match="pass only what its 'schema' contains"):
        output_type(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"properties": 5},
        {"$ref": "#/$defs/Missing"},
        {"pattern": "("},
        {"type": object()},
        {"$schema": "bogus"},
        {1: 2},
    ],
)
def test_an_invalid_json_schema_is_rejected(schema: Any) -> None:
    with pytest.raises(SpecError, match=r"^output_schema is not a valid JSON schema: ") as caught:
        output_type(schema)
    assert "\n" not in str(caught.value)


def test_fields_without_properties_are_not_taken_for_a_schema_that_anything_fits() -> None:
    with pytest.raises(SpecError, match=r"'properties': \{'topic': \{'type': 'string'\}\}"):
        RawSchemaOutput({"topic": "str"})
    for schema in ({}, {"title": "Anything"}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}):
        assert RawSchemaOutput(schema).validate(1) == 1


def test_a_remote_schema_reference_is_not_fetched() -> None:
    with pytest.raises(SpecError, match="references are not fetched"):
        output_type({"$ref": "http://192.0.2.1/schema.json"})
