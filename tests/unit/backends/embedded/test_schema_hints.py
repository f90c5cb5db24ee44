from typing import Any

from batch_agent.backends.embedded import add_schema_hints
from batch_agent.backends.embedded.schema_hints import MAX_CHARACTERS, MAX_ITEMS

ACTION: dict[str, Any] = {
    "$defs": {"Note": {"type": "object", "properties": {"text": {"type": "string"}}}},
    "anyOf": [
        {"type": "object", "properties": {"tool": {"const": "read"}, "type": {"type": ["string", "null"]}}},
        {"type": "object", "properties": {"final": {"type": "array", "items": {"$ref": "#/$defs/Note"}}}},
    ],
}


def test_unbounded_strings_and_arrays_get_a_bound() -> None:
    schema = add_schema_hints(ACTION)
    assert schema["$defs"]["Note"]["properties"]["text"]["maxLength"] == MAX_CHARACTERS
    assert schema["anyOf"][0]["properties"]["type"]["maxLength"] == MAX_CHARACTERS
    assert schema["anyOf"][1]["properties"]["final"]["maxItems"] == MAX_ITEMS


def test_a_bound_in_the_users_schema_is_kept() -> None:
    bounded = {"type": "string", "maxLength": 9000}
    listed = {"type": "array", "maxItems": 99, "items": {"type": "string", "pattern": "^a$"}}
    schema = add_schema_hints({"type": "object", "properties": {"a": bounded, "b": listed}})
    assert schema["properties"] == {"a": bounded, "b": listed}


def test_an_added_bound_never_contradicts_a_minimum() -> None:
    assert add_schema_hints({"type": "string", "minLength": 1000})["maxLength"] == 1000
    assert add_schema_hints({"type": "array", "minItems": 50})["maxItems"] == 50


def test_compact_output_is_requested_and_the_original_schema_is_unchanged() -> None:
    assert add_schema_hints(ACTION)["x-guidance"]["whitespace_flexible"] is False
    assert "x-guidance" not in ACTION
    assert "maxLength" not in ACTION["$defs"]["Note"]["properties"]["text"]


def test_objects_are_closed_but_not_the_parts_of_an_all_of() -> None:
    part = {"type": "object", "properties": {"a": {"const": 1}}}
    assert add_schema_hints(part)["additionalProperties"] is False
    assert add_schema_hints({"allOf": [part]})["allOf"] == [part]
    assert add_schema_hints({**part, "additionalProperties": {"type": "null"}})["additionalProperties"] == {
        "type": "null"
    }


def test_maps_and_numbers_get_a_bound() -> None:
    assert (
        add_schema_hints({"type": "object", "additionalProperties": {"type": "boolean"}})["maxProperties"] == MAX_ITEMS
    )
    assert add_schema_hints({"type": "integer"})["maximum"] == 999_999_999_999
    assert add_schema_hints({"type": "integer", "minimum": 3}).get("maximum") is None
    assert add_schema_hints({"type": "number"})["multipleOf"] == 1e-6


def test_true_and_false_are_schemas_too() -> None:
    schema = add_schema_hints({"type": "object", "properties": {"any": True}, "additionalProperties": False})
    assert (schema["properties"]["any"], schema["additionalProperties"]) == (True, False)
