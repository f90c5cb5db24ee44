"""The same input under the same rules has the same key, wherever it stands; anything else has another one."""

import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from tests.support.plans import SEARCH, plan, traits

from batch_agent.core.errors import ErrorKind
from batch_agent.core.messages import ToolSpec
from batch_agent.plan.fingerprint import Keys, fingerprint


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class City(BaseModel):
    name: str


class Town(BaseModel):
    name: str
    size: int = 0


def key(value: Any) -> str:
    return Keys(b"run").key(value)


def test_the_key_depends_on_the_input_and_not_on_its_position() -> None:
    keys = Keys(b"run")
    first, second = keys.key("a"), keys.key("b")
    again = Keys(b"run")
    assert (again.key("b"), again.key("a")) == (second, first)
    assert first != second


def test_the_order_of_a_dict_is_irrelevant_at_every_depth() -> None:
    assert key({"a": 1, "b": {"c": [{"d": 2, "e": 3}]}}) == key({"b": {"c": [{"e": 3, "d": 2}]}, "a": 1})
    assert key({1: "a", "b": 2, (3, 4): 5}) == key({(3, 4): 5, "b": 2, 1: "a"})


def test_the_order_of_a_set_is_irrelevant() -> None:
    assert key({"s": {"a", "b", "c"}}) == key({"s": {"c", "b", "a"}})


def test_equal_inputs_get_keys_of_their_own_and_the_same_ones_next_time() -> None:
    keys = [Keys(b"run") for _ in range(2)]
    first, second = ([k.key(value) for value in ("a", "a", "b", "a")] for k in keys)
    assert len(set(first)) == 4
    assert first == second
    assert first[0] == key("a")


LOOKALIKES: list[Any] = [
    1,
    1.0,
    "1",
    True,
    "true",
    None,
    "null",
    float("nan"),
    float("inf"),
    [1],
    ["1"],
    {"1": 1},
    [],
    {},
    "",
    date(2024, 1, 1),
    "2024-01-01",
    datetime(2024, 1, 1, tzinfo=UTC),
    "2024-01-01T00:00:00+00:00",
    Color.RED,
    "red",
    b"red",
    "b'red'",
    {1, 2},
    [1, 2],
    Point(1),
    Point(2),
    "Point(x=1)",
    Decimal("1"),
    UUID(int=1),
    str(UUID(int=1)),
    2**70,
    float(2**70),
    "\ud800",
    "\ufffd",
    "é",
    "\\u00e9",
]


def test_inputs_that_only_look_alike_have_different_keys() -> None:
    plain, nested = [key(value) for value in LOOKALIKES], [key({"v": value}) for value in LOOKALIKES]
    assert len(set(plain + nested)) == 2 * len(LOOKALIKES)


def test_a_model_is_the_data_that_it_holds() -> None:
    assert key(City(name="Roma")) == key({"name": "Roma"})
    assert key(City(name="Roma")) != key(City(name="Bari"))


def test_keys_are_the_same_in_every_process() -> None:
    program = (
        "from batch_agent.plan.fingerprint import Keys; import datetime;"
        "print(Keys(b'run').key({'s': {'x', 'y', 'z'}, 'd': datetime.date(2024, 1, 1), 'e': 'é'}))"
    )
    value = {"e": "é", "d": date(2024, 1, 1), "s": {"x", "y", "z"}}
    seen = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == key(value)


def test_an_input_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="Circular"):
        key(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        key(deep)


def test_a_fingerprint_covers_names_and_values() -> None:
    assert fingerprint({"a": 1, "b": [1]}) == fingerprint({"b": [1], "a": 1})
    assert len({fingerprint({"a": 1}), fingerprint({"b": 1}), fingerprint({"a": 2})}) == 3


def test_any_change_of_what_shapes_the_answer_changes_the_key() -> None:
    described = replace(SEARCH, description="Finds books.")
    renamed = replace(SEARCH, name="find")
    widened = replace(SEARCH, parameters={"type": "object", "properties": {"q": {"type": "integer"}}})
    narrowed = replace(
        SEARCH, parameters={**SEARCH.parameters, "properties": {"q": {"type": "string", "minLength": 2}}}
    )
    variants: list[dict[str, Any]] = [
        {},
        {"task": "Please: {it}"},
        {"system_prompt": "Be brief."},
        {"tools": (SEARCH,)},
        {"tools": (described,)},
        {"tools": (renamed,)},
        {"tools": (widened,)},
        {"tools": (SEARCH, renamed)},
        {"tools": (renamed, SEARCH)},
        {"tools": (SEARCH,), "tool_mode": "action"},
        {"tools": (described,), "tool_mode": "action"},
        {"tools": (widened,), "tool_mode": "action"},
        {"tools": (narrowed,), "tool_mode": "action"},
        {"tools": (ToolSpec("search", "", SEARCH.parameters),)},
        {"output": City},
        {"output": Town},
        {"model": "other"},
        {"temperature": 0.1},
        {"top_p": 0.1},
        {"seed": 1},
        {"stop": ["x"]},
        {"extra": {"min_p": 0.1}},
    ]
    keys = [plan(**variant).job(0, "input").key for variant in variants]
    assert len(set(keys)) == len(variants)


@pytest.mark.parametrize(
    "options",
    [
        {"max_inflight": 3},
        {"max_dispatched": 7},
        {"timeout_per_agent": 5},
        {"max_retries": 1},
        {"max_turns": 3},
        {"max_tokens": 5},
        {"traits": traits(json_schema=False)},
        {"traits": traits(native_tools=False)},
        {"backend": "http://elsewhere:1"},
        {"streaming": True},
        {"model": "default-model"},
        {"checkpoint_dir": "elsewhere"},
    ],
)
def test_how_the_run_is_carried_out_does_not_change_the_key(options: dict[str, Any]) -> None:
    assert plan(**options).job(0, "input").key == plan().job(0, "input").key


@pytest.mark.parametrize("value", [*LOOKALIKES, {"it": b"\xff"}, {"it": {1: {2}}}, {(1, 2): "x", "it": 1}])
def test_no_input_makes_the_plan_fail(value: Any) -> None:
    job = plan().job(3, value)
    assert job.key
    assert job.index == 3
    assert job.input is value
    if job.problem is None:
        job.task.encode()
    else:
        assert job.problem.kind is ErrorKind.BAD_INPUT
        assert job.problem.message.startswith("Input 3: ")
        assert not job.problem.retryable
