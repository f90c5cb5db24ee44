"""Durable files, batches and finished lines: contents are in files, the rest in SQLite. Once a method has returned, its
data survives a kill of the process."""

import asyncio
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection, Error, connect
from typing import Any

import orjson

from ..atomic_file import make_private_dir, open_private
from ..batch_api.api_error import ApiError, not_found
from ..batch_api.resources import Batch, StoredFile, batch_from_json
from ..core.errors import StoreError
from ..core.fast_dataclass import dataclass
from ..store.lock import DirectoryLock
from ..store.writer import Work, WriterThread

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, filename TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, resource BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL, ok INTEGER NOT NULL, output BLOB NOT NULL,
    PRIMARY KEY (batch, number)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class FinishedLine:
    """A line of a batch that needs no further request. `output`: its line in the output or error file."""

    number: int
    ok: bool
    output: bytes


class BatchStore:
    """Store of one server, in a directory that no other process uses. All batches are also in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._contents = directory / "files"
        self._lock = DirectoryLock(directory)
        self._writer: WriterThread | None = None
        self.files: dict[str, StoredFile] = {}
        """Files in order of creation, as are batches."""
        self.batches: dict[str, Batch] = {}

    def open(self) -> None:
        """Opens the store. Blocks for a moment. Raises StoreError."""
        database = self._directory / "batches.sqlite"
        try:
            make_private_dir(self._contents)
            self._take_lock()
            os.close(open_private(database, os.O_RDWR))
            with closing(connect(database, isolation_level=None)) as connection:
                self._load(connection)
            self._remove_orphans()
        except (OSError, Error) as error:
            self._lock.release()
            raise StoreError(f"The batches in {str(self._directory)!r} cannot be opened: {error}.") from error
        except StoreError:
            self._lock.release()
            raise
        self._writer = WriterThread(database)
        self._writer.post(_sync_on_demand)

    async def aclose(self) -> None:
        if self._writer is not None:
            await self._writer.stop()
        self._lock.release()

    def path(self, file_id: str) -> Path:
        """Path of the contents of a file, which may not exist yet."""
        return self._contents / file_id

    def file(self, file_id: str) -> StoredFile:
        """Raises ApiError."""
        if file_id not in self.files:
            raise not_found("File", file_id)
        return self.files[file_id]

    def batch(self, batch_id: str) -> Batch:
        """Raises ApiError."""
        if batch_id not in self.batches:
            raise not_found("Batch", batch_id, "batch_id")
        return self.batches[batch_id]

    async def add_file(self, file_id: str, filename: str, purpose: str) -> StoredFile:
        """Records a file whose contents are in place."""
        file = StoredFile(file_id, filename, purpose, self.path(file_id).stat().st_size, int(time.time()))
        await self._write(lambda connection: _insert_file(connection, file))
        self.files[file.id] = file
        return file

    async def delete_file(self, file_id: str) -> None:
        """Deletes a file. Raises ApiError, also for the input of a batch that has not ended."""
        self.file(file_id)
        for batch in self.batches.values():
            if batch.input_file_id == file_id and not batch.has_ended:
                raise ApiError(f"The file is the input of {batch.id}, which has not ended. Cancel it first.", 409)
        await self._write(lambda connection: connection.execute("DELETE FROM files WHERE id = ?", [file_id]))
        self.files.pop(file_id, None)
        self.path(file_id).unlink(missing_ok=True)

    async def put_batch(self, batch: Batch) -> Batch:
        """Adds or replaces a batch, in memory at once. Returns when it is committed."""
        self.batches[batch.id] = batch
        await self._write(lambda connection: _put_batch(connection, batch))
        return batch

    async def end_batch(self, batch: Batch, files: Sequence[StoredFile]) -> None:
        """Replaces an ended batch, adds its files and forgets its lines, atomically."""

        def work(connection: Connection) -> None:
            for file in files:
                _insert_file(connection, file)
            _put_batch(connection, batch)
            connection.execute("DELETE FROM lines WHERE batch = ?", [batch.id])

        await self._write(work)
        self.files |= {file.id: file for file in files}
        self.batches[batch.id] = batch

    async def record_line(self, batch_id: str, line: FinishedLine) -> None:
        """Records a line. Returns when it is committed. A power failure may lose the last lines, which are then sent
        again."""
        row = batch_id, line.number, line.ok, line.output
        query = "INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?)"
        await self._write(lambda connection: connection.execute(query, row), synced=False)

    async def finished(self, batch_id: str) -> dict[int, bool]:
        """The numbers of a batch's finished lines, and whether each succeeded."""
        query = "SELECT number, ok FROM lines WHERE batch = ?"
        found = await self._write(lambda connection: connection.execute(query, [batch_id]).fetchall(), synced=False)
        return {number: bool(ok) for number, ok in found}

    def read_finished(self, batch_id: str) -> Iterator[FinishedLine]:
        """The finished lines of a batch in order. Blocks, so call it in a thread."""
        with closing(connect(self._directory / "batches.sqlite")) as connection:
            query = "SELECT number, ok, output FROM lines WHERE batch = ? ORDER BY number"
            for number, ok, output in connection.execute(query, [batch_id]):
                yield FinishedLine(number, bool(ok), output)

    async def _write(self, work: Work, *, synced: bool = True) -> Any:
        """Commits `work`. `synced`: whether the commit also survives a power failure."""
        assert self._writer is not None
        done = asyncio.get_running_loop().create_future()
        self._writer.wait_for(work, [done], synced=_ignore if synced else None)
        try:
            return await done
        except Error as error:
            raise StoreError(f"The batches in {str(self._directory)!r} cannot be written: {error}.") from error

    def _take_lock(self) -> None:
        try:
            self._lock.take()
        except StoreError as error:
            raise StoreError(
                f"Another server uses the batches in {str(self._directory)!r}. Stop it, or use another folder."
            ) from error

    def _remove_orphans(self) -> None:
        """Removes the contents of uploads and outputs that a killed process did not record."""
        for path in self._contents.iterdir():
            if path.name not in self.files:
                path.unlink()

    def _load(self, connection: Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise StoreError(f"{str(self._directory)!r} was written by another version of batch-agent.")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        columns = "id, filename, purpose, bytes, created_at"
        for row in connection.execute(f"SELECT {columns} FROM files ORDER BY number"):  # noqa: S608
            self.files[row[0]] = StoredFile(*row)
        for (resource,) in connection.execute("SELECT resource FROM batches ORDER BY number"):
            batch = batch_from_json(orjson.loads(resource))
            self.batches[batch.id] = batch


def _sync_on_demand(connection: Connection) -> None:
    connection.execute("COMMIT")  # not possible inside a transaction
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN")


def _ignore(_: Any) -> None:
    pass


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _insert_file(connection: Connection, file: StoredFile) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO files (id, filename, purpose, bytes, created_at) VALUES (?, ?, ?, ?, ?)",
        (file.id, file.filename, file.purpose, file.bytes, file.created_at),
    )


def _put_batch(connection: Connection, batch: Batch) -> None:
    connection.execute(
        "INSERT INTO batches (id, resource) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET resource = excluded.resource",
        (batch.id, orjson.dumps(batch.as_json())),
    )
