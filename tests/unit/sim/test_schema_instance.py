from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.sim.schema_instance import Instances

INSTANCES = Instances(lambda seed: f"word-{seed}")

SCHEMAS: list[Any] = [
    {"type": "string", "minLength": 12, "maxLength": 14},
    {"type": "string", "maxLength": 2},
    {"type": "string", "format": "date"},
    {"type": "integer", "minimum": 3, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "integer", "maximum": -4},
    {"type": "integer", "minimum": 1, "multipleOf": 7},
    {"type": "number", "minimum": 0.25, "maximum": 0.75},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"enum": ["a", 2, None]},
    {"const": {"x": 1}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 4},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Score"},
    {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "integer"}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ]
    },
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Item"}, "late": {"type": "string"}},
        "required": ["name", "next"],
        "additionalProperties": False,
        "$defs": {"Item": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
    },
    {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
                "required": ["children"],
            }
        },
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_an_instance_fits_its_schema(schema: Any, seed: int) -> None:
    jsonschema_rs.validate(schema, INSTANCES.make(schema, seed))


def test_the_same_seed_makes_the_same_instance() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    assert INSTANCES.make(schema, 5) == INSTANCES.make(schema, 5) != INSTANCES.make(schema, 6)


def test_optional_properties_can_be_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["q"],
    }
    assert INSTANCES.make(schema, 1).keys() == {"q", "limit"}
    assert Instances(str, only_required=True).make(schema, 1).keys() == {"q"}


@pytest.mark.parametrize("reference", ["#/$defs/Gone", "other.json", "#/$defs/Loop"])
def test_a_reference_that_leads_nowhere_is_an_error(reference: str) -> None:
    with pytest.raises(ValueError, match="ref"):
        INSTANCES.make({"$ref": reference, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}, 1)
