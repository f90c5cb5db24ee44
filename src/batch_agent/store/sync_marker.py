"""A number beside a database that shows when commits of it are gone."""

import os
from contextlib import suppress
from pathlib import Path

from ..core.errors import StoreError


class SyncMarker:
    """Counts the synchronous commits of a database in a file of its own. SQLite takes a log (`-wal`) that is missing or
    cut for an empty or shorter one, without a word. The commits in it hold claims of calls: without them, calls would
    be made twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def open(self, committed: int, *, is_new: bool) -> None:
        """Raises StoreError where the database has fewer commits than were counted. `is_new`: the database was not
        there before, and whatever was counted is of another one."""
        mode = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if is_new else 0)
        self._file = os.open(self._path, mode, 0o600)
        counted = _number(os.read(self._file, 32))
        if counted > committed:
            raise StoreError(
                f"The checkpoint {str(self._path.parent)!r} has lost its latest facts: {counted} synchronous commits "
                f"were made, and {committed} are left. Its run.sqlite3-wal is missing or cut. Put it back. Or delete "
                f"{self._path.name} to go on without them: calls made since may be made again."
            )

    def note(self, number: int) -> None:
        """The commit of this number is on the disk. Not synced itself: a count that is too low misses a loss, and
        never sees one that is none."""
        if self._file is not None:
            with suppress(OSError):  # it is a precaution: a full disk is met by the database itself
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, b"%d\n" % number)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _number(text: bytes) -> int:
    try:
        return int(text.split()[0])
    except (ValueError, IndexError):  # new, or cut by a power failure
        return 0
