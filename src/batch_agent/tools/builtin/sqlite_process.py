"""Pool of processes that run queries on an SQLite file. Each serves one query at a time and is reused."""

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.fast_dataclass import dataclass

_PROGRAM = Path(__file__).with_name("sqlite_program.py")
_TEMPORARY_BYTES = 100_000_000
_FULL = ("database or disk is full", "disk I/O error")


class QueryError(Exception):
    """An error of SQLite, or a limit that the query exceeded."""


@dataclass(frozen=True, slots=True)
class QueryRows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    is_cut: bool
    """Whether there are more rows."""


class SqliteProcesses:
    """Thread-safe pool with as many processes as concurrent queries."""

    def __init__(self, file: Path, seconds: float) -> None:
        """`seconds`: timeout of one query."""
        self._arguments = [f"{file.as_uri()}?mode=ro", str(seconds), str(_TEMPORARY_BYTES)]
        self._seconds = seconds
        self._idle: list[subprocess.Popen[str]] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closes = weakref.finalize(self, _end_all, self._idle)

    def query(self, query: str, max_rows: int) -> QueryRows | None:
        """At most `max_rows` rows; None for a statement that returns no rows. Blocks. Raises QueryError."""
        answer = self._answer(json.dumps({"query": query, "rows": max_rows}) + "\n")
        if "error" in answer:
            raise QueryError(self._explain(answer["error"]))
        if answer["columns"] is None:
            return None
        return QueryRows(answer["columns"], answer["rows"], answer["is_cut"])

    def _answer(self, request: str) -> dict[str, Any]:
        process = self._take()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            _end(process)
            raise
        if not line:
            status = _end(process)
            raise QueryError(
                self._explain("interrupted") if status < 0 else "the process of the query ended unexpectedly"
            )
        with self._lock:
            self._idle.append(process)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _take(self) -> "subprocess.Popen[str]":
        with self._lock:
            if os.getpid() != self._owner:  # after a fork, the processes belong to the parent
                self._owner = os.getpid()
                self._idle.clear()
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        command = [sys.executable, "-I", "-S", str(_PROGRAM), *self._arguments]
        return subprocess.Popen(  # noqa: S603 - a file of this package
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=_environment()
        )

    def _explain(self, message: str) -> str:
        """Replaces messages of SQLite that do not name the limit that was hit."""
        if message == "interrupted":
            return f"the query took longer than {self._seconds:g} s"
        if message in _FULL:
            return f"the query needs more than {_TEMPORARY_BYTES // 1_000_000} MB of temporary files; sort or join less"
        return message


def _environment() -> dict[str, str]:
    """Only the variables that a query may need, such as the folder for temporary files."""
    return {name: os.environ[name] for name in ("TMPDIR", "SQLITE_TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}


def _end(process: "subprocess.Popen[str]") -> int:
    """Ends the process. Returns its exit status, negative for a signal."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # it has ended with unwritten data
                stream.close()
    if process.poll() is None:
        process.kill()
    return process.wait()


def _end_all(idle: "list[subprocess.Popen[str]]") -> None:
    while idle:
        _end(idle.pop())
