"""Counter of synchronous commits in a separate file, which reveals lost commits of a database."""

import os
from contextlib import suppress
from pathlib import Path

from ..core.errors import StoreError


class SyncMarker:
    """Counts the synchronous commits of a database. SQLite accepts a missing or truncated log (`-wal`) without an
    error. The lost commits would contain claims of calls, which would then be made twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def open(self, committed: int, *, is_new: bool) -> None:
        """Raises StoreError if the database has fewer commits than were counted. `is_new`: whether the database did not
        exist before, so that an earlier count belongs to another one."""
        mode = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if is_new else 0)
        self._file = os.open(self._path, mode, 0o600)
        counted = _number(os.read(self._file, 32))
        if counted > committed:
            raise StoreError(
                f"The checkpoint {str(self._path.parent)!r} has lost its latest facts: {counted} synchronous commits "
                f"were made, and {committed} are left. Its run.sqlite3-wal is missing or truncated. Restore it, or "
                f"delete {self._path.name} to continue without them: calls made since then may be made again."
            )

    def record(self, number: int) -> None:
        """Records that the commit of this number is on disk. The counter itself is not synced: a count that is too low
        may miss a loss, but never reports a false one."""
        if self._file is not None:
            with suppress(OSError):  # only a precaution: the database itself reports a full disk
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, b"%d\n" % number)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _number(text: bytes) -> int:
    try:
        return int(text.split()[0])
    except (ValueError, IndexError):  # new, or truncated by a power failure
        return 0
