"""Lock of a checkpoint directory, which one process may use at a time."""

import os
from pathlib import Path

from ..atomic_file import open_private, try_lock
from ..core.errors import StoreError


class CheckpointInUse(StoreError):
    """Raised if another process, or another run of this process, uses the checkpoint."""


class DirectoryLock:
    """Advisory lock on an open file, which the system releases however the process dies. A forked child would share the
    open file and keep the lock after its parent's death, so it closes the file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "run.lock"
        self._file: int | None = None

    def take(self) -> None:
        """Raises CheckpointInUse if another process uses this directory."""
        file = open_private(self._path, os.O_RDWR)
        try:
            is_locked = try_lock(file)  # None on Windows, where only SQLite's own locks apply
        except OSError:  # a file system without locks
            os.close(file)
            raise
        if is_locked is False:
            os.close(file)
            raise CheckpointInUse(
                f"Another run is using the checkpoint {str(self._path.parent)!r}. "
                "Wait until it ends, or use another checkpoint_dir."
            )
        self._file = file
        _held.add(self)

    def release(self) -> None:
        """Closes the file without unlocking it, because in a forked child that would release the parent's lock."""
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
