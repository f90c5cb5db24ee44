"""Values as a model reads them: JSON, whatever they are."""

import datetime
import decimal
import enum
import json
import uuid
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, RootModel
from tests.support.forked_programs import Programs

from batch_agent.flows.reduce_step import to_json_text
from batch_agent.flows.result import Item


class Colour(enum.Enum):
    RED = "red"


class Finding(BaseModel):
    tags: set[str]
    cost: decimal.Decimal
    at: datetime.datetime


@dataclass
class Point:
    x: int
    seen: set[int]


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("grün", '"grün"'),
        ("half \ud800 a character", '"half � a character"'),
        ({"key\udfff": 1}, '{"key�":1}'),
        (10**30, "1000000000000000000000000000000"),
        ([float("nan"), float("-inf"), 0.5, 10**30], "[null,null,0.5,1000000000000000000000000000000]"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({(1, 2): "pair", None: 0, True: 1, 1.5: 2, Colour.RED: 3}, None),
        (Colour.RED, '"red"'),
        (Point(1, {9, 8}), '{"x":1,"seen":[8,9]}'),
        (Pair(1, "b"), '[1,"b"]'),
        (RootModel[list[int]]([1, 2]), "[1,2]"),
        (datetime.date(2024, 2, 29), '"2024-02-29"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Path("a/b"), '"a/b"'),
        (b"text", '"text"'),
        (b"\xff", None),
        ((n for n in range(3)), "[0,1,2]"),
        (object, None),
        (complex(1, 2), None),
        (Item((0,), {"a": 1}), '{"a":1}'),
        (
            Finding(
                tags={"y", "x"}, cost=decimal.Decimal("0.5"), at=datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
            ),
            '{"tags":["x","y"],"cost":"0.5","at":"2024-01-01T00:00:00Z"}',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_can_be_written(value: Any, text: str | None) -> None:
    said = to_json_text(value)
    said.encode()
    json.loads(said)
    assert text is None or said == text


def test_what_holds_itself_is_said_to_have_no_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested too deeply"):
        to_json_text(endless)


@pytest.mark.slow
def test_sets_are_written_alike_in_every_process(programs: Programs) -> None:
    code = (
        "from batch_agent.flows.reduce_step import to_json_text\n"
        "from pydantic import BaseModel\n"
        "class Found(BaseModel):\n    tags: set[str]\n"
        "print(to_json_text({'a': set('abcdefgh'), 'b': Found(tags=set('stuvwxyz'))}))"
    )
    program = programs.start(code)
    assert program.wait() == 0
    here = json.dumps({"a": list("abcdefgh"), "b": {"tags": list("stuvwxyz")}}, separators=(",", ":"))
    assert program.stdout.read_text().strip() == here
