"""Inputs from files and folders, patterns, addresses and object stores."""

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..charset import HEAD_BYTES, is_binary
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.images import Image
from ..core.images.image_format import SUPPORTED, media_type_of
from ..core.safe_text import public_url
from ..core.task_fields import STDIN, is_object_url, is_url
from ..lazy_imports import lazy_modules
from .file_formats import (
    SUFFIXES,
    InputFile,
    data_format,
    file_size,
    format_of,
    iter_files,
    open_bytes,
    translate_encoding,
    translate_errors,
)
from .parquet import count_parquet, parquet_rows
from .row_iterators import SizedRows, ThreadIterator

with lazy_modules(globals()):
    from ..media import pdf
    from ..objects import store_client
    from . import download

if TYPE_CHECKING:
    from ..objects.store_client import RemoteFile
    from .row_selection import RowSelection

_MAX_BYTES = 256 * 1024 * 1024
"""Larger files are read line by line during the run."""
_COUNTED_BYTES = 2**20
_MAX_NAMED = 3
PDF = b"%PDF-"
FileRows = list[Any] | SizedRows | ThreadIterator


def read_file(
    source: str | Path,
    select: "RowSelection | None" = None,
    input_format: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
    encoding: str | None = None,
) -> FileRows:
    """Inputs from a file, a folder or a glob pattern, also in an object store; from an http(s) address; or from `-`,
    standard input. All inputs are parsed at once; for very large files, the result is an iterable that parses them
    again while it is read, asynchronous for an object store. Raises SpecError for invalid data, with the line
    number."""
    path = Path(source).expanduser()
    with translate_errors(str(source)):
        if is_object_url(source):
            found = _object_rows(str(source), select, input_format, notify, encoding)
        elif source == STDIN or is_url(source):
            found = _all_rows([_local_copy(str(source), input_format, notify, encoding)], select)
        elif path.is_dir():
            found = _folder_rows(_visible_files(path), path, str(path), select, notify, encoding)
        elif is_pattern(source) and not path.exists():
            found = _matches(str(path), select, input_format, notify, encoding)
        else:
            found = _all_rows([InputFile.of(path, input_format, encoding)], select)
    if not found:
        raise SpecError(f"{'Standard input' if source == STDIN else repr(_shown(source))} has no inputs.")
    return found


def local_data_files(source: str | Path, input_format: str | None, encoding: str | None) -> list[InputFile]:
    """The files that `read_file` reads row by row; empty for a folder, an address and standard input. Raises
    SpecError."""
    path = Path(source).expanduser()
    if is_object_url(source) or is_url(source) or source == STDIN or path.is_dir():
        return []
    if is_pattern(source) and not path.exists():
        return _data_files(str(path), _matching(str(path)), input_format, encoding)
    return [InputFile.of(path, input_format, encoding)]


def has_more_rows(files: Iterable[InputFile], count: int) -> bool:
    """Whether the files have more rows than `count`. Reads no more than needed: the metadata of Parquet, or at most
    that many lines, each counted as a row. A file with one JSON list counts as small. Blocks. Raises SpecError."""
    left = count
    for file in files:
        with translate_errors(file.name):
            left -= _count_rows(file, left + 1)
        if left < 0:
            return True
    return False


def _count_rows(file: InputFile, most: int) -> int:
    if file.format == "parquet":
        return count_parquet(Path(str(file.path)))
    if file.format == "json":
        return 0
    lines = 0
    with file.open() as opened:
        while lines < most and (block := opened.read(_COUNTED_BYTES)):
            lines += block.count(b"\n")
    return lines


def _local_copy(
    source: str, input_format: str | None, notify: Callable[[str], None], encoding: str | None
) -> InputFile:
    copy = download.read_stdin() if source == STDIN else download.download(source, notify)
    default = "jsonl" if source == STDIN else None
    kind = input_format or default or format_of(copy.file_name, repr(copy.name))
    return InputFile(copy.path, copy.name, kind, copy, encoding)


def is_pattern(source: str | Path) -> bool:
    """Whether a path has wildcards: `*`, `?` or `[...]`."""
    return not is_url(source) and glob.has_magic(str(source))


def _shown(source: str | Path) -> str:
    return public_url(str(source)) if is_url(source) or is_object_url(source) else str(Path(source).expanduser())


def _matches(
    pattern: str,
    select: "RowSelection | None",
    input_format: str | None,
    notify: Callable[[str], None],
    encoding: str | None,
) -> FileRows:
    """Rows of all matching files, if the pattern ends in the suffix of a data format, or in a wildcard (`*.jsonl*`) and
    all matches are data files; otherwise one input per file, as for a folder."""
    paths = _matching(pattern)
    if not paths:
        raise SpecError(f"No file matches {pattern!r}.")
    files = _data_files(pattern, paths, input_format, encoding)
    return _all_rows(files, select) if files else _folder_rows(paths, None, pattern, select, notify, encoding)


def _matching(pattern: str) -> list[Path]:
    return [path for path in map(Path, sorted(glob.glob(pattern, recursive=True))) if path.is_file()]


def _data_files(pattern: str, paths: Sequence[Path], input_format: str | None, encoding: str | None) -> list[InputFile]:
    if input_format is None and not (_is_of_data(pattern) and all(data_format(path.name) for path in paths)):
        return []
    return [InputFile.of(path, input_format, encoding) for path in paths]


def _object_rows(
    url: str,
    select: "RowSelection | None",
    input_format: str | None,
    notify: Callable[[str], None],
    encoding: str | None,
) -> FileRows:
    """Rows of an object, of all objects that match a pattern, or of all objects below a folder, as for files."""
    found = store_client.StoreClient(url, "inputs").files(url)
    if not found:
        raise SpecError(f"inputs: no object matches {url!r}. A folder ends in a slash, and a pattern has a '*'.")
    is_data = not url.endswith("/") and _is_of_data(url) and all(data_format(file.name) for file in found)
    if input_format is not None or is_data or (len(found) == 1 and not is_pattern(url) and not url.endswith("/")):
        kinds = [input_format or format_of(file.name, repr(file.url)) for file in found]
        files = [InputFile(file, file.url, kind, None, encoding) for file, kind in zip(found, kinds, strict=True)]
        return _all_rows(files, select)
    return _folder_rows(found, url if url.endswith("/") else None, url, select, notify, encoding)


def _is_of_data(pattern: str) -> bool:
    """Whether the end of a pattern names a data format: `*.csv`, `*.jsonl*`, `*.csv.[gz]*`."""
    name = pattern.rpartition("/")[2]
    return any(suffix in name for suffix in SUFFIXES)


def _folder_rows(
    files: "Sequence[Path | RemoteFile]",
    folder: Path | str | None,
    name: str,
    select: "RowSelection | None",
    notify: Callable[[str], None],
    encoding: str | None,
) -> FileRows:
    """One input per text file and PDF; if there are none, one per image. Other files are reported by `notify` or, if
    there are only such files, by SpecError."""
    texts: list[Path | RemoteFile] = []
    images: list[Path | RemoteFile] = []
    binary: list[Path | RemoteFile] = []
    reads_pdfs = find_spec("pypdf") is not None
    for file in files:
        head = _beginning(file)
        is_text = (reads_pdfs and head.startswith(PDF)) or not is_binary(head, encoding)
        (texts if is_text else images if media_type_of(head) in SUPPORTED else binary).append(file)
    local_images = [file for file in images if isinstance(file, Path)]
    if local_images and not texts and not binary:
        return _rows_of(lambda: _images(local_images, folder), 0, select)
    binary = sorted([*binary, *images], key=str)
    if binary:
        shown = [relative_name(file, folder) for file in binary[:_MAX_NAMED]]
        listed = ", ".join([*shown, *([f"and {len(binary) - _MAX_NAMED:,} more"] if len(binary) > _MAX_NAMED else [])])
        count = f"{len(binary):,} binary file{'' if len(binary) == 1 else 's'}"
        pdf = "" if reads_pdfs else " PDFs need pypdf: pip install 'batch-agent[pdf]'."
        advice = f"Inputs are texts and PDFs, or only images, as in 'photos/*.png'.{pdf}"
        if not texts:
            raise SpecError(f"{name!r} has no text files, only {count}: {listed}. {advice}")
        notify(f"{count} in {name!r} will not be read: {listed}. {advice}")
    is_remote = isinstance(name, str) and is_object_url(name)
    return _rows_of(lambda: _texts(texts, folder, encoding), sum(map(file_size, texts)), select, is_remote=is_remote)


def _all_rows(files: Sequence[InputFile], select: "RowSelection | None") -> FileRows:
    if len(files) == 1 and files[0].format == "parquet" and select is None:
        return parquet_rows(files[0].path)

    is_remote = not isinstance(files[0].path, Path)
    return _rows_of(lambda: iter_files(files), sum(file.size for file in files), select, is_remote=is_remote)


def _rows_of(
    open_rows: Callable[[], Iterator[Any]], size: int, select: "RowSelection | None", *, is_remote: bool = False
) -> FileRows:
    rows = open_rows if select is None else lambda: select.select(open_rows())
    if size <= _MAX_BYTES or (select is not None and select.is_bounded):
        return list(rows())
    if is_remote:  # a count would download everything once more
        return ThreadIterator(_Reopened(rows))
    return SizedRows(sum(1 for _ in rows()), rows)


@dataclass(frozen=True, slots=True)
class _Reopened:
    """Rows that are opened anew for each iteration."""

    open: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.open()


def relative_name(file: "Path | RemoteFile", folder: Path | str | None) -> str:
    """Name of a file in inputs: relative to the folder, or unchanged."""
    if isinstance(file, Path):
        return str(file if folder is None else file.relative_to(folder))
    return file.url.removeprefix(str(folder or ""))


def _texts(files: "Iterable[Path | RemoteFile]", folder: Path | str | None, encoding: str | None) -> Iterator[Any]:
    """One input per file. `path` is relative to the folder, or unchanged."""
    for file in files:
        text = _pdf(file) if _beginning(file).startswith(PDF) else _text(file, encoding)
        yield {"path": relative_name(file, folder), "name": file.name, "text": text}


def _text(file: "Path | RemoteFile", encoding: str | None) -> str:
    source = InputFile(file, str(file), "text", declared=encoding)
    with translate_errors(str(file)), translate_encoding(source), source.open_text(None) as opened:
        return opened.read()


def _pdf(file: "Path | RemoteFile") -> str:
    with translate_errors(str(file)), open_bytes(file) as opened:
        try:
            return pdf.pdf_text(opened, str(file))
        except ValueError as error:
            raise SpecError(f"{error}.") from error


def _images(files: Iterable[Path], folder: Path | str | None) -> Iterator[Any]:
    """One input per file. The file is read when its agent starts."""
    for file in files:
        yield {"path": relative_name(file, folder), "name": file.name, "image": Image(file)}


def _visible_files(folder: Path) -> list[Path]:
    """The files below a folder in sorted order, without hidden files and Python's compiled ones."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if not any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(folder).parts)
        and file.is_file()
    ]


def _beginning(file: "Path | RemoteFile") -> bytes:
    with translate_errors(str(file)), open_bytes(file) as opened:
        return opened.read(HEAD_BYTES)
