"""Columns of a map over a dataset: every block has the same types, whatever its answers are."""

from enum import StrEnum
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from batch_agent import AgentError, AgentResult, ErrorKind, SpecError
from batch_agent.agent.output import output_type
from batch_agent.core.requests import Usage
from batch_agent.core.results import Timing
from batch_agent.ray.answer_columns import AnswerColumns, add_columns, arrow_type, check_names, conform


class Mood(StrEnum):
    GOOD = "good"


class Part(BaseModel):
    name: str
    parts: "list[Part]" = []


class Review(BaseModel):
    stars: int
    score: float | None = None
    is_fair: bool
    mood: Mood
    tags: list[str]
    part: Part
    either: int | str
    counts: dict[str, int] = {}


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


def type_of(model: Any) -> pa.DataType:
    found = output_type(model)
    assert found is not None
    return arrow_type(found.json_schema, found.json_schema.get("$defs", {}))


def test_fields_have_the_types_of_the_schema_and_the_rest_is_json() -> None:
    part = pa.struct([("name", pa.string()), ("parts", pa.list_(pa.string()))])  # a part of a part of ...: JSON
    assert type_of(Review) == pa.struct(
        [
            ("stars", pa.int64()),
            ("score", pa.float64()),
            ("is_fair", pa.bool_()),
            ("mood", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("part", part),
            ("either", pa.string()),
            ("counts", pa.string()),
        ]
    )
    assert type_of(list[int]) == pa.list_(pa.int64())
    assert type_of(Open) == pa.string()  # it may have more fields than its schema
    assert type_of({"title": "anything"}) == pa.string()


def test_a_row_has_the_answer_and_what_it_took() -> None:
    schema = output_type(Review)
    assert schema is not None
    columns = AnswerColumns(schema.json_schema)
    part = Part(name="a", parts=[Part(name="b")])
    answer = Review(stars=5, is_fair=True, mood=Mood.GOOD, tags=["x"], part=part, either=3, counts={"a": 1})
    result = AgentResult(0, "k", output=answer, usage=Usage(10, 4, 3), turns=2, timing=Timing(total=1.23456))
    [row] = add_columns(columns, pa.table({"id": [7]}), [columns.values(result)]).to_pylist()
    assert row == {
        "id": 7,
        "output": {
            "stars": 5,
            "score": None,
            "is_fair": True,
            "mood": "good",
            "tags": ["x"],
            "part": {"name": "a", "parts": ['{"name":"b","parts":[]}']},
            "either": "3",
            "counts": '{"a":1}',
        },
        "ok": True,
        "error_kind": None,
        "error_message": None,
        "turns": 2,
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 3,
        "cost": None,
        "seconds": 1.235,
    }


def test_a_block_of_failures_and_an_empty_one_have_the_same_columns() -> None:
    columns = AnswerColumns(None)
    failed = AgentResult(0, "k", error=AgentError(ErrorKind.BUDGET, "nothing is left \ud800"))
    answered = AgentResult(0, "k", output="said \udfff")
    tables = [
        add_columns(columns, pa.table({"id": [1]}), [columns.values(failed)]),
        add_columns(columns, pa.table({"id": [1]}), [columns.values(answered)]),
        add_columns(columns, pa.table({"id": pa.array([], pa.int64())}), []),
    ]
    assert len({table.schema for table in tables}) == 1
    [row] = tables[0].to_pylist()
    assert (row["ok"], row["output"], row["error_kind"]) == (False, None, "budget")
    assert tables[1].to_pylist()[0]["output"] == "said ?"


def test_columns_of_the_dataset_are_not_replaced() -> None:
    with pytest.raises(SpecError, match="column 'turns'"):
        check_names(AnswerColumns(None), ["id", "turns"])
    check_names(AnswerColumns(None, "b_"), ["id", "turns"])
    assert list(AnswerColumns(None, "b_").types)[:2] == ["b_output", "b_ok"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
types = st.recursive(
    st.sampled_from([pa.string(), pa.int64(), pa.float64(), pa.bool_()]),
    lambda inner: inner.map(pa.list_) | st.lists(inner, min_size=1, max_size=3).map(lambda all_: named("abc", all_)),
    max_leaves=4,
)


def named(names: str, parts: list[pa.DataType]) -> pa.DataType:
    return pa.struct(list(zip(names, parts, strict=False)))


@settings(max_examples=60, deadline=None)
@given(values, types)
def test_any_json_value_becomes_a_value_of_any_type(value: Any, type_: pa.DataType) -> None:
    assert len(pa.array([conform(value, type_)], type_)) == 1
