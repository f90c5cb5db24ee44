"""Checkpoints of the blocks of a dataset: one directory per block, which the next process finds by the rows."""

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
"""Number of ended blocks whose temporary checkpoints are kept, because Ray may not have received their results yet."""


def block_name(rows: Iterable[Any]) -> str:
    """Hash of the rows in order, which is the same in every process and run."""
    hashed = blake2b(digest_size=12)
    for row in rows:
        encoded = canonical(row)
        hashed.update(len(encoded).to_bytes(8))
        hashed.update(encoded)
    return hashed.hexdigest()


class BlockCheckpoints:
    """Directories of checkpoints below `root`. A process that runs a block locks its directory. After that process has
    died, the next one with the same rows and root opens the directory and continues where the first one stopped."""

    def __init__(self, root: Path, *, is_temporary: bool) -> None:
        """`is_temporary`: whether checkpoints of ended blocks are deleted, after a few further blocks."""
        self._root = root
        self._is_temporary = is_temporary
        self._ended: deque[Sequence[Path]] = deque()

    @asynccontextmanager
    async def open(self, rows: Sequence[Any]) -> AsyncIterator[tuple[Path, SqliteStore]]:
        """Opens the directory and the store of these rows, for exclusive use. Blocks with equal rows that run at the
        same time get numbered directories. Raises StoreError."""
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
        """Notes that a block has ended. `folders`: directories of its parts."""
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
