"""A database is read, never written; look-ups of many agents are one query. On real SQLite files."""

import asyncio
import json
import pickle
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, make_url

from batch_agent import SpecError
from batch_agent.core.messages import ToolCall
from batch_agent.tools import Tool, ToolExecutor
from batch_agent.tools.builtin import sqlite_process
from batch_agent.tools.builtin.sql import sql_lookup_tool, sql_tool
from batch_agent.tools.builtin.sql_database import Database, SqlError, _has_secret, _run_with_cursor, _with_password

_SHOP = """
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, photo BLOB);
CREATE TABLE orders (user TEXT, price REAL);
CREATE VIEW names AS SELECT name FROM users;
INSERT INTO users VALUES (1, 'Ann', x'00ff'), (2, 'Bob', NULL);
INSERT INTO orders VALUES ('1', 1.5), ('1', 2.5);
"""
_USERS = "SELECT id, name FROM users WHERE id IN :ids"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop & co?.db"
    connection = sqlite3.connect(path)
    connection.executescript(_SHOP)
    connection.executemany("INSERT INTO users VALUES (?, ?, NULL)", [(n, f"user {n}") for n in range(10, 200)])
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}".replace("?", "%3F")


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every statement that SQLAlchemy has a database execute."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


def users(url: str, **options: Any) -> Tool:
    return sql_lookup_tool(url, _USERS, key="id", name="get_user", description="A user by id.", **options)


def answers(tool: Tool, keys: list[Any]) -> list[Any]:
    assert tool.batch is not None
    given: list[Any] = tool.batch.function(keys)
    return given


def test_rows_come_as_lines_with_the_column_names_first(url: str) -> None:
    shown = sql_tool(url)(query="SELECT * FROM users WHERE id < 10;")
    assert shown == '["id","name","photo"]\n[1,"Ann","[2 bytes]"]\n[2,"Bob",null]\n[2 rows]'


def test_the_model_is_told_the_tables_and_their_columns(url: str) -> None:
    description = sql_tool(url).description
    assert "orders(user TEXT, price REAL)\nusers(id INTEGER, name TEXT, photo BLOB)" in description
    assert "names(name TEXT)" in description


def test_a_schema_too_long_for_a_prompt_is_cut_and_says_where_the_rest_is(file: Path, url: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(";".join(f"CREATE TABLE t{n} (a_column_with_a_long_name TEXT)" for n in range(300)))
    connection.close()
    description = sql_tool(url).description
    assert len(description) < 7000
    assert description.endswith("[cut here; 303 tables in all, see sqlite_master]")


def test_more_rows_than_are_shown_are_admitted(url: str) -> None:
    shown = sql_tool(url, max_rows=3)(query="SELECT id FROM users ORDER BY id").splitlines()
    assert shown[:4] == ['["id"]', "[1]", "[2]", "[10]"]
    assert shown[4].startswith("[cut here: only the first 3 rows")
    assert len(shown) == 5


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO users VALUES (3, 'Eve', NULL)",
        "DELETE FROM users",
        "DROP TABLE users",
        "CREATE TEMP TABLE t (a)",
        "ATTACH '{other}' AS other",
        "VACUUM INTO '{other}'",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = WAL",
        "SELECT load_extension('x')",
        "WITH gone AS (SELECT 1) DELETE FROM users",
    ],
)
def test_nothing_but_reading_is_possible(url: str, file: Path, query: str) -> None:
    tool = sql_tool(url)
    before = file.read_bytes()
    with pytest.raises(SqlError, match="only reading is allowed"):
        tool(query=query.replace("{other}", str(file.parent / "other.db")))
    assert file.read_bytes() == before
    assert {path.name for path in file.parent.iterdir()} == {file.name}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM nobody", "^no such table: nobody$"),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT ?", "bindings"),
        ("SELECT zeroblob(100000000)", "too big"),
        ("", "write one SELECT"),
        ("BEGIN", "write one SELECT"),
    ],
)
def test_errors_are_in_the_databases_words(url: str, query: str, said: str) -> None:
    with pytest.raises(SqlError, match=said):
        sql_tool(url)(query=query)


def test_text_that_looks_like_a_placeholder_is_literal(url: str) -> None:
    assert '["%s :name"]' in sql_tool(url)(query="SELECT '%s :name' AS text")


def test_a_query_without_an_end_is_stopped(url: str) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(SqlError, match=r"longer than 0\.2 s"):
        sql_tool(url, timeout=0.2)(query=endless)


_BLOBS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n ORDER BY randomblob(1000000)"
_STUBBORN = "SELECT replace(printf('%.*c', 5000000, 'a'), printf('%.*c', 2500000, 'a') || 'b', 'x')"
"""Hours, in one step."""


@pytest.mark.slow
def test_a_step_that_does_not_look_at_the_clock_is_ended_with_its_process(url: str) -> None:
    tool = sql_tool(url, timeout=0.2)
    with pytest.raises(SqlError, match=r"longer than 0\.2 s"):
        tool(query=_STUBBORN)
    assert "[1 row]" in tool(query="SELECT 1")


@pytest.mark.slow
def test_a_sort_cannot_fill_the_temporary_folder(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_process, "_TEMPORARY_BYTES", 5_000_000)
    tool = sql_tool(url, timeout=60)
    with pytest.raises(SqlError, match="needs more than 5 MB of temporary files"):
        tool(query=_BLOBS)
    assert "[1 row]" in tool(query="SELECT 1")


def test_an_answer_is_cut_before_it_takes_all_memory(url: str) -> None:
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT printf('%.*c', 1000000, 'a') FROM n"
    shown = sql_tool(url, max_rows=1000)(query=many)
    assert len(shown) < 7_000_000
    assert "only the first 5 rows are shown" in shown[-200:]


def test_a_process_serves_one_query_after_another_and_several_serve_several(url: str) -> None:
    tool = sql_tool(url)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: tool(query=f"SELECT {n}"), range(40)))
    assert found == [f'["{n}"]\n[{n}]\n[1 row]' for n in range(40)]


def test_a_process_that_ended_while_nobody_asked_is_replaced(file: Path) -> None:
    processes = sqlite_process.SqliteProcesses(file, 5.0)
    assert processes.query("SELECT 1", 9) == sqlite_process.QueryRows(["1"], [[1]], False)
    [idle] = processes._idle
    idle.kill()
    idle.wait()
    assert processes.query("SELECT 2", 9) == sqlite_process.QueryRows(["2"], [[2]], False)
    processes._closes()
    assert processes._idle == []


@pytest.mark.parametrize("text", ["é 漢字", "\U0001f600", "a\nb", "quote ' and \" and \\"])
def test_letters_come_back_as_they_are(url: str, text: str) -> None:
    asked = text.replace("'", "''")
    shown = sql_tool(url)(query=f"SELECT '{asked}' AS t, 1e999 AS big, -0.5, 9223372036854775807")
    assert json.loads(shown.splitlines()[1]) == [text, "Infinity", -0.5, 9223372036854775807]


def test_text_that_is_not_utf_8_is_shown_as_far_as_it_can_be(url: str) -> None:
    assert sql_tool(url)(query="SELECT CAST(x'47726fdf65' AS TEXT) AS t").splitlines()[1] == '["Gro\ufffde"]'


def test_postgresql_sends_no_more_rows_than_are_shown() -> None:
    class Connection:
        def exec_driver_sql(self, statement: str, **options: Any) -> str:
            ran.append(statement)
            return statement

    ran: list[str] = []
    connection: Any = Connection()
    _run_with_cursor(connection, "( SELECT * FROM orders)", 200)
    assert ran == ["DECLARE found NO SCROLL CURSOR FOR\n( SELECT * FROM orders)", "FETCH 201 FROM found"]
    ran.clear()
    _run_with_cursor(connection, "EXPLAIN SELECT * FROM orders", 200)  # no cursor takes it
    assert ran == ["EXPLAIN SELECT * FROM orders"]


def test_half_a_character_is_refused_in_words(url: str) -> None:
    with pytest.raises(SqlError, match="UnicodeEncodeError"):
        sql_tool(url)(query="SELECT '\ud800'")


def test_full_text_search_works_although_nothing_may_be_written(file: Path, url: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript("CREATE VIRTUAL TABLE notes USING fts5(body); INSERT INTO notes VALUES ('hello world')")
    connection.close()
    assert '["hello world"]' in sql_tool(url)(query="SELECT * FROM notes WHERE notes MATCH 'hello'")


def test_a_result_is_good_until_the_file_changes(file: Path, url: str) -> None:
    version = sql_tool(url).sharing.version
    assert version is not None
    before = version({})
    assert version({}) == before
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("INSERT INTO users VALUES (3, 'Eve', NULL)")
    connection.commit()
    after = version({})
    connection.close()
    assert after != before


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("nonsense", "not a database URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///{folder}/missing.db", "database file .* does not exist"),
        ("sqlite:///{folder}/text.db", "not a database"),
        ("postgresql+nodriver://u:secret@localhost/x", "cannot be opened"),
        ("oracle+oracledb://u:secret@localhost/x", "cannot be opened|only SQLite and PostgreSQL"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_before_the_run(tmp_path: Path, bad: str, says: str) -> None:
    (tmp_path / "text.db").write_text("This is text and not a database. " * 100)
    with pytest.raises(SpecError, match=says) as raised:
        sql_tool(bad.replace("{folder}", str(tmp_path)))
    assert "secret" not in str(raised.value)


def test_without_its_package_the_sql_tool_says_what_to_install(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[sql\]'"):
        sql_tool(url)


def test_many_keys_are_one_statement_and_each_gets_its_own_row(url: str, statements: list[str]) -> None:
    tool = users(url)
    statements.clear()
    given = answers(tool, [2, 7, 1, 2])
    bob = {"id": 2, "name": "Bob"}
    assert given == [bob, "There is nothing for id 7.", {"id": 1, "name": "Ann"}, bob]
    assert len(statements) == 1


def test_thirty_agents_looking_up_thirty_ids_make_one_query(url: str, statements: list[str]) -> None:
    async def look_up() -> list[tuple[str, bool]]:
        executor = ToolExecutor([users(url, window=0.2)], timeout=30.0, max_tokens=1000)

        async def agent(n: int) -> tuple[str, bool]:
            call = ToolCall(f"c{n}", "get_user", f'{{"id": {n}}}')
            [result] = await executor.session(f"agent {n}").results([call])
            return result.content, result.is_error

        statements.clear()
        async with asyncio.TaskGroup() as group:
            agents = [group.create_task(agent(n)) for n in range(100, 130)]
        await executor.aclose()
        return [task.result() for task in agents]

    results = asyncio.run(look_up())
    assert results == [(f'{{"id":{n},"name":"user {n}"}}', False) for n in range(100, 130)]
    assert len(statements) == 1


def test_a_key_that_no_database_can_take_fails_alone(url: str) -> None:
    ann, bad = answers(users(url), [1, 2**70])
    assert ann == {"id": 1, "name": "Ann"}
    assert isinstance(bad, ValueError)


def test_a_key_of_several_rows_gets_them_all_up_to_an_honest_limit(url: str) -> None:
    statement = "SELECT user, price FROM orders WHERE user IN :users ORDER BY price"
    tool = sql_lookup_tool(url, statement, key="user", name="orders", description="Orders of a user.")
    assert answers(tool, [1, 2]) == [
        [{"user": "1", "price": 1.5}, {"user": "1", "price": 2.5}],
        "There is nothing for user 2.",
    ]
    short = sql_lookup_tool(url, statement, key="user", name="orders", description="Orders of a user.", max_rows=1)
    assert answers(short, [1]) == [[{"user": "1", "price": 1.5}, "[cut here: 1 of 2 rows are shown]"]]


def test_keys_that_only_the_database_thinks_equal_still_find_their_row(url: str) -> None:
    statement = "SELECT name, id FROM users WHERE name IN :names"
    tool = sql_lookup_tool(url, statement, key="name", key_type=str, name="by_name", description="A user by name.")
    assert answers(tool, ["ANN", "Bob", "Zoe"]) == [
        {"name": "Ann", "id": 1},
        {"name": "Bob", "id": 2},
        "There is nothing for name 'Zoe'.",
    ]


@pytest.mark.parametrize(("key_type", "kind"), [(int, "integer"), (str, "string")])
def test_the_model_sees_one_typed_key(url: str, key_type: type[int] | type[str], kind: str) -> None:
    assert users(url, key_type=key_type).spec.parameters["properties"] == {"id": {"type": kind}}


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT id FROM users", "one parameter"),
        ("SELECT id FROM users WHERE id IN :a AND name IN :b", "one parameter"),
        ("SELECT name FROM users WHERE id IN :ids", "must return the column 'id'"),
        ("SELECT id FROM nobody WHERE id IN :ids", "no such table"),
        ("DELETE FROM users WHERE id IN :ids RETURNING id", "only reading"),
    ],
)
def test_a_statement_that_cannot_work_is_refused_before_the_run(url: str, statement: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        sql_lookup_tool(url, statement, key="id", name="x", description="x")


def test_a_copy_in_another_process_opens_the_same_database(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(Database("sqlite:///shop & co%3F.db", 1.0))
    monkeypatch.chdir("/")
    copy = pickle.loads(sent)
    assert copy.rows("SELECT name FROM users WHERE id = 1", 9).rows == [["Ann"]]
    (tmp_path / "shop & co?.db").unlink()
    with pytest.raises(SpecError, match="does not exist"):
        pickle.loads(sent)


def test_a_url_with_a_password_is_not_sent_and_one_that_names_a_variable_is(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match=r"write \$\{NAME\} in its place"):
        pickle.dumps(Database(f"{url}?password=secret", 1.0))
    named = make_url("postgresql://reader:${SHOP_PASSWORD}@host/shop")
    assert not _has_secret(named)
    assert _has_secret(make_url("postgresql://reader:secret@host/shop"))
    with pytest.raises(SpecError, match="variable SHOP_PASSWORD is not set"):
        _with_password(named, "the URL")
    monkeypatch.setenv("SHOP_PASSWORD", "a/b@c")
    assert _with_password(named, "the URL").password == "a/b@c"
