"""Append-only file that other programs read while it grows."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ..atomic_file import temporary_path, try_lock
from ..core.errors import SpecError


class AppendFile:
    """File to which one run at a time appends. When `append` returns, the whole chunk is on disk. The first chunk
    replaces earlier contents, which a run that cannot start therefore leaves unchanged."""

    def __init__(self, path: Path, label: str, target: Path | None = None) -> None:
        """`label`: the option that named the file, for messages. `target`: the file that the user named, if it differs.
        Raises SpecError."""
        self._display_name = f"{label} {str(target or path)!r}"
        self._end = 0
        self._has_begun = False
        self.path = path
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        self._lock()

    def append(self, chunk: bytes) -> None:
        """Appends a chunk. Raises SpecError if the disk is full; nothing of the chunk then remains in the file."""
        with self._translate_errors():
            if not self._has_begun:
                self._truncate(0)
                self._has_begun = True
            try:
                left = memoryview(chunk)
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                self._truncate(self._end)
                raise
        self._end += len(chunk)

    def replace(self, chunks: Iterable[bytes]) -> None:
        """Replaces the whole contents atomically, also for readers. If it raises SpecError, the file is unchanged."""
        draft = temporary_path(self.path)
        with self._translate_errors():
            try:
                with draft.open("wb") as file:
                    file.writelines(chunks)
                self._file.close()
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)
            self._file = self.path.open("ab", buffering=0)
            self._end = self._file.tell()
        self._has_begun = True
        self._lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # `append` has raised it already
            self._file.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpecError(f"{self._display_name} cannot be written: {error.strerror}.") from error

    def _truncate(self, end: int) -> None:
        with suppress(OSError):  # a pipe or a device
            self._file.truncate(end)

    def _lock(self) -> None:
        is_locked: bool | None = None
        with suppress(OSError):  # a file system without locks
            is_locked = try_lock(self._file.fileno())
        if is_locked is False:
            self._file.close()
            raise SpecError(f"{self._display_name} is being written by another run: wait for it, or use another file.")
