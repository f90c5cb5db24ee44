"""Some of the inputs: a condition, a sample and a limit, from every kind of source."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Flow, Rows, SpecError
from batch_agent.data import SqlQuery, read_inputs
from batch_agent.data import input_files as files
from batch_agent.testing import ScriptedBackend, say

REVIEWS = [
    {"id": "001", "stars": 5, "lang": "en", "text": "Solid.", "user": {"age": 30}, "note": None},
    {"id": "002", "stars": 1, "lang": "de", "text": "Zu dunkel, broke", "user": {"age": 20}, "note": "x"},
    {"id": "003", "stars": 2, "lang": "en", "text": "It broke.", "user": {"age": 40}, "flag": True},
]


def ids(source: Any, **options: Any) -> list[str]:
    return [row["id"] for row in read_inputs(source, Rows(**options))]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("stars <= 2", ["002", "003"]),
        ("stars = 2", ["003"]),
        ("stars == 2.0", ["003"]),
        ("stars != 2", ["001", "002"]),
        ("stars <> 2", ["001", "002"]),
        ("lang = en", ["001", "003"]),
        ("lang = 'en' and stars < 3", ["003"]),
        ('lang == "en" AND NOT stars < 3', ["001"]),
        ("(lang = de or stars > 4) and stars >= 1", ["001", "002"]),
        ("id in ('001', 003)", ["001", "003"]),
        ("id not in ('001', '002')", ["003"]),
        ("id = '1'", []),
        ("id = 1", ["001"]),
        ("text contains broke", ["002", "003"]),
        ("text not contains 'It broke'", ["001", "002"]),
        ("note is null", ["001", "003"]),
        ("note is not null", ["002"]),
        ("note = null", ["001", "003"]),
        ("note != 'x'", ["001", "003"]),
        ("flag = true", ["003"]),
        ("user.age > 25", ["001", "003"]),
        ("`text` = 'Solid.'", ["001"]),
        ("text > 'J'", ["001", "002"]),
        ("stars > 'a'", []),
        ("text < 3", []),
    ],
)
def test_a_condition_selects_inputs(where: str, expected: list[str]) -> None:
    if expected:
        assert ids(REVIEWS, where=where) == expected
    else:
        with pytest.raises(SpecError, match="none of 3 inputs match"):
            ids(REVIEWS, where=where)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("star = 1", "no input has a field 'star'. Did you mean 'stars'?"),
        ("star != 1", "no input has a field 'star'"),
        ("stars", "an operator is missing after the field 'stars'"),
        ("stars =", "a value is missing"),
        ("stars = 1 2", "'2' is unexpected: put text with spaces in quotes"),
        ("(stars = 1", "')' is missing"),
        ("stars in 1", "'(' is missing"),
        ("stars is 1", "after 'is' comes null"),
        ("= 1", "'=' is not the name of a field"),
        ("and", "'and' is not the name of a field"),
        ("text = 'open", '"\'open" cannot be read'),
        ("__import__('os').system('true')", "an operator is missing after the field"),
    ],
)
def test_a_condition_that_is_not_one_is_refused_with_what_it_may_be(where: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        ids(REVIEWS, where=where)
    assert str(caught.value).startswith(f"where={where!r}: ")
    assert problem in str(caught.value)


def test_cells_of_a_csv_file_are_compared_as_numbers_with_a_number(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,price\n007,10\n008,9\n009,n/a\n")
    assert ids(path, where="price > 9") == ["007"]
    assert ids(path, where="price > '9'") == ["009"]
    assert ids(path, where="id = '007'") == ["007"]


def test_a_function_selects_inputs_of_any_type() -> None:
    assert read_inputs(["a", "bb"], Rows(where=lambda text: len(text) == 2)) == ["bb"]
    with pytest.raises(SpecError, match=r"needs inputs with fields, but one is a str"):
        list(read_inputs(["a", "bb"], Rows(where="a = 1")))  # type: ignore[arg-type]


class Review(BaseModel):
    id: str
    stars: int


def test_fields_of_models_are_compared() -> None:
    assert ids_of_models(where="stars > 1") == ["b"]


def ids_of_models(**options: Any) -> list[str]:
    models = [Review(id="a", stars=1), Review(id="b", stars=2)]
    return [row.id for row in read_inputs(models, Rows(**options))]  # type: ignore[union-attr]


def test_a_sample_is_the_same_each_time_in_input_order_and_part_of_a_larger_one() -> None:
    numbers = list(range(1000))
    ten, hundred = (list(read_inputs(numbers, Rows(sample=n))) for n in (10, 100))  # type: ignore[arg-type]
    assert ten == read_inputs(numbers, Rows(sample=10)) == sorted(ten)
    assert set(ten) < set(hundred)
    assert len(hundred) == 100
    assert read_inputs(numbers, Rows(sample=10, sample_seed=1)) != ten
    assert read_inputs(numbers, Rows(sample=5000)) == numbers


def test_where_comes_before_sample_and_sample_before_limit() -> None:
    numbers = [{"n": n} for n in range(1000)]
    sampled = list(read_inputs(numbers, Rows(where="n >= 500", sample=10)))  # type: ignore[arg-type]
    assert all(row["n"] >= 500 for row in sampled)
    assert read_inputs(numbers, Rows(where="n >= 500", sample=10, limit=3)) == sampled[:3]


def test_a_limit_reads_no_more_of_a_large_file_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_BYTES", 10)
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b"}\nbroken\n')
    assert ids(path, limit=2) == ["a", "b"]
    with pytest.raises(SpecError, match="line 3"):
        ids(path, limit=3)
    path.write_text('{"id": "a"}\n{"id": "b"}\n{"id": "c"}\n')
    rows: Any = read_inputs(path, Rows(where="id != b"))
    assert len(rows) == 2
    assert [row["id"] for row in rows] == ["a", "c"]


def sources(folder: Path) -> list[Any]:
    frame = pd.DataFrame({"id": ["a", "b", "c"], "n": [1, 2, 3]})
    frame.to_csv(folder / "in.csv", index=False)
    frame.to_parquet(folder / "in.parquet")
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(folder / "in.db")) as database, database:
        frame.to_sql("rows", database, index=False)
    query = SqlQuery(f"sqlite:///{folder}/in.db", "SELECT * FROM rows ORDER BY id")
    rows = frame.to_dict("records")

    def generated() -> Iterator[Any]:
        yield from rows
        raise AssertionError("read too far")

    async def arriving() -> AsyncIterator[Any]:
        for row in rows:
            yield row
        raise AssertionError("read too far")

    return [rows, frame, folder / "in.csv", folder / "in.parquet", query, generated(), arriving()]


async def test_every_kind_of_source_can_be_limited_and_filtered(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        backend = ScriptedBackend(lambda request: say("ok"))
        results = await BatchAgent.run(task="{id}", inputs=source, backend=backend, where="n >= 2", limit=2)
        assert [result.input["id"] for result in results] == ["b", "c"]
        assert [result.index for result in results] == [0, 1]


async def test_every_kind_of_source_can_be_sampled(tmp_path: Path) -> None:
    expected: list[Any] | None = None
    for source in sources(tmp_path)[:5]:
        backend = ScriptedBackend(lambda request: say("ok"))
        results = await BatchAgent.run(task="{id}", inputs=source, backend=backend, sample=2)
        found = [result.input["id"] for result in results]
        expected = expected or found
        assert found == expected


async def test_a_flow_selects_its_inputs_once() -> None:
    rows = [{"n": n} for n in range(6)]
    flow = Flow(rows, backend=ScriptedBackend(lambda request: say("ok")), where="n >= 2", limit=3)
    outcome = await flow.map("first", "{n}").map("second", "{first}").run()
    assert [item["n"] for item in outcome.items] == [2, 3, 4]
    with pytest.raises(SpecError, match="limit= applies to all stages"):
        await Flow(rows).map("first", "{n}", limit=2).run()


async def test_a_larger_sample_reuses_the_answers_of_a_smaller_one(tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(100)]
    backend = ScriptedBackend(lambda request: say("ok"))
    for size in (5, 20):
        await BatchAgent.run(task="{n}", inputs=rows, backend=backend, sample=size, checkpoint_dir=tmp_path)
    assert len(backend.requests) == 20
