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

_MAX_BYTES = 256 * 1024 * 1024
"""Larger files are read line by line during the run."""
_MAX_CELL_CHARS = 2**31 - 1
_FORMATS = "a .jsonl, .json, .csv, .tsv or .parquet file, or a folder of text files"
_BOM = b"\xef\xbb\xbf"


def read_file(path: Path) -> "list[Any] | SizedRows":
    """Inputs of a file or folder, all parsed; for a very large file, an iterable that parses them again as they are
    read. Raises SpecError for invalid data, with the line number."""
    with _translate_errors(path):
        if not path.exists():
            raise SpecError(f"{str(path)!r} does not exist. Inputs are {_FORMATS}.")
        found = parquet_rows(path) if _suffix(path) == ".parquet" else _texts(path)
    if not found:
        raise SpecError(f"{str(path)!r} has no inputs.")
    return found


def _texts(path: Path) -> "list[Any] | SizedRows":
    reader = _folder if path.is_dir() else _READERS.get(_suffix(path))
    if reader is None:
        raise SpecError(f"{str(path)!r} has an unknown suffix. Inputs are {_FORMATS}.")

    def rows() -> Iterator[Any]:
        with _translate_errors(path):
            yield from reader(path)

    return list(rows()) if _size(path) <= _MAX_BYTES else SizedRows(sum(1 for _ in rows()), rows)


def _suffix(path: Path) -> str:
    return "" if path.is_dir() else path.suffix.lower()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (_text_files(path) if path.is_dir() else [path]))


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(f"{str(error.filename or path)!r} cannot be read: {error.strerror}.") from error


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
            if text:
                try:
                    yield orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    raise SpecError(f"{path}, line {number}: not valid JSON ({error}).") from error


def _json(path: Path) -> Iterator[Any]:
    try:
        data = orjson.loads(path.read_bytes().removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        raise SpecError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(data, list):
        raise SpecError(f"{path}: the file must contain a list of inputs, not a single {type(data).__name__}.")
    yield from data


def _csv(path: Path) -> Iterator[Any]:
    """Comma or semicolon, depending on the header: Excel writes semicolons in locales with decimal commas."""
    return _separated(path, ",", ";")


def _tsv(path: Path) -> Iterator[Any]:
    return _separated(path, "\t")


def _separated(path: Path, *separators: str) -> Iterator[Any]:
    """Rows separated by the first of the separators that is in the header."""
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL_CHARS))  # the limit is global to the process
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
                    yield dict(zip(names, _check_cells(path, reader.line_num, names, cells), strict=True))
        except csv.Error as error:
            raise SpecError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error
        except UnicodeDecodeError as error:
            raise SpecError(
                f"{path}, line {_first_invalid_line(path)}: not UTF-8 ({error.reason}): save the file as UTF-8."
            ) from error


def _first_invalid_line(path: Path) -> int:
    """Number of the first line that is not UTF-8; the decoder, which reads many lines at a time, does not know it."""
    with path.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if not _is_utf8(line)), 0)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_cells(path: Path, line: int, names: list[str], cells: list[str]) -> list[str]:
    if len(cells) != len(names):
        raise SpecError(
            f"{path}, line {line}: {len(cells)} cells for {len(names)} columns. Quote cells that contain the "
            "separator or a line break."
        )
    return cells


def _folder(path: Path) -> Iterator[Any]:
    for file in _text_files(path):
        relative = file.relative_to(path)
        yield {"path": str(relative), "name": relative.name, "text": file.read_text("utf-8-sig", "replace")}


def _text_files(path: Path) -> Iterator[Path]:
    """The files below `path` in sorted order, without hidden and binary files."""
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if not hidden and file.is_file() and b"\0" not in _beginning(file):
            yield file


def _beginning(file: Path) -> bytes:
    with _translate_errors(file), file.open("rb") as opened:
        return opened.read(4096)


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
}
