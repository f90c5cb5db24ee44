"""Checkpoint directory filled with the encoded facts of a run that is stored elsewhere."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from ..atomic_file import make_private_dir, open_private
from ..core.errors import StoreError
from ..core.protocols.store import Prices
from ..core.requests import Usage
from .lock import DirectoryLock
from .sqlite import TOTAL_USAGE, index_facts, insert_facts, prepare_tables, sum_of_rows

EncodedFact = tuple[str, str, bytes]
"""Key of the agent, kind and data."""
InputRow = tuple[int, bytes | None, bytes | None]
"""Index, value and error."""


class CheckpointCopy:
    """Writer of the copy. Blocks on disk access. Only one thread may use it at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def save_plan(self, data: bytes, identity: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO plan VALUES (0, ?)", (data,))
        self._db.execute("UPDATE run SET identity = ?", (identity,))

    def save_prices(self, prices: Prices | None) -> None:
        if prices is not None:
            self._db.execute("INSERT OR REPLACE INTO price VALUES (0, ?)", (orjson.dumps(prices).decode(),))

    def add_inputs(self, rows: Sequence[InputRow]) -> None:
        """Adds input rows. A row replaces an earlier one with the same index."""
        self._db.executemany("INSERT OR REPLACE INTO inputs VALUES (?, ?, ?)", rows)

    def add_facts(self, facts: list[EncodedFact]) -> None:
        """Adds the facts of an agent, in order."""
        insert_facts(self._db, facts)

    def save_discarded(self, spent: Usage) -> None:
        """Records discarded usage. `spent`: usage of the whole run. The part that the copied replies do not contain was
        spent on facts that are gone: those of restarted agents, or of workers that had lost their leases."""
        known = sum_of_rows(self._db.execute(TOTAL_USAGE))
        names = ("input", "cached", "output", "written", "written_hour")
        left = {name: max(0, getattr(spent, name) - getattr(known, name)) for name in names}
        if any(left.values()):
            self._db.execute("INSERT INTO discarded VALUES (?)", (orjson.dumps(left).decode(),))


@contextmanager
def open_copy(folder: Path) -> Iterator[CheckpointCopy]:
    """Creates a checkpoint in the directory, which is deleted if the block raises. Raises StoreError if the directory
    already has a checkpoint or cannot be written."""
    path = folder / "run.sqlite3"
    lock = DirectoryLock(folder)
    try:
        make_private_dir(folder)
        lock.take()
        if path.exists():
            raise StoreError(f"There is a checkpoint in {str(folder)!r} already. Choose another directory.")
        os.close(open_private(path, os.O_RDWR))
        with _committed(path) as database:
            yield CheckpointCopy(database)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"The run cannot be copied to {str(folder)!r}: {error}.") from error
    finally:
        lock.release()


@contextmanager
def _committed(path: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        database.execute("BEGIN")
        prepare_tables(database)
        yield database
        index_facts(database)
        database.execute("COMMIT")
    except BaseException:
        database.close()
        path.unlink()
        raise
    database.close()
