"""One statement that answers for many keys."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.errors import SpecError
from .sql_database import Database, SqlError, sqlalchemy_package

if TYPE_CHECKING:
    from sqlalchemy import TextClause

_INT64 = range(-(2**63), 2**63)


class Lookup:
    """One statement for many keys."""

    def __init__(self, database: Database, statement: str, key: str, key_type: type, max_rows: int) -> None:
        """Tries the statement without keys; raises SpecError."""
        self._database = database
        self._statement, self._parameter = _expanding(statement)
        self._key = key
        self._key_type = key_type
        self._max_rows = max_rows
        try:
            columns, _ = self._ask([])
        except SqlError as error:
            raise SpecError(f"The statement {str(self._statement)!r} does not work: {error}") from error
        if key not in columns:
            raise SpecError(f"The statement must give a column {key!r}, to tell whose row it is; it gives {columns}.")

    def answers(self, keys: Sequence[Any]) -> list[Any]:
        """For each key its row, its rows, or a sentence that there is none. An exception stands for a key that no
        database can take."""
        good = [key for key in dict.fromkeys(keys) if not isinstance(key, int) or key in _INT64]
        found = self._found(good)
        return [self._answer(key, found[key]) if key in found else _too_large(key) for key in keys]

    def _found(self, keys: list[Any]) -> dict[Any, list[dict[str, Any]]]:
        found: dict[Any, list[dict[str, Any]]] = {key: [] for key in keys}
        strays = 0
        for row in self._ask(keys)[1]:
            owner = self._owner(row)
            strays += owner not in found
            if owner in found:
                found[owner].append(row)
        if strays:  # the database thinks keys equal which are not so here, as in a collation without case
            for key in keys:
                found[key] = found[key] or self._ask([key])[1]
        return found

    def _owner(self, row: Mapping[str, Any]) -> Any:
        try:
            return self._key_type(row[self._key])
        except (TypeError, ValueError):
            return None

    def _ask(self, keys: list[Any]) -> tuple[list[str], list[dict[str, Any]]]:
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
