"""Tables of results and of flows: flat columns, costs, and HTML for notebooks."""

import csv
import json
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Flow
from batch_agent.core.errors import BackendError, ErrorKind
from batch_agent.core.requests import Request
from batch_agent.core.results import AgentError, AgentResult
from batch_agent.data import open_results
from batch_agent.data.results import Results
from batch_agent.testing import ScriptedBackend, say


class Rating(BaseModel):
    stars: int
    tags: list[str]


ROWS = [{"id": "007", "text": "a"}, {"id": "008", "text": "b"}, {"id": "009", "text": "fails"}]


def rated(request: Request) -> Any:
    if request.messages[-1].text == "fails":  # type: ignore[union-attr]
        raise BackendError(ErrorKind.BAD_REQUEST, "no")
    return say('{"stars": 2, "tags": ["x", "y"]}')


async def run(**options: Any) -> Any:
    backend = ScriptedBackend(rated)
    return await BatchAgent.run(
        **{"task": "{text}", "inputs": ROWS, "output_schema": Rating, "backend": backend, "reorder": False, **options}
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row["index"]))


async def test_a_csv_file_of_a_run_has_the_columns_of_to_csv_and_joins(tmp_path: Path) -> None:
    results = await run(out=tmp_path / "out.csv", key="id")
    results.to_csv(tmp_path / "later.csv")
    written, later = rows_of(tmp_path / "out.csv"), rows_of(tmp_path / "later.csv")
    assert list(written[0]) == list(later[0]) == list(results.to_pandas().columns)
    assert [row["input.id"] for row in written] == ["007", "008", "009"]
    assert [row["output.stars"] for row in written] == ["2", "2", ""]
    assert json.loads(written[0]["output.tags"]) == ["x", "y"]
    table = results.to_pandas()
    joined = pd.DataFrame(ROWS).merge(table, left_on="id", right_on="input.id")
    assert len(joined) == 3
    read = pd.read_csv(tmp_path / "out.csv", dtype={"key": str})
    assert len(pd.DataFrame(ROWS).merge(read, left_on="id", right_on="key")) == 3


def result(index: int, value: Any, output: Any = None, error: AgentError | None = None) -> AgentResult:
    return AgentResult(index, f"k{index}", value, output, error=error)


def test_a_csv_file_gets_new_columns_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    failed = AgentError(ErrorKind.BAD_REQUEST, "no")
    results = [
        result(0, {"a": 1}, error=failed),
        result(1, {"a": 'x,\n"y"'}, {"s": 1}),
        result(2, {"b": "ü"}, {"s": 2, "t": [1]}),
        result(3, "text", "plain"),
    ]
    with open_results(path) as file:
        for number, each in enumerate(results, 1):
            file.write(each)
            assert len(rows_of(path)) == number  # readable at any time
    Results(results).to_csv(tmp_path / "whole.csv")
    assert rows_of(path) == rows_of(tmp_path / "whole.csv")
    assert list(rows_of(path)[0])[5:12] == [
        "input.a",
        "input.b",
        "input",
        "output.s",
        "output.t",
        "output",
        "error_kind",
    ]


def test_a_second_run_still_cannot_write_to_a_file_that_got_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with open_results(path) as file:
        file.write(result(0, {"a": 1}, "x"))
        file.write(result(1, {"b": 1}, "x"))
        with pytest.raises(Exception, match="is being written by another run"):
            open_results(path)


async def test_a_cost_is_in_every_table_where_the_price_is_known(tmp_path: Path) -> None:
    prices = {"scripted": (1e6, 0.0, 2e6)}
    results = await run(prices=prices, out=tmp_path / "out.jsonl")
    usage = results[0].usage
    assert results[0].cost == usage.input - usage.cached + 2 * usage.output
    assert results.cost == sum(each.cost for each in results)
    assert results.to_pandas()["cost"].tolist() == [each.cost for each in results]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {line["cost"] for line in lines} == {each.cost for each in results}
    assert f"${results.cost:,.2f}" in str(results) if results.cost >= 1 else f"${results.cost:.4f}" in str(results)
    unknown = await run()
    assert unknown[0].cost is None
    assert unknown.cost is None
    assert "$" not in str(unknown)


async def test_the_items_of_a_flow_are_a_table(tmp_path: Path) -> None:
    flow = Flow(ROWS, backend=ScriptedBackend(rated)).map("rating", "{text}", output_schema=Rating)
    outcome = await flow.run()
    table = outcome.to_pandas()
    names = ["index", "ok", "id", "text", "rating.stars", "rating.tags", "error_stage", "error_kind", "error_message"]
    assert list(table.columns) == names
    assert table["id"].tolist() == ["007", "008", "009"]
    assert table["rating.stars"].tolist()[:2] == [2, 2]
    assert table["error_stage"].tolist()[2] == "rating"
    assert outcome.to_polars().columns == names
    outcome.to_csv(tmp_path / "out.csv")
    assert [row["id"] for row in rows_of(tmp_path / "out.csv")] == ["007", "008", "009"]
    outcome.to_parquet(tmp_path / "out.parquet")
    found = duckdb.read_parquet(str(tmp_path / "out.parquet"))
    assert found.columns == names
    assert found.select('"rating.tags"').fetchall() == [(["x", "y"],), (["x", "y"],), (None,)]
    outcome.to_jsonl(tmp_path / "out.jsonl")
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert first["fields"]["rating"] == {"stars": 2, "tags": ["x", "y"]}
    assert "<td>007</td>" in outcome._repr_html_()


async def test_a_table_takes_the_types_of_a_table_that_pandas_has_read(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text,price,when\n007,a,1.5,2024-01-01\n008,b,,x\n")
    results = await run(inputs=path, output_schema=None, backend=ScriptedBackend(lambda request: say("ok")))
    table = pd.read_csv(path)
    assert results[0].input["id"] == "007"
    found = results.to_pandas(like=table)
    assert found["input.id"].tolist() == [7, 8]
    assert found["input.price"].isna().tolist() == [False, True]
    assert len(table.merge(found, left_on="id", right_on="input.id")) == 2
    assert results.to_pandas()["input.id"].tolist() == ["007", "008"]


def test_html_breaks_lines_between_words_only() -> None:
    text = "Sustainability " * 9
    html = Results([result(0, {"text": text}, "answer")])._repr_html_()
    [cell] = [part for part in html.split("<td>") if part.startswith("Sustain")]
    assert cell.startswith("Sustainability Sustainability Sustainability Sustainability Sustainability…<")
    assert "overflow-wrap: anywhere" not in html
    assert "white-space: nowrap" in html
