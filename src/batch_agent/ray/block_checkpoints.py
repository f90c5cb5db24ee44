"""Checkpoints of the blocks of a dataset: one directory for each, which the next process finds by the rows."""

import shutil
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

from ..plan.fingerprint import canonical
from ..store.lock import CheckpointInUse
from ..store.sqlite import SqliteStore

_KEPT_BLOCKS = 4
"""Blocks whose temporary checkpoints outlive them: Ray may not have received their results yet when they end."""


def block_name(rows: Iterable[Any]) -> str:
    """Hash of the rows in their order: the same in every process and every run."""
    hashed = blake2b(digest_size=12)
    for row in rows:
        encoded = canonical(row)
        hashed.update(len(encoded).to_bytes(8))
        hashed.update(encoded)
    return hashed.hexdigest()


class BlockCheckpoints:
    """Directories of checkpoints below `root`. A process that runs a block locks its directory. When that process has
    died, the next one with the same rows and the same root opens the directory, and continues where the first one
    ended."""

    def __init__(self, root: Path, *, is_temporary: bool) -> None:
        """`is_temporary`: checkpoints of blocks that ended are deleted, after a few more blocks."""
        self._root = root
        self._is_temporary = is_temporary
        self._ended: deque[Sequence[Path]] = deque()

    @asynccontextmanager
    async def open(self, rows: Sequence[Any]) -> AsyncIterator[tuple[Path, SqliteStore]]:
        """The directory and the store of these rows, which nobody else uses. Blocks with equal rows that run at the
        same time have numbered directories. Raises StoreError."""
        name = block_name(rows)
        for number in count(1):
            folder = self._root / (name if number == 1 else f"{name}-{number}")
            store = SqliteStore(folder)
            try:
                await store.open()
            except CheckpointInUse:
                continue
            try:
                yield folder, store
            finally:
                await store.aclose()
            return

    def block_ended(self, folders: Sequence[Path]) -> None:
        """A block has ended, whose parts have these directories."""
        if self._is_temporary:
            self._ended.append(folders)
            while len(self._ended) > _KEPT_BLOCKS:
                _delete(self._ended.popleft())

    def delete_ended(self) -> None:
        """Deletes the temporary checkpoints of this process."""
        while self._ended:
            _delete(self._ended.popleft())


def _delete(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
