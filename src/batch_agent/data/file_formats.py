"""Formats of input files: JSON lines, JSON, CSV, TSV, Parquet and lines of text, read row by row."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import orjson

from ..charset import file_encoding, is_utf8
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import loads_exact
from .parquet import iter_parquet
from .plain_values import check_unique

if TYPE_CHECKING:
    from ..objects.store_client import RemoteFile
    from .download import LocalCopy

_MAX_CELL_CHARS = 2**31 - 1
FORMATS = "a .jsonl, .json, .csv, .tsv or .parquet file, or a folder of text files"
_GZIP = b"\x1f\x8b"
_GZIP_RATIO = 8
"""Assumed maximum of text bytes per byte of a compressed file."""
SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
}  # fmt: skip
_QUOTED = re.compile(r'"[^"]*("|$)')
_OTHER_ENCODING = "Pass its encoding, such as encoding='cp1252' or 'latin-1', or save the file as UTF-8."


@dataclass(frozen=True, slots=True)
class InputFile:
    """File of inputs in one format. It is decompressed while it is read."""

    path: "Path | RemoteFile"
    name: str
    """Name of the file in messages."""
    format: str
    copy: "LocalCopy | None" = None
    """Set if `path` is a temporary file, which exists as long as this object."""
    declared: str | None = None
    """Encoding, if the file is not UTF-8."""

    @classmethod
    def of(cls, path: Path, input_format: str | None, encoding: str | None = None) -> "InputFile":
        """Raises SpecError for a file that does not exist, or whose suffix is unknown."""
        if not path.exists():
            raise SpecError(f"{str(path)!r} does not exist. Inputs are {FORMATS}.")
        kind = input_format or format_of(path.name, repr(str(path)))
        return cls(path, str(path), kind, declared=encoding)

    def open(self) -> IO[bytes]:
        file = open_bytes(self.path)
        if file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
            return file
        import gzip  # only for compressed files

        if not isinstance(self.path, Path):
            return cast(IO[bytes], gzip.open(file))
        file.close()
        return cast(IO[bytes], gzip.open(self.path))

    def open_text(self, newline: str | None = "") -> TextIO:
        file = self.open()
        try:
            encoding = file_encoding(file, self.declared)
        except BaseException:
            file.close()
            raise
        return io.TextIOWrapper(file, encoding, newline=newline)

    def open_utf8(self) -> Iterable[bytes]:
        """Lines as UTF-8, without a byte order mark."""
        with self.open() as file:
            encoding = file_encoding(file, self.declared)
            if encoding == "utf-8":
                yield from file
                return
        with self.open_text("\n") as text:
            yield from (line.encode() for line in text)

    @property
    def size(self) -> int:
        """Size in bytes, estimated for a compressed file."""
        size = file_size(self.path)
        return size * _GZIP_RATIO if self.path.name.lower().endswith(".gz") else size


def iter_files(files: Iterable[InputFile]) -> Iterator[Any]:
    """Rows of the files, in order, read on demand. Raises SpecError."""
    for file in files:
        with translate_errors(file.name):
            yield from iter_parquet(file.path) if file.format == "parquet" else _READERS[file.format](file)


def data_format(name: str) -> str | None:
    """Format given by the suffix of a file name; None if it is not that of a data file."""
    lower = name.lower().removesuffix(".gz")
    suffix = next((suffix for suffix in SUFFIXES if lower.endswith(suffix)), None)
    return None if suffix is None or (suffix == ".parquet" and name.lower() != lower) else SUFFIXES[suffix]


def format_of(name: str, shown: str) -> str:
    found = data_format(name)
    if found is None:
        raise SpecError(
            f"{shown} has an unknown suffix. Inputs are {FORMATS}. A file of another name needs its format: "
            "input_format='csv', or 'lines' for one input per line."
        )
    return found


def file_size(path: "Path | RemoteFile") -> int:
    return path.stat().st_size if isinstance(path, Path) else path.size


def open_bytes(path: "Path | RemoteFile") -> io.BufferedReader:
    return path.open("rb") if isinstance(path, Path) else path.open()


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Translates errors of reading a file to SpecError."""
    try:
        yield
    except EOFError as error:
        raise SpecError(f"{name!r} cannot be decompressed: it ends too early.") from error
    except OSError as error:
        if error.strerror is None:  # gzip.BadGzipFile
            raise SpecError(f"{name!r} cannot be decompressed: {error}.") from error
        raise SpecError(f"{str(error.filename or name)!r} cannot be read: {error.strerror}.") from error


def _json_lines(file: InputFile) -> Iterator[Any]:
    with translate_encoding(file):
        for number, line in enumerate(file.open_utf8(), 1):
            if text := line.strip():
                try:
                    yield loads_exact(text)
                except orjson.JSONDecodeError as error:
                    text.decode()  # raises UnicodeDecodeError for another encoding
                    other = " For another format: input_format='csv'." if file.copy is not None and number == 1 else ""
                    raise SpecError(
                        f"{file.name}, line {number}: not valid JSON ({error.msg}, column {error.colno}).{other}"
                    ) from error


def _lines(file: InputFile) -> Iterator[Any]:
    """Each line that is not blank, as text."""
    with translate_encoding(file), file.open_text() as opened:
        yield from (text for line in opened if (text := line.rstrip("\r\n")).strip())


def _json(file: InputFile) -> Iterator[Any]:
    with translate_encoding(file):
        text = b"".join(file.open_utf8())
        try:
            data = loads_exact(text)
        except orjson.JSONDecodeError as error:
            text.decode()  # raises UnicodeDecodeError for another encoding
            raise SpecError(f"{file.name}: not valid JSON ({error}).") from error
    if not isinstance(data, list):
        raise SpecError(f"{file.name}: the file must contain a list of inputs, not a single {type(data).__name__}.")
    yield from data


def _csv(file: InputFile) -> Iterator[Any]:
    """Reads CSV. Excel separates by semicolons in locales with decimal commas, and databases by tabs or bars."""
    return _separated(file, ",", ";", "\t", "|")


def _tsv(file: InputFile) -> Iterator[Any]:
    return _separated(file, "\t")


def _separated(source: InputFile, *separators: str) -> Iterator[Any]:
    """Rows split at the separator that is most frequent in the header, outside of quotes; the first one in a tie."""
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL_CHARS))  # the limit is global to the process
    with translate_encoding(source), source.open_text() as file:
        try:
            first = next((line for line in file if line.strip()), "")
            separator = max(separators, key=_QUOTED.sub("", first).count)
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            names: list[str] | None = None
            for cells in filter(None, reader):
                if names is None:
                    names = check_unique(cells, source.name)
                else:
                    yield dict(zip(names, _check_cells(source.name, reader.line_num, names, cells), strict=True))
        except csv.Error as error:
            raise SpecError(f"{source.name}, line {reader.line_num}: not valid CSV ({error}).") from error


@contextmanager
def translate_encoding(file: InputFile) -> Iterator[None]:
    """Names the first line that is not UTF-8. The decoder reads many lines at a time and does not know it."""
    try:
        yield
    except UnicodeDecodeError as error:
        if error.encoding not in ("utf-8", "utf-8-sig"):
            raise SpecError(f"{file.name}: not {error.encoding} ({error.reason}): pass another encoding=.") from error
        with file.open() as opened:
            line = next((number for number, line in enumerate(opened, 1) if not is_utf8(line)), 0)
        raise SpecError(f"{file.name}, line {line}: not UTF-8 ({error.reason}). {_OTHER_ENCODING}") from error


def _check_cells(name: str, line: int, names: list[str], cells: list[str]) -> list[str]:
    if len(cells) != len(names):
        raise SpecError(
            f"{name}, line {line}: {len(cells)} cells for {len(names)} columns. Quote cells that contain the "
            "separator or a line break."
        )
    return cells


_READERS: dict[str, Callable[[InputFile], Iterator[Any]]] = {
    "jsonl": _json_lines,
    "json": _json,
    "csv": _csv,
    "tsv": _tsv,
    "lines": _lines,
}
