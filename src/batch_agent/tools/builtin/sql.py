"""Asking a database, read-only: with queries that the model writes, or by keys, of which many become one query."""

from collections.abc import Sequence
from types import GenericAlias
from typing import Any

from pydantic_core import to_json

from ...core.errors import SpecError
from ..tool import Tool, make_tool
from .sql_database import Database
from .sql_lookup import Lookup
from .sqlite_process import Rows

_GRACE = 5.0
"""Seconds that the database has to stop a query before the call is given up."""


def sql_tool(url: str, *, max_rows: int = 200, timeout: float = 30.0, name: str = "sql") -> Tool:
    """A tool `sql(query)` that reads the database at `url`, an SQLAlchemy URL (extra `sql`). The tables and columns are
    part of its description. Opens the database; raises SpecError.

    SQLite files are opened read-only, and nothing but reading that one file is allowed to a statement. Its queries run
    in a process of their own (not on Windows), which ends when `timeout` is over, whatever the query does, and may
    write no more than 100 MB into a temporary file for a sort. In PostgreSQL
    every query is one statement in a READ ONLY transaction with a statement_timeout; functions may still do what the
    user's rights permit, so connect as one with few. Other databases are refused: nothing here keeps them safe."""
    database = Database(url, timeout)
    if not database.is_guarded:
        raise SpecError(
            f"sql_tool keeps only SQLite and PostgreSQL read-only, not {database.kind!r}. "
            "Use sql_lookup_tool, or a @Tool.define function with the queries that are needed."
        )

    def sql(query: str) -> str:
        return _table(database.rows(query, max_rows))

    described = (
        f"Run one read-only {database.kind} SELECT statement; at most {max_rows} rows are shown. "
        f"The result is a line with the column names, then one line for each row.\n\n{database.schema()}"
    )
    return make_tool(
        sql, name=name, description=described, effect="read", version=database.version, timeout=timeout + _GRACE
    )


def sql_lookup_tool(
    url: str,
    statement: str,
    *,
    key: str,
    name: str,
    description: str,
    key_type: type[int] | type[str] = int,
    max_rows: int = 50,
    max_batch: int = 100,
    window: float = 0.005,
    timeout: float = 30.0,
) -> Tool:
    """A tool `name(key)` that gives the rows for one key, such as `get_user(id=7)`. Calls of different agents that
    arrive together become one execution of `statement`, in which one parameter stands for all their keys:

        sql_lookup_tool(url, "SELECT id, name FROM users WHERE id IN :ids", key="id", name="get_user", description=...)

    `key` is both the argument that the model sees and the column that says whose row it is; at most `max_rows` are
    shown for each. Opens the database and tries the statement without keys; raises SpecError."""
    database = Database(url, timeout)
    lookup = Lookup(database, statement, key, key_type, max_rows)

    def rows(keys: list[Any]) -> list[Any]:
        return lookup.answers(keys)

    rows.__annotations__["keys"] = GenericAlias(list, (key_type,))
    make = Tool.batchable(
        key_arg=key,
        max_batch=max_batch,
        window=window,
        name=name,
        description=description,
        version=database.version,
        timeout=timeout + _GRACE,
    )
    return make(rows)


def _table(found: Rows) -> str:
    count = len(found.rows)
    lines = [_line(found.columns), *(_line(row) for row in found.rows)]
    if found.is_cut:
        lines.append(f"[cut here: only the first {count} rows are shown; narrow the query down or count]")
    else:
        lines.append(f"[{count} row{'' if count == 1 else 's'}]")
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return to_json([_cell(cell) for cell in cells], fallback=str, inf_nan_mode="strings").decode()


def _cell(value: Any) -> Any:
    return f"[{len(value)} bytes]" if isinstance(value, bytes | memoryview) else value
