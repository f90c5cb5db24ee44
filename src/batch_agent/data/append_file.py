"""A file that grows while others read it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ..atomic_file import try_lock
from ..core.errors import SpecError


class AppendFile:
    """Each piece is on disk, whole, when `append` returns. What was in the file is replaced by the first piece, not
    before: a run that cannot start leaves it as it was. Only one run at a time may have it open."""

    def __init__(self, path: Path, called: str, goal: Path | None = None) -> None:
        """`called`: what a user calls it. `goal`: what the user named, where that is another file. Raises SpecError."""
        self._said = f"{called} {str(goal or path)!r}"
        self._end = 0
        self._has_begun = False
        self.path = path
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        self._keep_others_away()

    def append(self, piece: bytes) -> None:
        """Raises SpecError where there is no more room for it; then nothing of it stays."""
        with self._told():
            if not self._has_begun:
                self._cut(0)
                self._has_begun = True
            try:
                left = memoryview(piece)
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                self._cut(self._end)
                raise
        self._end += len(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of what `append` has said already
            self._file.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpecError(f"{self._said} cannot be written: {error.strerror}.") from error

    def _cut(self, end: int) -> None:
        with suppress(OSError):  # a pipe or a device
            self._file.truncate(end)

    def _keep_others_away(self) -> None:
        is_locked: bool | None = None
        with suppress(OSError):  # a file system without locks
            is_locked = try_lock(self._file.fileno())
        if is_locked is False:
            self._file.close()
            raise SpecError(f"{self._said} is being written by another run: wait for it, or name another file.")
