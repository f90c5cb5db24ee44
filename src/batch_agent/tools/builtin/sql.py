"""Built-in tools that read a database: with queries that the model writes, or by key, with many keys per query."""

from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from ...core.errors import SpecError
from ..tool import Tool, make_tool
from .sql_database import Database, SqlError, sqlalchemy_package
from .sqlite_process import QueryRows

if TYPE_CHECKING:
    from sqlalchemy import TextClause

_INT64 = range(-(2**63), 2**63)


class Lookup:
    """Lookup of rows by key, with one statement for many keys."""

    def __init__(self, database: Database, statement: str, key: str, key_type: type, max_rows: int) -> None:
        """Tests the statement without keys. Raises SpecError."""
        self._database = database
        self._statement, self._parameter = _expanding(statement)
        self._key = key
        self._key_type = key_type
        self._max_rows = max_rows
        try:
            columns, _ = self._query([])
        except SqlError as error:
            raise SpecError(f"The statement {str(self._statement)!r} fails: {error}") from error
        if key not in columns:
            raise SpecError(
                f"The statement must return the column {key!r}, which assigns rows to keys; it returns {columns}."
            )

    def answers(self, keys: Sequence[Any]) -> list[Any]:
        """For each key its row, its rows, or a sentence that there are none; an exception for a key that no database
        accepts."""
        valid = [key for key in dict.fromkeys(keys) if not isinstance(key, int) or key in _INT64]
        found = self._rows_by_key(valid)
        return [self._answer(key, found[key]) if key in found else _too_large(key) for key in keys]

    def _rows_by_key(self, keys: list[Any]) -> dict[Any, list[dict[str, Any]]]:
        found: dict[Any, list[dict[str, Any]]] = {key: [] for key in keys}
        unmatched = 0
        for row in self._query(keys)[1]:
            owner = self._owner(row)
            unmatched += owner not in found
            if owner in found:
                found[owner].append(row)
        if unmatched:  # the database considers other keys equal, as in a case-insensitive collation
            for key in keys:
                found[key] = found[key] or self._query([key])[1]
        return found

    def _owner(self, row: Mapping[str, Any]) -> Any:
        try:
            return self._key_type(row[self._key])
        except (TypeError, ValueError):
            return None

    def _query(self, keys: list[Any]) -> tuple[list[str], list[dict[str, Any]]]:
        with self._database.reading() as connection:
            result = connection.execute(self._statement, {self._parameter: keys})
            return list(result.keys()), [dict(row) for row in result.mappings()]

    def _answer(self, key: Any, rows: list[dict[str, Any]]) -> Any:
        if not rows:
            return f"There is nothing for {self._key} {key!r}."
        if len(rows) > self._max_rows:
            return [*rows[: self._max_rows], f"[cut here: {self._max_rows} of {len(rows)} rows are shown]"]
        return rows[0] if len(rows) == 1 else rows


def _expanding(statement: str) -> "tuple[TextClause, str]":
    sqlalchemy = sqlalchemy_package()
    text = sqlalchemy.text(statement)
    names = list(text.compile().params)
    if len(names) != 1:
        raise SpecError(
            f"The statement {statement!r} must have one parameter for the keys, as in WHERE id IN :ids; it has {names}."
        )
    return text.bindparams(sqlalchemy.bindparam(names[0], expanding=True)), names[0]


def _too_large(key: int) -> ValueError:
    return ValueError(f"{key} is too large for a database; a key has at most 64 bits")


_GRACE = 5.0
"""Seconds for the database to stop a query before the call times out."""


def sql_tool(url: str, *, max_rows: int = 200, timeout: float = 30.0, name: str = "sql") -> Tool:
    """A tool `sql(query)` that reads the database at `url`, an SQLAlchemy URL (extra `sql`). The tables and columns are
    part of its description. Opens the database; raises SpecError.

    SQLite files are opened read-only, and a statement may only read that one file. Queries run in a process of their
    own (not on Windows), which is killed after `timeout` and may write at most 100 MB of temporary files. In PostgreSQL
    every query is one statement in a READ ONLY transaction with a statement_timeout; functions may still do what the
    user's privileges permit, so connect as a user with few. Other databases are rejected, because they cannot be kept
    read-only."""
    database = Database(url, timeout)
    if not database.is_guarded:
        raise SpecError(
            f"sql_tool can enforce read-only access only for SQLite and PostgreSQL, not {database.kind!r}. "
            "Use sql_lookup_tool, or a @Tool.define function with the queries that are needed."
        )

    def sql(query: str) -> str:
        return _table(database.rows(query, max_rows))

    description = (
        f"Run one read-only {database.kind} SELECT statement; at most {max_rows} rows are shown. "
        f"The result is a line with the column names, then one line for each row.\n\n{database.schema()}"
    )
    return make_tool(
        sql, name=name, description=description, effect="read", version=database.version, timeout=timeout + _GRACE
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
    """A tool `name(key)` that returns the rows of one key, such as `get_user(id=7)`. Calls of different agents that
    arrive together become one execution of `statement`, whose one parameter is bound to all their keys:

        sql_lookup_tool(url, "SELECT id, name FROM users WHERE id IN :ids", key="id", name="get_user", description=...)

    `key` is both the argument that the model sees and the column that assigns rows to keys; at most `max_rows` are
    shown for each key. Opens the database and tests the statement without keys. Raises SpecError."""
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


def _table(found: QueryRows) -> str:
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
