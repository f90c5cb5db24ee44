"""Facts in a SQLite file. Kill the process anywhere: what was committed is there, and replay goes on from it."""

import asyncio
import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ..atomic_file import make_private_dir, open_private
from ..core.errors import StoreError
from ..core.facts import Fact
from ..core.protocols import Account
from ..core.requests import Usage
from .codec import decode, encode
from .lock import DirectoryLock
from .sync_marker import SyncMarker
from .writer import Work, WriterThread

SCHEMA_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (key TEXT NOT NULL, seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS facts_by_key ON facts (key, seq);
CREATE TABLE IF NOT EXISTS forgotten (input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY CHECK (id = 0), tokens REAL, usd REAL);
CREATE TABLE IF NOT EXISTS plan (id INTEGER PRIMARY KEY CHECK (id = 0), data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS run (id INTEGER PRIMARY KEY CHECK (id = 0), identity TEXT NOT NULL, syncs INTEGER NOT NULL);
"""


_SPENT = """
SELECT SUM(json_extract(data, '$.reply.usage.input')), SUM(json_extract(data, '$.reply.usage.cached')),
       SUM(json_extract(data, '$.reply.usage.output'))
FROM facts WHERE kind = 'replied'
"""
_MOMENT = 0.005
_PAUSES = (0.02, 0.05, 0.1, 0.3, 0.5)
"""Seconds until the lock is tried again: a process that was killed holds its files for a moment longer."""
_AT_ONCE = (64, 16, 4, 1)
_VALUES = {many: ", ".join(["(?, ?, ?)"] * many) for many in _AT_ONCE}
_INSERT = {many: f"INSERT INTO facts (key, kind, data) VALUES {values}" for many, values in _VALUES.items()}  # noqa: S608
_NOT_OPEN = "The checkpoint is not open."
_SPENT_BEFORE = "SELECT SUM(input), SUM(cached), SUM(output) FROM forgotten"


class SqliteStore:
    """`checkpoint_dir=`: one file, one writer process at a time."""

    is_durable = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "run.sqlite3"
        self._lock = DirectoryLock(directory)
        self._marker = SyncMarker(directory / "run.syncs")
        self._writer: WriterThread | None = None
        self._known: set[str] = set()
        self._rows: list[tuple[str, str, bytes]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._is_sync = False
        """Whether one of those who wait needs the disk itself."""
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        try:
            _make_folder(self._directory)
            await self._take_lock()
            is_new = not self._path.exists()
            os.close(open_private(self._path, os.O_RDWR))  # what SQLite puts beside it is as private
            self._writer = WriterThread(self._path)
            self._known = await self._writer.wait(_prepare)
            self._marker.open(await self._writer.wait(_syncs), is_new=is_new)
        except (sqlite3.Error, OSError) as error:
            await self.aclose()
            raise self._failure(error) from error
        except BaseException:
            await self.aclose()
            raise

    async def _take_lock(self) -> None:
        for pause in _PAUSES:
            try:
                self._lock.take()
            except StoreError:
                await asyncio.sleep(pause)
            else:
                return
        self._lock.take()

    async def plan(self) -> Mapping[str, Any] | None:
        row = await self._wait(lambda db: db.execute("SELECT data FROM plan").fetchone())
        if row is None or not self._known:
            return None
        found: Mapping[str, Any] = orjson.loads(row[0])
        return found

    async def keep_plan(self, plan: Mapping[str, Any]) -> None:
        data = orjson.dumps(plan)
        self._opened.post(lambda db: db.execute("INSERT OR REPLACE INTO plan VALUES (0, ?)", (data,)))

    async def identity(self) -> str:
        row = await self._wait(lambda db: db.execute("SELECT identity FROM run").fetchone())
        return str(row[0])

    async def facts(self, key: str) -> Sequence[Fact]:
        if key not in self._known:
            return ()
        rows = await self._wait(
            lambda db: db.execute("SELECT kind, data FROM facts WHERE key = ? ORDER BY seq", (key,)).fetchall()
        )
        try:
            return tuple(decode(kind, data) for kind, data in rows)
        except ValueError as error:
            raise StoreError(f"{self._directory}: the facts of agent {key} cannot be read: {error}") from error

    async def spent(self) -> Usage:
        kept = await self._wait(lambda db: db.execute(_SPENT).fetchone())
        gone = await self._wait(lambda db: db.execute(_SPENT_BEFORE).fetchone())
        return Usage(*(part or 0 for part in kept)) + Usage(*(part or 0 for part in gone))

    async def account(self) -> Account | None:
        row = await self._wait(lambda db: db.execute("SELECT tokens, usd FROM account").fetchone())
        return None if row is None else Account(*row)

    async def keep_account(self, account: Account) -> None:
        row = (account.tokens, account.usd)
        await self._wait(lambda db: db.execute("INSERT OR REPLACE INTO account VALUES (0, ?, ?)", row))

    def record(self, key: str, fact: Fact) -> None:
        if self._writer is None:
            raise StoreError(_NOT_OPEN)
        self._known.add(key)
        self._rows.append((key, *encode(fact)))
        self._flush_soon()

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        rows = [(key, *encode(fact)) for fact in facts]
        self._known.add(key)
        self._flush()
        self._opened.post(lambda db: _restart(db, key, rows))

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        was_sync, self._is_sync = self._is_sync, self._is_sync or sync
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        if not sync:
            self._flush_soon()
        elif not was_sync:  # a call holds its turn meanwhile: those of this moment go, others while these are written
            loop.call_soon(self._flush)
        try:
            await waiter
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _flush_soon(self) -> None:
        """What is recorded within a moment goes to the writer together, and so do those who wait for it: to wake a
        thread for each fact would cost more than to write it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, self._rows = self._rows, []
        waiters, self._waiters = self._waiters, []
        is_sync, self._is_sync = self._is_sync, False
        if self._writer is None:
            return
        if is_sync:
            self._writer.wait_for(lambda db: _insert_synced(db, rows), waiters, synced=self._marker.note)
        elif waiters:
            self._writer.wait_for(lambda db: _insert(db, rows), waiters)
        elif rows:
            self._writer.post(lambda db: _insert(db, rows))

    async def aclose(self) -> None:
        self._flush()
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                await writer.stop()
        finally:
            self._marker.close()
            self._lock.release()

    @property
    def _opened(self) -> WriterThread:
        if self._writer is None:
            raise StoreError(_NOT_OPEN)
        return self._writer

    async def _wait(self, work: Work) -> Any:
        try:
            self._flush()
            return await self._opened.wait(work)
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StoreError:
        if type(error) is sqlite3.DatabaseError:  # its subclasses are about the disk and the statements
            return StoreError(f"The checkpoint {str(self._path)!r} is damaged ({error}). Move it away to start afresh.")
        return StoreError(
            f"The checkpoint in {str(self._directory)!r} cannot be used: {error}. Check that the folder is writable "
            "and the disk has room. What was stored before is safe; run again with the same checkpoint_dir to go on."
        )


def _make_folder(folder: Path) -> None:
    """SQLite sees to it that a power cut does not take its files; this is about the folder that they are in."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    make_private_dir(folder)
    for each in new:
        with suppress(OSError):  # a system that does not open folders
            opened = os.open(each.parent, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def _insert(db: sqlite3.Connection, rows: list[tuple[str, str, bytes]]) -> None:
    """Many rows in one statement: between statements the thread gives the interpreter to the event loop, and has to
    wait to get it back."""
    for many in _AT_ONCE:
        while len(rows) >= many:
            now, rows = rows[:many], rows[many:]
            db.execute(_INSERT[many], [value for row in now for value in row])


def _insert_synced(db: sqlite3.Connection, rows: list[tuple[str, str, bytes]]) -> int:
    """The number of the commit."""
    _insert(db, rows)
    db.execute("UPDATE run SET syncs = syncs + 1")
    return _syncs(db)


def _restart(db: sqlite3.Connection, key: str, rows: list[tuple[str, str, bytes]]) -> None:
    """What the agent said goes; what it cost stays. In one order, and so in one commit."""
    db.execute(f"INSERT INTO forgotten {_SPENT} AND key = ? HAVING COUNT(*) > 0", (key,))
    db.execute("DELETE FROM facts WHERE key = ?", (key,))
    _insert(db, rows)


def _prepare(db: sqlite3.Connection) -> set[str]:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The checkpoint was written by a newer version of batch-agent (format {version}; this version reads "
            f"{SCHEMA_VERSION}). Upgrade batch-agent, or give this run another checkpoint_dir."
        )
    db.execute("COMMIT")  # the mode of the journal cannot be changed inside a transaction
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA fullfsync = ON")  # on macOS a sync is none without it
    db.execute("BEGIN")
    for statement in filter(str.strip, _TABLES.split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    known = {key for (key,) in db.execute("SELECT DISTINCT key FROM facts")}
    identity = "" if known else secrets.token_hex(8)  # calls that are begun keep the keys that they were begun with
    db.execute("INSERT OR IGNORE INTO run VALUES (0, ?, 0)", (identity,))
    return known


def _syncs(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT syncs FROM run").fetchone()[0])
