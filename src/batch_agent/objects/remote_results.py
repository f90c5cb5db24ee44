"""Writers of results in an object store: to a folder of parts, or to one object."""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.results import AgentResult
from .part_folder import PartFolder, Totals
from .store_client import StoreClient

_SUFFIXES = (".jsonl", ".csv", ".parquet")
_PART_BYTES = 64 * 1024 * 1024
_PART_SECONDS = 300.0
"""A part is uploaded when it reaches this size or age, so that readers also see results of a slow run."""


class FileWriter(Protocol):
    """An open results file on this machine."""

    def write(self, result: AgentResult) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


OpenFile = Callable[[Path], FileWriter]


def open_remote_results(url: str, label: str, open_file: OpenFile) -> FileWriter:
    """Opens `s3://bucket/out/`, a folder of .jsonl parts; `s3://bucket/out/*.parquet`, a folder of Parquet parts; or
    `s3://bucket/out.jsonl`, one object that is written at the end. `open_file`: opens a file on this machine. Blocks.
    Raises SpecError for an unreachable store."""
    folder, _, name = url.rpartition("/")
    if not name:
        return PartWriter(PartFolder(url, ".jsonl", label), ".jsonl", open_file)
    if name in {f"*{suffix}" for suffix in _SUFFIXES}:
        return PartWriter(PartFolder(f"{folder}/", name[1:], label), name[1:], open_file)
    if not name.endswith(_SUFFIXES) or "*" in name:
        raise SpecError(
            f"{label} {url!r}: results are a folder, with a slash at the end, a folder with a format, as in "
            f"{folder}/*.parquet, or one .jsonl, .csv or .parquet object."
        )
    return ObjectWriter(url, label, open_file)


@dataclass(slots=True)
class _Part:
    """A part that grows on this machine."""

    path: Path
    file: FileWriter
    due: float
    """Latest time of the upload, in seconds of the monotonic clock."""
    totals: Totals = Totals()


class PartWriter:
    """Results in a folder of parts. When `write` returns, the result is in a file on this machine. A thread uploads the
    file when it is large or old enough, while the next one grows. If uploads fail for minutes, the next `write` raises
    SpecError, and the files that have not been uploaded stay on this machine."""

    def __init__(self, folder: PartFolder, suffix: str, open_file: OpenFile) -> None:
        folder.check()
        self._folder = folder
        self._suffix = suffix
        self._open_file = open_file
        self._directory = Path(tempfile.mkdtemp(prefix="batch-agent-out-"))
        self._opened = 0
        self._part: _Part | None = None
        self._problem: SpecError | None = None
        self._is_closing = self._has_failed = False
        self._changed = threading.Condition()
        """Guards all of the above; signalled when a part begins or is full, and at the end."""
        self._thread = threading.Thread(target=self._upload_parts, name="batch-agent-out", daemon=True)
        self._thread.start()

    def write(self, result: AgentResult) -> None:
        with self._changed:
            if self._problem is not None:
                raise self._problem
            part = self._part
            if part is None:
                part = self._part = self._begin()
                self._changed.notify()
            part.file.write(result)
            part.totals = part.totals.plus(result)
            if _size(part.path) >= _PART_BYTES:
                part.due = 0.0
                self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Uploads the last part and marks the manifest as complete, unless there was an error. Raises SpecError, unless
        there was another error."""
        with self._changed:
            self._is_closing, self._has_failed = True, kind is not None
            self._changed.notify()
        self._thread.join()
        if self._problem is None and kind is None:
            try:
                self._folder.finish()
            except SpecError as problem:
                self._problem = problem
        if self._problem is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        elif kind is None:
            raise self._problem

    def _begin(self) -> _Part:
        path = self._directory / f"part-{self._opened:05}{self._suffix}"
        self._opened += 1
        return _Part(path, self._open_file(path), time.monotonic() + _PART_SECONDS)

    def _upload_parts(self) -> None:
        """Uploads parts in the thread, until the writer is closed or an upload fails."""
        while (part := self._next()) is not None:
            try:
                part.file.__exit__(None, None, None)
                self._folder.add(part.path, part.totals, has_failed=self._has_failed)
            except SpecError as error:
                with self._changed:
                    self._problem = SpecError(f"{error} Results that are not there are in {str(self._directory)!r}.")
                return
            part.path.unlink(missing_ok=True)

    def _next(self) -> _Part | None:
        """Waits for the next part that is due. Returns None at the end."""
        with self._changed:
            while not self._is_closing:
                part = self._part
                left = None if part is None else part.due - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            part, self._part = self._part, None
            return part


class ObjectWriter:
    """Results in one object, which appears as a whole at the end, because an object cannot grow. Until then, they are
    in a file on this machine, which stays there if the object cannot be written."""

    def __init__(self, url: str, label: str, open_file: OpenFile) -> None:
        self._url = url
        self._store = StoreClient(url, label)
        self._store.files(url)  # a run that cannot write does not start
        self._directory = Path(tempfile.mkdtemp(prefix="batch-agent-out-"))
        self._path = self._directory / url.rpartition("/")[2]
        self._file = open_file(self._path)
        self._has_rows = False

    def write(self, result: AgentResult) -> None:
        self._file.write(result)
        self._has_rows = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)
        if kind is None or self._has_rows:
            try:
                self._store.upload(self._path, self._url)
            except SpecError as problem:
                if kind is None:
                    raise SpecError(f"{problem} All results are in {str(self._path)!r}.") from problem
                return
        shutil.rmtree(self._directory, ignore_errors=True)


def _size(path: Path) -> int:
    """Bytes so far. Rows of a Parquet file are first in its spool file."""
    for file in (path.with_name(f"{path.name}.rows.jsonl"), path):
        with contextlib.suppress(FileNotFoundError):
            return file.stat().st_size
    return 0
