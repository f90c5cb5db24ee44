"""Schemas in the subset that some providers enforce: the same answers, or none at all."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from batch_agent.core.schema import strict_form


class Part(BaseModel):
    name: str = Field(max_length=9)
    kind: Literal["a", "b"] = "a"


class Whole(BaseModel):
    parts: list[Part] = Field(min_length=1)
    best: Part | None = None
    score: float = Field(ge=0, le=1)


def objects(node: Any) -> list[dict[str, Any]]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    found = [part for value in inner for part in objects(value)]
    return [*found, node] if isinstance(node, dict) and node.get("type") == "object" else found


def test_every_object_of_a_strict_schema_is_closed_and_requires_all_properties() -> None:
    strict = strict_form(Whole.model_json_schema())
    assert strict is not None
    assert len(objects(strict)) == 2
    for part in objects(strict):
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])


def test_an_answer_that_fits_the_strict_form_fits_the_schema() -> None:
    strict = strict_form(Whole.model_json_schema())
    assert strict is not None
    answer = {"parts": [{"name": "x", "kind": "b"}], "best": None, "score": 0.5}
    assert Whole.model_validate(answer).parts[0].kind == "b"
    assert set(strict["properties"]) == set(answer)


def test_limits_are_omitted_for_servers_that_reject_them() -> None:
    with_limits, without = (str(strict_form(Whole.model_json_schema(), keeps_limits=keep)) for keep in (True, False))
    for word in ("maxLength", "minItems", "minimum", "maximum"):
        assert word in with_limits
        assert word not in without


@pytest.mark.parametrize("shape", [dict[str, int], list[int], int, tuple[int, str], Any, dict[str, Any]])
def test_a_schema_without_a_strict_form_gives_none(shape: Any) -> None:
    schema = TypeAdapter(shape).json_schema()
    assert strict_form(schema) is None
    assert strict_form({"type": "object", "properties": {"it": schema}}) is None or shape in (list[int], int)
