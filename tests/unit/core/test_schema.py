"""Schemas keep their meaning when titles are dropped and when they become parts of larger ones."""

from typing import Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from batch_agent.core.schema import is_object, object_of, without_titles


class Song(BaseModel):
    title: str
    properties: dict[str, str] = Field(default={"title": "kept"}, title="Dropped")


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Loud(BaseModel):
    kind: Literal["title"]


class Quiet(BaseModel):
    kind: Literal["quiet"]


class Mood(BaseModel):
    mood: Loud | Quiet = Field(discriminator="kind")


def fits(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(value)


def test_a_property_named_title_survives_and_the_generated_titles_do_not() -> None:
    tidy = without_titles(Song.model_json_schema())
    assert tidy == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "properties": {"type": "object", "additionalProperties": {"type": "string"}, "default": {"title": "kept"}},
        },
        "required": ["title"],
    }


def test_titles_inside_default_and_example_values_are_kept() -> None:
    values = {"enum": [{"title": "a"}], "const": {"title": "b"}, "examples": [{"title": "c"}], "title": "gone"}
    assert without_titles(values) == {key: value for key, value in values.items() if key != "title"}


def test_titles_inside_lists_and_definitions_are_dropped() -> None:
    nested = {
        "anyOf": [{"type": "null", "title": "A"}],
        "$defs": {"title": {"title": "B", "type": "integer"}},
        "definitions": {"X": {"title": "C"}},
    }
    assert without_titles(nested) == {
        "anyOf": [{"type": "null"}],
        "$defs": {"title": {"type": "integer"}},
        "definitions": {"X": {}},
    }


def test_a_discriminator_named_title_keeps_its_mapping() -> None:
    tidy = without_titles(Mood.model_json_schema())
    assert set(tidy["properties"]["mood"]["discriminator"]["mapping"]) == {"title", "quiet"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object"}, True),
        ({"properties": {}}, True),
        ({}, False),
        ({"type": "array"}, False),
        ({"type": ["object", "null"], "properties": {}}, False),
        ({"anyOf": [{"type": "object"}]}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, False),
    ],
)
def test_a_schema_is_an_object_schema_only_with_the_type_object(schema: dict[str, Any], expected: bool) -> None:
    assert is_object(schema) is expected


def test_an_object_of_parts_has_exactly_these_properties() -> None:
    schema = object_of({"a": {"type": "integer"}})
    assert "$defs" not in schema
    assert fits(schema, {"a": 1})
    assert not fits(schema, {})
    assert not fits(schema, {"a": 1, "b": 2})


def test_a_recursive_model_means_the_same_as_a_part() -> None:
    schema = object_of({"answer": without_titles(TypeAdapter(Node).json_schema())})
    assert fits(schema, {"answer": {"value": 1, "children": [{"value": 2, "children": []}]}})
    assert not fits(schema, {"answer": {"value": 1, "children": [{"value": "two"}]}})


def test_definitions_of_the_same_name_in_two_parts_stay_apart() -> None:
    number = {"$ref": "#/$defs/X", "$defs": {"X": {"type": "integer"}}}
    text = {"$ref": "#/definitions/X", "definitions": {"X": {"type": "string"}}}
    schema = object_of({"a": number, "b": text})
    assert fits(schema, {"a": 1, "b": "x"})
    assert not fits(schema, {"a": "x", "b": "x"})
    assert not fits(schema, {"a": 1, "b": 1})


def test_a_definition_that_refers_to_another_still_finds_it() -> None:
    part = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/B"}}, "B": {"type": "integer"}},
    }
    schema = object_of({"p": part})
    assert fits(schema, {"p": [1]})
    assert not fits(schema, {"p": ["x"]})


def test_a_schema_that_refers_to_its_own_root_still_does() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "size": {"type": "integer"}}}
    schema = object_of({"answer": tree})
    assert fits(schema, {"answer": {"left": {"left": {"size": 1}}}})
    assert not fits(schema, {"answer": {"left": {"left": {"size": "big"}}}})


def test_a_reference_into_the_root_schema_is_rewritten() -> None:
    pair = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
    schema = object_of({"answer": pair})
    assert fits(schema, {"answer": {"a": 1, "b": 2}})
    assert not fits(schema, {"answer": {"a": 1, "b": "two"}})


def test_a_property_named_ref_is_a_property() -> None:
    part = {
        "type": "object",
        "properties": {"$ref": {"$ref": "#/$defs/X"}},
        "$defs": {"X": {"type": "integer"}},
    }
    schema = object_of({"p": part})
    assert fits(schema, {"p": {"$ref": 1}})
    assert not fits(schema, {"p": {"$ref": "x"}})


def test_the_parts_are_not_changed() -> None:
    part = {"$ref": "#/$defs/X", "$defs": {"X": {"title": "X", "type": "integer"}}}
    before = repr(part)
    object_of({"p": part})
    without_titles(part)
    assert repr(part) == before
