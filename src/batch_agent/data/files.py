"""Inputs from files and folders."""

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from ..core.errors import SpecError
from .column_names import check_unique
from .parquet import parquet_rows
from .row_iterators import SizedRows

_MOST_BYTES = 256 * 1024 * 1024
"""Larger files are read line by line, while the run goes on."""
_LONGEST_CELL = 2**31 - 1
_KINDS = "a .jsonl, .json, .csv, .tsv or .parquet file, or a folder of text files"
_MARK = b"\xef\xbb\xbf"


def read_file(path: Path) -> "list[Any] | SizedRows":
    """All inputs of a file or a folder, checked to the last one; those of a very large file one by one. Raises
    SpecError for what is no list of inputs, with the number of the line."""
    with _readable(path):
        if not path.exists():
            raise SpecError(f"There is no {str(path)!r}: inputs are {_KINDS}.")
        found = parquet_rows(path) if _suffix(path) == ".parquet" else _texts(path)
    if not found:
        raise SpecError(f"{str(path)!r} has no inputs.")
    return found


def _texts(path: Path) -> "list[Any] | SizedRows":
    reader = _folder if path.is_dir() else _READERS.get(_suffix(path))
    if reader is None:
        raise SpecError(f"{str(path)!r} has an unknown suffix: inputs are {_KINDS}.")

    def begin() -> Iterator[Any]:
        with _readable(path):
            yield from reader(path)

    return list(begin()) if _size(path) <= _MOST_BYTES else SizedRows(sum(1 for _ in begin()), begin)


def _suffix(path: Path) -> str:
    return "" if path.is_dir() else path.suffix.lower()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (_text_files(path) if path.is_dir() else [path]))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(f"{str(error.filename or path)!r} cannot be read: {error.strerror}.") from error


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(_MARK).strip() if number == 1 else line.strip()
            if text:
                try:
                    yield orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    raise SpecError(f"{path}, line {number}: not valid JSON ({error}).") from error


def _json(path: Path) -> Iterator[Any]:
    try:
        data = orjson.loads(path.read_bytes().removeprefix(_MARK))
    except orjson.JSONDecodeError as error:
        raise SpecError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(data, list):
        raise SpecError(f"{path}: the file must hold a list of inputs, not one {type(data).__name__}.")
    yield from data


def _csv(path: Path) -> Iterator[Any]:
    """Excel separates by semicolons where the comma is in numbers: a header tells."""
    return _separated(path, ",", ";")


def _tsv(path: Path) -> Iterator[Any]:
    return _separated(path, "\t")


def _separated(path: Path, *separators: str) -> Iterator[Any]:
    """By the first of them that divides the header, if one does."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))  # of the whole process: the module has no other
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            first = next((line for line in file if line.strip()), "")
            separator = next((each for each in separators if each in first), separators[0])
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            names: list[str] | None = None
            for cells in filter(None, reader):
                if names is None:
                    names = check_unique(cells, str(path))
                else:
                    yield dict(zip(names, _whole(path, reader.line_num, names, cells), strict=True))
        except csv.Error as error:
            raise SpecError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error
        except UnicodeDecodeError as error:
            raise SpecError(f"{path}, line {_not_utf8(path)}: not UTF-8 ({error.reason}): save it as such.") from error


def _not_utf8(path: Path) -> int:
    """The number of the first such line: files are decoded many lines at a time."""
    with path.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if not _is_utf8(line)), 0)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole(path: Path, line: int, names: list[str], cells: list[str]) -> list[str]:
    if len(cells) != len(names):
        raise SpecError(
            f"{path}, line {line}: {len(cells)} cells for {len(names)} columns. Is a cell with the separator or a line "
            "break in it not in quotes?"
        )
    return cells


def _folder(path: Path) -> Iterator[Any]:
    for file in _text_files(path):
        relative = file.relative_to(path)
        yield {"path": str(relative), "name": relative.name, "text": file.read_text("utf-8-sig", "replace")}


def _text_files(path: Path) -> Iterator[Path]:
    """The files below `path` in order, without hidden and binary ones."""
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if not hidden and file.is_file() and b"\0" not in _beginning(file):
            yield file


def _beginning(file: Path) -> bytes:
    with _readable(file), file.open("rb") as opened:
        return opened.read(4096)


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
}
