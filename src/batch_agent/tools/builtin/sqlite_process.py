"""Processes that run a model's queries on an SQLite file. Each serves one query at a time and is kept for the next."""

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
    """What SQLite said, or which limit the query came to."""


@dataclass(frozen=True, slots=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    is_cut: bool
    """Whether there are more."""


class SqliteProcesses:
    """Safe to use from several threads: there are as many processes as queries at once."""

    def __init__(self, file: Path, seconds: float) -> None:
        """`seconds`: for one query."""
        self._words = [f"{file.as_uri()}?mode=ro", str(seconds), str(_TEMPORARY_BYTES)]
        self._seconds = seconds
        self._idle: list[subprocess.Popen[str]] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closes = weakref.finalize(self, _end_all, self._idle)

    def query(self, query: str, most: int) -> Rows | None:
        """At most `most` rows; None for a statement that gives none. Blocks. Raises QueryError."""
        answer = self._answer(json.dumps({"query": query, "rows": most}) + "\n")
        if "error" in answer:
            raise QueryError(self._said(answer["error"]))
        if answer["columns"] is None:
            return None
        return Rows(answer["columns"], answer["rows"], answer["is_cut"])

    def _answer(self, asked: str) -> dict[str, Any]:
        process = self._take()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(asked)
            process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            _end(process)
            raise
        if not line:
            status = _end(process)
            raise QueryError(self._said("interrupted") if status < 0 else "the process of the query ended unexpectedly")
        with self._lock:
            self._idle.append(process)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _take(self) -> "subprocess.Popen[str]":
        with self._lock:
            if os.getpid() != self._owner:  # after a fork: those are our parent's
                self._owner = os.getpid()
                self._idle.clear()
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        words = [sys.executable, "-I", "-S", str(_PROGRAM), *self._words]
        return subprocess.Popen(  # noqa: S603 - a file of ours
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=_environment()
        )

    def _said(self, words: str) -> str:
        """SQLite's own words for what it was told to do here say little."""
        if words == "interrupted":
            return f"the query took longer than {self._seconds:g} s"
        if words in _FULL:
            return f"the query needs more than {_TEMPORARY_BYTES // 1_000_000} MB of temporary files; sort or join less"
        return words


def _environment() -> dict[str, str]:
    """Where temporary files go; nothing else is its business."""
    return {name: os.environ[name] for name in ("TMPDIR", "SQLITE_TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}


def _end(process: "subprocess.Popen[str]") -> int:
    """Its status; below zero if a signal ended it."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # it is gone, and something was left to be written
                stream.close()
    if process.poll() is None:
        process.kill()
    return process.wait()


def _end_all(idle: "list[subprocess.Popen[str]]") -> None:
    while idle:
        _end(idle.pop())
