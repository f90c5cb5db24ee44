"""One process at a time per checkpoint folder."""

import os
from pathlib import Path

from ..atomic_file import open_private, try_lock
from ..core.errors import StoreError


class DirectoryLock:
    """Held by an open file, so that a process that dies, however it dies, lets go of it. A child that a tool has forked
    would hold the same open file, also after the death of its parent: it closes it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "run.lock"
        self._file: int | None = None

    def take(self) -> None:
        """Raises StoreError when another process works on this folder."""
        file = open_private(self._path, os.O_RDWR)
        try:
            is_locked = try_lock(file)  # None on Windows: SQLite's own locks are left
        except OSError:  # a file system without locks
            os.close(file)
            raise
        if is_locked is False:
            os.close(file)
            raise StoreError(
                f"Another run is using the checkpoint {str(self._path.parent)!r}. "
                "Wait until it ends, or give this run another checkpoint_dir."
            )
        self._file = file
        _held.add(self)

    def release(self) -> None:
        """Does not unlock: in a forked child that would take the lock from its parent."""
        _held.discard(self)
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: set[DirectoryLock] = set()


def _release_in_child() -> None:
    for lock in tuple(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
