"""Inputs from a database: SQLite, a real one."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batch_agent import SpecError
from batch_agent.data import SqlQuery, read_inputs, read_inputs_async
from batch_agent.data import inputs as reading
from batch_agent.data.row_iterators import ThreadIterator


@pytest.fixture
def url(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE reviews (id INTEGER, text TEXT, stars REAL)")
        database.executemany(
            "INSERT INTO reviews VALUES (?, ?, ?)", [(1, "gut ✓", 4.5), (2, None, None), (3, "50%", 1)]
        )
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_each_row_of_a_query_is_an_input(url: str) -> None:
    query = SqlQuery(url, "SELECT id, text FROM reviews ORDER BY id")
    assert (
        read_inputs(query)
        == list(query)
        == [{"id": 1, "text": "gut ✓"}, {"id": 2, "text": None}, {"id": 3, "text": "50%"}]
    )


def test_query_parameters_are_given_by_name_and_may_be_lists(url: str) -> None:
    query = SqlQuery(url, "SELECT id FROM reviews WHERE id IN :ids AND text LIKE :like", ids=[1, 2, 3], like="%g%")
    assert read_inputs(query) == [{"id": 1}]


def test_without_parameters_colons_and_percent_signs_are_literal(url: str) -> None:
    assert read_inputs(SqlQuery(url, "SELECT 'at :noon' AS a FROM reviews WHERE text LIKE '50%'")) == [
        {"a": "at :noon"}
    ]


async def test_many_rows_are_read_while_the_run_goes_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_LIST_ROWS", 500)
    numbers = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :most) SELECT n FROM n"
    rows = await read_inputs_async(SqlQuery(url, numbers, most=3000))
    assert isinstance(rows, ThreadIterator)
    assert [row["n"] async for row in rows] == list(range(1, 3001))
    assert len(await read_inputs_async(SqlQuery(url, numbers, most=500))) == 500  # type: ignore[arg-type]
    async for row in rows:
        assert row == {"n": 1}
        break  # leaves a query in the middle


@pytest.mark.parametrize(
    ("query", "parameters", "problem"),
    [
        ("SELECT * FROM gone", {}, "no such table: gone"),
        ("SELEC", {}, "syntax error"),
        ("SELECT id, id FROM reviews", {}, "two columns named 'id': rename one of them with AS"),
        ("UPDATE reviews SET stars = 5", {}, "returns no rows: write a SELECT"),
        ("SELECT :a", {"b": 1}, "A value is required for bind parameter 'a'"),
    ],
)
def test_errors_of_the_database_are_passed_on(url: str, query: str, parameters: Any, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_inputs(SqlQuery(url, query, **parameters))
    assert read_inputs(SqlQuery(url, "SELECT count(*) AS n FROM reviews WHERE stars = 5")) == [{"n": 0}]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:///nothing.db", "The database 'nothing.db' does not exist"),
        ("nosuch://host/db", "cannot be opened.*nosuch"),
        ("mysql+pymysql://me:s3cret@host/db", "No module named 'pymysql'. Install this driver of the database."),
        ("postgresql+nosuch://me:s3cret@host/db", "cannot be opened"),
        ("sqlite://:x:y", "cannot be opened|Could not parse"),
    ],
)
def test_the_error_for_an_invalid_database_omits_its_password(url: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as refused:
        read_inputs(SqlQuery(url, "SELECT 1"))
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(SqlQuery(url, "SELECT 1"))


def test_a_mistyped_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"The database .* does not exist"):
        read_inputs(SqlQuery(f"sqlite:///{tmp_path}/mistyped.db", "SELECT 1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("shop.db", "SELECT 1"), "needs a database URL"), (("sqlite:///x", ""), "needs a query")],
)
def test_an_invalid_query_is_rejected_at_once(words: tuple[str, str], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        SqlQuery(*words)


def test_a_query_without_sqlalchemy_says_what_to_install(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[sql\]'"):
        read_inputs(SqlQuery(url, "SELECT 1"))
