"""What can be done with the results of a run: tables, files, a look at them."""

import csv
import os
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import duckdb
import orjson
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from batch_agent import AgentError, AgentResult, ErrorKind, Results, SpecError, Usage
from batch_agent.core.results import CallRecord, Changes, FileChange, Timing
from batch_agent.data import as_row, open_results, read_inputs
from batch_agent.data.results import AgentsFailed

BOOM = AgentError(ErrorKind.SERVER, "boom", retryable=True)
COLUMNS_AFTER = [
    "error_kind", "error_message", "text", "turns", "tool_calls", "input_tokens", "cached_tokens", "written_tokens",
    "output_tokens", "lane", "cost", "seconds",
]  # fmt: skip


class Mood(Enum):
    GOOD = "good"


class Part(BaseModel):
    n: int


class Answer(BaseModel):
    mood: Mood
    parts: list[Part] = []
    when: date | None = None


@dataclass
class Pair:
    left: int
    right: str


def results() -> Results:
    calls = (CallRecord("look", "{}", True, 0.1),)
    first = Answer(mood=Mood.GOOD, parts=[Part(n=1)], when=date(2024, 1, 2))
    return Results(
        [
            AgentResult(0, "k0", {"id": 1, "text": "ä"}, first, usage=Usage(10, 4, 2), turns=2, tool_calls=calls),
            AgentResult(1, "k1", {"id": 2, "text": "b"}, text="half", error=BOOM, usage=Usage(5, 0, 1), turns=1),
            AgentResult(2, "k2", {"id": 3}, Answer(mood=Mood.GOOD), timing=Timing(total=1.23456)),
        ]
    )


def test_the_changes_of_a_coding_agent_are_in_its_row() -> None:
    changes = Changes((FileChange("a.py", "added", 1, 0),), "patch")
    row = as_row(AgentResult(0, "k", output="done", changes=changes))
    assert row["changes"] == {
        "files": [{"path": "a.py", "kind": "added", "added": 1, "removed": 0}], "patch": "patch", "is_cut": False
    }  # fmt: skip
    assert "changes" not in as_row(AgentResult(0, "k", output="done"))


def test_results_have_failures_usage_and_outputs() -> None:
    made = results()
    assert [result.index for result in made.failed] == [1]
    assert isinstance(made.failed, Results)
    assert made.usage == Usage(15, 4, 3)
    assert made.outputs == [made[0].output, None, made[2].output]
    assert Results().usage == Usage()


def test_failures_are_raised_only_when_asked_for() -> None:
    fine = Results([AgentResult(0, "k")])
    assert fine.raise_for_failures() is fine
    failed = Results(AgentResult(n, "k", error=BOOM) for n in range(5))
    failed.append(AgentResult(5, "k", error=AgentError(ErrorKind.TRUNCATED, "cut")))
    with pytest.raises(AgentsFailed) as raised:
        failed.raise_for_failures()
    assert raised.value.results is failed
    assert str(raised.value) == (
        "6 of 6 agents failed (5 server, 1 truncated): input 0: server: boom; input 1: server: boom; "
        "input 2: server: boom; and 3 more"
    )


def test_a_frame_of_pandas_has_a_column_for_each_field() -> None:
    frame = results().to_pandas()
    names = [
        "index",
        "key",
        "ok",
        "status",
        "finish",
        "input.id",
        "input.text",
        "output.mood",
        "output.parts",
        "output.when",
    ]
    assert list(frame.columns) == [*names, *COLUMNS_AFTER]
    assert frame["input.text"].isna().tolist() == [False, False, True]
    assert frame["output.mood"].dropna().tolist() == ["good", "good"]
    assert frame["output.parts"][0] == [{"n": 1}]
    assert frame["output.when"][0] == date(2024, 1, 2)
    assert frame["error_kind"].dropna().tolist() == ["server"]
    assert frame["text"].dropna().tolist() == ["half"]
    assert frame["tool_calls"].tolist() == [1, 0, 0]
    assert frame["seconds"].tolist() == [0.0, 0.0, 1.235]


class Ratio(BaseModel):
    part: int
    whole: int

    @computed_field
    def share(self) -> float:
        return self.part / self.whole


def test_a_computed_field_is_in_tables_as_in_rows() -> None:
    done = Results([AgentResult(0, "k", "a", Ratio(part=1, whole=4))])
    assert done.to_pandas()["output.share"].tolist() == [0.25]
    assert as_row(done[0])["output"] == {"part": 1, "whole": 4, "share": 0.25}


@pytest.mark.parametrize("answer", [Ratio(part=1, whole=0), [Ratio(part=1, whole=0)], {"a": Ratio(part=1, whole=0)}])
def test_a_computed_field_that_raises_is_null_and_costs_no_row(tmp_path: Path, answer: Any) -> None:
    done = Results([AgentResult(0, "k", "a", answer), AgentResult(1, "l", "b", Ratio(part=1, whole=2))])
    done.to_csv(tmp_path / "a.csv")
    done.to_jsonl(tmp_path / "a.jsonl")
    rows = [orjson.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert "null" in orjson.dumps(rows[0]["output"]).decode()
    assert rows[1]["output"] == {"part": 1, "whole": 2, "share": 0.5}
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 3


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    unit_price: Decimal

    @computed_field
    def is_cheap(self) -> bool:
        return self.unit_price < 5


@pydantic_dataclass
class Named:
    class_: Annotated[str, Field(alias="class")]


def test_tables_and_lines_name_the_fields_of_answers_as_the_schema_and_those_of_inputs_as_the_task(
    tmp_path: Path,
) -> None:
    camel, named = Camel(unit_price=Decimal("1.5")), Named(**{"class": "a"})
    done = Results([AgentResult(0, "k", camel, camel), AgentResult(1, "l", named, {"parts": [named]})])
    table = done.to_pandas()
    names = [name for name in table if name.startswith(("input.", "output."))]
    assert names == ["input.unit_price", "input.is_cheap", "input.class_", "output.unitPrice", "output.isCheap",
                     "output.parts"]  # fmt: skip
    assert table["output.parts"].tolist()[1] == [{"class": "a"}]
    done.to_jsonl(tmp_path / "a.jsonl")
    first, second = map(orjson.loads, (tmp_path / "a.jsonl").read_bytes().splitlines())
    assert (first["input"], first["output"]) == (
        {"unit_price": "1.5", "is_cheap": True},
        {"unitPrice": "1.5", "isCheap": True},
    )
    assert (second["input"], second["output"]) == ({"class_": "a"}, {"parts": [{"class": "a"}]})


def test_a_column_of_an_enum_is_named_by_its_value() -> None:
    done = Results([AgentResult(0, "k", "a", {Mood.GOOD: 3})])
    assert done.to_pandas()["output.good"].tolist() == [3]


def test_a_frame_of_polars_has_the_same_columns() -> None:
    frame = results().to_polars()
    assert frame.columns == list(results().to_pandas().columns)
    assert frame["output.parts"].to_list() == [[{"n": 1}], None, []]
    assert frame["output.when"].dtype == pl.Date
    assert frame["ok"].to_list() == [True, False, True]


@pytest.mark.parametrize(
    ("outputs", "columns"),
    [
        (["x", "y"], {"output": ["x", "y"]}),
        ([Pair(1, "a"), Pair(2, "b")], {"output.left": [1, 2], "output.right": ["a", "b"]}),
        ([RootModel[list[int]]([1]), RootModel[list[int]]([])], {"output": [[1], []]}),
        ([{"a": 1}, {"b": 2}], {"output.a": [1, None], "output.b": [None, 2]}),
        ([{}, None], {"output": ["{}", None]}),
        ([1, "x"], {"output": ["1", '"x"']}),
        ([{"a": 1}, "x"], {"output.a": [1, None], "output": [None, "x"]}),
        ([2**70, 1], {"output": ["1180591620717411303424", "1"]}),
        ([1, 2.5], {"output": [1.0, 2.5]}),
        ([b"\xff", b"ok"], {"output": ["_w==", "ok"]}),
        ([float("nan"), 1.5], {"output": [None, 1.5]}),
        (["\ud800", "ok"], {"output": ["?", "ok"]}),
        ([{"A": 1, "a": 2}, {"a": 3}], {"output.A": [1, None], "output.a_2": [2, 3]}),
        ([[{"A": 1, "a": 2}], []], {"output": ['[{"A":1,"a":2}]', "[]"]}),
        ([datetime(2024, 1, 1, 12), None], {"output": [datetime(2024, 1, 1, 12), None]}),
        ([datetime(2024, 1, 1, tzinfo=UTC), None], {"output": ["2024-01-01T00:00:00Z", None]}),
        ([Decimal("1.50"), None], {"output": ["1.50", None]}),
        (["2024-01-01", "2024-01-02"], {"output": ["2024-01-01", "2024-01-02"]}),
    ],
)
def test_parquet_holds_any_answers(tmp_path: Path, outputs: list[Any], columns: dict[str, list[Any]]) -> None:
    made = Results(AgentResult(n, "k", "x", output) for n, output in enumerate(outputs))
    made.to_parquet(tmp_path / "out.parquet")
    found = duckdb.read_parquet(str(tmp_path / "out.parquet"))
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    answers = {name: [row[name] for row in rows] for name in found.columns if name.partition(".")[0] == "output"}
    assert answers == columns


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")) | st.sampled_from(["2024-01-01", "12:30", "1", "null"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from("abä' ."), plain, min_size=1), min_size=1, max_size=12))
@example([{"a": -(2**63) - 1, "b": [2**64, 1e300]}])
def test_results_written_to_parquet_are_read_back_equal(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(f"{__import__('json').dumps(row)}\n" for row in rows))
    inputs: Any = read_inputs(lines)
    Results(AgentResult(n, "k", row, row) for n, row in enumerate(inputs)).to_parquet(tmp_path / "out.parquet")
    names = sorted({name for row in inputs for name in row})
    for row, found in zip(inputs, read_inputs(tmp_path / "out.parquet"), strict=True):  # type: ignore[arg-type]
        assert {name: found[f"input.{name}"] for name in names} == {name: row.get(name) for name in names}
        assert {name: found[f"output.{name}"] for name in names} == {name: row.get(name) for name in names}


def test_files_of_results_hold_their_rows(tmp_path: Path) -> None:
    made = results()
    made.to_jsonl(tmp_path / "deep" / "out.jsonl")
    lines = (tmp_path / "deep" / "out.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == [as_row(result) for result in made]
    made.to_csv(str(tmp_path / "out.csv"))
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        first, second, _ = csv.DictReader(file)
    assert list(first) == list(made.to_pandas().columns)
    assert (first["input.text"], first["output.parts"], first["output.when"]) == ("ä", '[{"n":1}]', "2024-01-02")
    assert (first["ok"], second["ok"], second["output.mood"], second["error_message"]) == ("true", "false", "", "boom")
    made.to_parquet(tmp_path / "out.parquet")
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert list(table.columns) == list(made.to_pandas().columns)
    assert table["output.parts"][0].tolist() == [{"n": 1}]
    assert table["output.when"][0] == date(2024, 1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "out.csv", "out.parquet"]


def test_no_results_are_an_empty_table(tmp_path: Path) -> None:
    names = ["index", "key", "ok", "status", "finish", "input", "output", *COLUMNS_AFTER]
    assert list(Results().to_pandas().columns) == Results().to_polars().columns == names
    Results().to_parquet(tmp_path / "out.parquet")
    assert duckdb.read_parquet(str(tmp_path / "out.parquet")).columns == names
    Results().to_csv(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().strip() == ",".join(names)


@pytest.mark.parametrize("method", ["to_parquet", "to_jsonl", "to_csv"])
def test_a_path_that_cannot_be_written_is_a_clear_error_and_leaves_no_file(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "out", tmp_path / "folder"):
        with pytest.raises(SpecError, match="cannot be written"):
            getattr(results(), method)(place)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize(
    ("method", "module", "words"),
    [("to_pandas", "pandas", "pip install pandas"), ("to_polars", "polars", "pip install polars"),
     ("to_parquet", "duckdb", r"pip install 'batch-agent\[data\]'")],
)  # fmt: skip
def test_a_missing_table_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, module: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError, match=words):
        getattr(results(), method)(*([tmp_path / "out"] if method == "to_parquet" else []))


def test_results_in_a_terminal_are_one_line() -> None:
    assert repr(results()) == (
        "<Results: 2 of 3 agents answered, 1 failed (1 server); 15 tokens in, 4 of them cached, 3 out>"
    )


def test_results_in_a_notebook_are_a_table_of_the_first_ones_and_never_html() -> None:
    made = Results(AgentResult(n, "k", {"<b>": "<script>" + "x" * 200}, "fine") for n in range(12))
    html = made._repr_html_()
    assert "12 of 12 agents answered" in html
    assert "and 2 more" in html
    assert html.count("<tr>") == 11
    assert "input.&lt;b&gt;" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "x" * 100 not in html
    assert "<table>" not in Results()._repr_html_()


def test_a_failed_row_has_its_error() -> None:
    row = as_row(AgentResult(3, "k", {"text": "x" * 10_000}, text="half", error=BOOM))
    assert row["error"] == {"kind": "server", "message": "boom", "retryable": True}
    assert row["text"] == "half"


def test_inputs_are_written_whole(tmp_path: Path) -> None:
    long, deep = "ä" * 200_000, {"text": "x" * 5_000, "more": ["y" * 5_000]}
    made = Results([AgentResult(0, "k0", {"text": long, "deep": deep}, "ok"), AgentResult(1, "k1", long, error=BOOM)])
    made.to_jsonl(tmp_path / "all.jsonl")
    made.to_csv(tmp_path / "all.csv")
    made.to_parquet(tmp_path / "all.parquet")
    with open_results(tmp_path / "out.jsonl") as lines, open_results(tmp_path / "out.csv") as table:
        for result in made:
            lines.write(result)
            table.write(result)
    for name in ("all.jsonl", "out.jsonl"):
        rows = [orjson.loads(line) for line in (tmp_path / name).read_bytes().splitlines()]
        assert [row["input"] for row in rows] == [{"text": long, "deep": deep}, long]
    csv.field_size_limit(10_000_000)
    with (tmp_path / "all.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["input.text"] == long
    with (tmp_path / "out.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
        assert (first["input.text"], orjson.loads(first["input.deep"])) == (long, deep)
    assert pl.read_parquet(tmp_path / "all.parquet")["input.text"][0] == long
    assert made.to_pandas()["input.text"][0] == long
