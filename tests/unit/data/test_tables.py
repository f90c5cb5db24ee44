"""Inputs from tables in memory: the same plain rows, whoever made the table."""

import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from batch_agent import SpecError
from batch_agent.core.spec import BatchSpec
from batch_agent.data import read_inputs
from batch_agent.data import row_iterators as counting
from batch_agent.data.row_iterators import SizedRows, ThreadIterator
from batch_agent.plan.fingerprint import canonical

ROWS: list[dict[str, Any]] = [
    {"n": 1, "text": "ä", "share": 0.5, "tags": ["x"]},
    {"n": 2, "text": None, "share": None, "tags": None},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS, index=["a", "b"]),
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pa.table(COLUMNS),
    ],
    ids=lambda table: type(table).__module__.partition(".")[0] + type(table).__name__,
)
def test_the_inputs_of_a_table_are_its_rows(table: Any) -> None:
    check_is_read(table)


def test_the_inputs_of_a_duckdb_relation_are_its_rows_and_its_connection_is_free() -> None:
    with duckdb.connect() as connection:
        check_is_read(
            connection.sql(
                "SELECT * FROM (VALUES (1, 'ä', 0.5::DOUBLE, ['x']), (2, NULL, NULL, NULL)) AS t(n, text, share, tags)"
            )
        )
        with pytest.raises(SpecError, match="the query of the relation failed"):
            read_inputs(connection.sql("SELECT CAST(range || 'x' AS INT) FROM range(2)"))
        with pytest.raises(SpecError, match="The relation has two columns named 'a': rename one of them with AS"):
            read_inputs(connection.sql("SELECT 1 AS a, 2 AS a"))
        with pytest.raises(SpecError, match="cannot be read from a duckdb DuckDBPyConnection: pass a relation"):
            read_inputs(connection)


def check_is_read(table: Any) -> None:
    assert BatchSpec.of(task="{n}", inputs=table).inputs is table
    rows = read_inputs(table)
    assert rows == ROWS
    assert read_inputs(table) == rows
    assert [canonical(row) for row in rows] == [canonical(row) for row in ROWS]


@pytest.mark.parametrize("column", [pd.Series(["a", None]), pl.Series(["a", None]), pa.chunked_array([["a", None]])])
def test_the_inputs_of_a_column_are_its_values(column: Any) -> None:
    assert read_inputs(column) == ["a", None]


def test_values_of_numpy_and_pandas_become_plain() -> None:
    frame = pd.DataFrame(
        {
            "missing": [pd.NaT, pd.NA],
            "small": np.array([1, 2], dtype="int8"),
            "nullable": pd.array([1, None], dtype="Int64"),
            "when": [pd.Timestamp("2024-01-01 10:00:00.000001"), pd.NaT],
            "aware": pd.to_datetime(["2024-01-01", None]).tz_localize("UTC"),
            "long": [pd.Timedelta(1, "s"), pd.NaT],
            "kind": pd.Categorical(["x", None]),
            "deep": [{"a": np.float32(0.5), "b": [np.bool_(True), np.nan]}, np.array([[1], [2]])],
            "fine": [np.datetime64("2024-01-01T00:00:00", "ns"), np.array(3)],
            1: [b"raw", Decimal("1.5")],
        }
    )
    first, second = read_inputs(frame)  # type: ignore[misc]
    assert first == {
        "missing": None,
        "small": 1,
        "nullable": 1,
        "when": datetime(2024, 1, 1, 10, 0, 0, 1),
        "aware": datetime(2024, 1, 1, tzinfo=UTC),
        "long": timedelta(seconds=1),
        "kind": "x",
        "deep": {"a": 0.5, "b": [True, None]},
        "fine": datetime(2024, 1, 1),
        "1": b"raw",
    }
    assert [name for name, value in second.items() if value is None] == [
        "missing", "nullable", "when", "aware", "long", "kind",
    ]  # fmt: skip
    assert (second["deep"], second["fine"], second["1"]) == ([[1], [2]], 3, Decimal("1.5"))
    plain = {int, str, float, bool, type(None), datetime, date, timedelta, dict, list, bytes, Decimal}
    assert {type(value) for row in (first, second) for value in row.values()} <= plain
    assert orjson.loads(orjson.dumps({name: first[name] for name in ("small", "nullable", "when", "deep")}))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns have the same name.*'a' 2 times"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns have the same name"),
        (pl.DataFrame({"a": [1]}).group_by("a"), "cannot be read from a polars GroupBy"),
    ],
)
def test_an_object_that_is_not_a_table_is_rejected(source: Any, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_inputs(source)


def test_a_frame_without_narwhals_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(
        SpecError, match=r"pandas DataFrame as inputs needs a package: pip install 'batch-agent\[data\]'"
    ):
        read_inputs(pd.DataFrame({"a": [1]}))


def test_a_list_subclass_from_a_module_named_datasets_is_a_list() -> None:
    own = type("Own", (list,), {"__module__": "datasets.mine"})(["a"])
    assert read_inputs(own) is own


def test_an_empty_table_is_no_inputs() -> None:
    assert read_inputs(pd.DataFrame({"a": []})) == []


def test_rows_of_a_very_long_table_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MAX_LIST_ROWS", 3)
    rows = read_inputs(pl.DataFrame({"a": range(4)}))
    assert isinstance(rows, SizedRows)
    assert len(rows) == 4
    assert list(rows) == [{"a": 0}, {"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.slow
async def test_datasets_are_their_rows_also_when_they_are_streamed() -> None:
    datasets = __import__("datasets")  # a second of imports, for this test alone
    dataset = datasets.Dataset.from_dict(COLUMNS)
    assert read_inputs(dataset) == ROWS
    assert read_inputs(dataset.with_format("numpy", columns=["n"])) == [{"n": 1}, {"n": 2}]
    streamed = read_inputs(dataset.to_iterable_dataset().with_format("numpy"))
    assert isinstance(streamed, ThreadIterator)
    assert [row async for row in streamed] == ROWS
    with pytest.raises(SpecError, match=r"not one DatasetDict.*Choose one of its splits: 'train', 'test'"):
        read_inputs(datasets.DatasetDict({"train": dataset, "test": dataset}))


async def test_rows_that_block_are_read_by_a_thread_which_carries_their_errors_over() -> None:
    def rows() -> Iterable[int]:
        yield from range(1000)
        raise SpecError("broken")

    read = aiter(ThreadIterator(rows()))
    assert [await anext(read) for _ in range(768)] == list(range(768))
    with pytest.raises(SpecError, match="broken"):
        await anext(read)
