"""Program that runs a model's queries on an SQLite file, in a process of its own, under limits of the operating system:
one call of printf or replace cannot be interrupted in any other way, and SQLite does not limit what a sort writes. It
is run by its path and needs only the standard library.

It reads one line of JSON per query and writes one line per result. A query that takes too long ends the process."""

import json
import signal
import sqlite3
import sys
import time
from typing import Any

_MAX_CELL_BYTES = 10_000_000
_MAX_RESULT_BYTES = 4_000_000
_MAX_MEMORY_BYTES = 2_000_000_000
_STEPS_PER_CLOCK_CHECK = 10_000
"""Steps of SQLite's virtual machine between checks of the clock."""
_GRACE = 1.0
"""Seconds after its limit until a query that does not check the clock is killed with the process."""
_IDLE = 60.0
"""Seconds without a query after which the process ends."""
_SCHEMA_PRAGMAS = {
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
}
_INTERNAL_PRAGMAS = {("read_uncommitted", None), ("data_version", None)}
"""Used by SQLAlchemy and by SQLite's full-text search."""


def main() -> None:
    import resource  # not on Windows, where this module is only imported

    uri, seconds, temporary_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_FSIZE, (temporary_bytes, temporary_bytes))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    while True:
        signal.setitimer(signal.ITIMER_REAL, _IDLE)
        line = sys.stdin.readline()
        if not line:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
        request = json.loads(line)
        print(json.dumps(_answer(uri, seconds, request["query"], request["rows"])), flush=True)


def _answer(uri: str, seconds: float, query: str, max_rows: int) -> dict[str, Any]:
    try:
        connection = connect(uri, seconds)
        try:
            cursor = connection.execute(query)
            if cursor.description is None:
                return {"columns": None}
            columns = [column[0] for column in cursor.description]
            rows, is_cut = _rows(cursor, max_rows)
            return {"columns": columns, "rows": rows, "is_cut": is_cut}
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        return {"error": str(error)}
    except (MemoryError, OverflowError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _rows(cursor: sqlite3.Cursor, max_rows: int) -> tuple[list[list[Any]], bool]:
    rows: list[list[Any]] = []
    size = 0
    for row in cursor:
        if len(rows) == max_rows or size > _MAX_RESULT_BYTES:
            return rows, True
        rows.append([f"[{len(cell)} bytes]" if isinstance(cell, bytes) else cell for cell in row])
        size += sum(len(cell) if isinstance(cell, str) else 16 for cell in rows[-1])
    return rows, False


def connect(uri: str, seconds: float) -> sqlite3.Connection:
    """Read-only connection whose queries check the clock. Raises sqlite3.Error."""
    connection = sqlite3.connect(uri, uri=True)
    connection.execute("PRAGMA query_only=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CLOCK_CHECK)
    connection.set_authorizer(_authorize)
    connection.text_factory = lambda data: data.decode(errors="replace")  # old programs wrote text in any encoding
    return connection


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """Denies access to other files and to settings; the file itself was opened read-only."""
    other = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    sets = action == sqlite3.SQLITE_PRAGMA and first not in _SCHEMA_PRAGMAS and (first, second) not in _INTERNAL_PRAGMAS
    return sqlite3.SQLITE_DENY if other or sets else sqlite3.SQLITE_OK


if __name__ == "__main__":
    main()
