"""Inputs from files and folders, results to a file."""

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson
from pydantic_core import to_jsonable_python

from ..core.errors import SpecError
from ..core.results import AgentResult

_LONGEST_SHOWN = 500
_MOST_BYTES = 256 * 1024 * 1024
_READERS = "a .jsonl, .json or .csv file, or a folder of files"


class InputFile:
    """Inputs that are checked and counted once, then read one by one."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise SpecError(f"There is no {str(path)!r}: --inputs takes {_READERS}.")
        self._path = path
        self._count = sum(1 for _ in (_text_files(path) if path.is_dir() else self))
        if not self._count:
            raise SpecError(f"{str(path)!r} has no inputs.")

    def __len__(self) -> int:
        return self._count

    def rows(self) -> "list[Any] | InputFile":
        """All of them, so that they can be asked in the best order; of a very large file, one by one."""
        files = _text_files(self._path) if self._path.is_dir() else [self._path]
        return list(self) if sum(file.stat().st_size for file in files) <= _MOST_BYTES else self

    def __iter__(self) -> Iterator[Any]:
        if self._path.is_dir():
            return _folder(self._path)
        reader = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _csv}.get(self._path.suffix)
        if reader is None:
            raise SpecError(f"{str(self._path)!r}: --inputs takes {_READERS}.")
        return reader(self._path)


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise SpecError(f"{path}, line {number}: not valid JSON ({error}).") from error


def _json(path: Path) -> Iterator[Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise SpecError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(data, list):
        raise SpecError(f"{path}: the file must hold a list of inputs, not one {type(data).__name__}.")
    yield from data


def _csv(path: Path) -> Iterator[Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file)


def _folder(path: Path) -> Iterator[Any]:
    for file in _text_files(path):
        relative = file.relative_to(path)
        yield {"path": str(relative), "name": relative.name, "text": file.read_text(errors="replace")}


def _text_files(path: Path) -> Iterator[Path]:
    """The files below `path` in order, without hidden and binary ones."""
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if not hidden and file.is_file() and b"\0" not in _beginning(file):
            yield file


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(4096)


class ResultFile:
    """One JSON object per line, on disk as soon as it is known. An older file is replaced by the first result, not
    before: a run that cannot start leaves it as it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise SpecError(f"--out {str(path)!r} cannot be written: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):  # of what `write` has said already
                self._file.close()

    def write(self, result: AgentResult) -> None:
        """Raises SpecError where there is no more room for it."""
        row = orjson.dumps(as_row(result)) + b"\n"
        try:
            if self._file is None:
                self._file = self._path.open("wb")
            self._file.write(row)
            self._file.flush()
        except OSError as error:
            raise SpecError(f"--out {str(self._path)!r} cannot be written: {error.strerror}.") from error


def as_row(result: AgentResult) -> dict[str, Any]:
    """A result as plain data."""
    error = result.error
    row = {
        "index": result.index,
        "key": result.key,
        "ok": result.ok,
        "input": _short(result.input),
        "output": result.output,
        "error": {"kind": error.kind, "message": error.message, "retryable": error.retryable} if error else None,
        "turns": result.turns,
        "tool_calls": result.tool_calls,
        "usage": result.usage,
        "seconds": round(result.timing.total, 3),
    }
    if error is not None:
        row["text"] = result.text
    return {name: to_jsonable_python(value, fallback=str) for name, value in row.items()}


def _short(value: Any) -> Any:
    """An input as far as it is needed to know which one it was."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    return value
