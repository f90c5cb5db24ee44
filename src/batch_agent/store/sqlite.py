"""Store of facts in a SQLite file. Committed facts survive the death of the process at any point."""

import asyncio
import os
import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ..atomic_file import make_private_dir, open_private
from ..core.errors import StoreError
from ..core.facts import Fact
from ..core.json import dumps, loads
from ..core.protocols.store import Account, Control, Prices, Submission, SubmittedLine
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError
from ..plan.hash_set import HashSet
from ..plan.row_keys import row_key
from .codec import MAX_INPUT_BYTES, decode, encode, encode_error, encode_input
from .lock import DirectoryLock
from .sync_marker import SyncMarker
from .writer import Work, WriterThread

SCHEMA_VERSION = 1
FACT_INDEX = "facts_by_key"
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (key TEXT NOT NULL, seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS discarded (usage TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY CHECK (id = 0), tokens REAL, usd REAL);
CREATE TABLE IF NOT EXISTS plan (id INTEGER PRIMARY KEY CHECK (id = 0), data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS inputs (position INTEGER PRIMARY KEY, data BLOB, error BLOB);
CREATE TABLE IF NOT EXISTS price (id INTEGER PRIMARY KEY CHECK (id = 0), numbers TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS submissions (
  seq INTEGER PRIMARY KEY, wave TEXT NOT NULL UNIQUE, at REAL NOT NULL, file TEXT NOT NULL, batch TEXT NOT NULL,
  has_ended INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS submitted_lines (
  seq INTEGER PRIMARY KEY, wave TEXT NOT NULL, key TEXT NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL,
  usd REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS submitted_by_key ON submitted_lines (wave, key);
CREATE TABLE IF NOT EXISTS controls (seq INTEGER PRIMARY KEY, name TEXT NOT NULL, value BLOB NOT NULL, given BLOB);
CREATE TABLE IF NOT EXISTS run (id INTEGER PRIMARY KEY CHECK (id = 0), identity TEXT NOT NULL, syncs INTEGER NOT NULL);
"""


_REPLIES = "SELECT json_extract(CAST(data AS TEXT), '$.reply.usage') AS usage FROM facts WHERE kind = 'replied'"


def _sums(record: str, path: str) -> str:
    kinds = ("input", "cached", "output", "written", "written_hour")
    return ", ".join(f"total(json_extract({record}, '$.{path}{kind}'))" for kind in kinds)


_LANE = "CASE json_extract(value, '$.lane') WHEN 'flex' THEN 1 WHEN 'batch' THEN 2 ELSE 0 END"
TOTAL_USAGE = (
    f"WITH replies AS ({_REPLIES} UNION ALL SELECT usage FROM discarded) "  # noqa: S608 - not from outside
    f"SELECT {_sums('usage', '')}, 0, 0, 0, 0, 0, 0, 0 FROM replies UNION ALL "
    f"SELECT 0, 0, 0, 0, 0, {_LANE} AS lane, json_extract(value, '$.above') AS above, {_sums('value', 'tokens.')} "
    "FROM replies, json_each(usage, '$.parts') GROUP BY lane, above"
)
"""Query for the usage of all replies, in rows for `Usage.of_counts`: in total, and of each part."""
_FLUSH_DELAY = 0.005
_LOCK_DELAYS = (0.02, 0.05, 0.1, 0.3, 0.5)
"""Seconds between attempts to take the lock, because a killed process holds its files a moment longer."""
_ROWS_PER_STATEMENT = (64, 16, 4, 1)
_VALUES = {many: ", ".join(["(?, ?, ?)"] * many) for many in _ROWS_PER_STATEMENT}
_INSERT = {many: f"INSERT INTO facts (key, kind, data) VALUES {values}" for many, values in _VALUES.items()}  # noqa: S608
_INPUTS_PER_STATEMENT = 256
_MAX_READ_AHEAD_BYTES = 64_000_000
_MAX_RECENT = 4096
_NOT_OPEN = "The checkpoint is not open."


def sum_of_rows(rows: Iterable[Sequence[float]]) -> Usage:
    """The sum of the rows returned by the usage queries."""
    return sum((Usage.of_counts(list(map(int, row))) for row in rows), NO_USAGE)


class SqliteStore:
    """Store of `checkpoint_dir=`: one file, one writer process at a time."""

    is_durable = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "run.sqlite3"
        self._lock = DirectoryLock(directory)
        self._marker = SyncMarker(directory / "run.syncs")
        self._writer: WriterThread | None = None
        self._known = HashSet()
        """Hashes of the keys that have facts. Other keys need no query."""
        self._recent = set[str]()
        """Keys that were recently added to the hashes. An agent has several facts, and a lookup of a string takes a
        tenth of the time of adding a hash."""
        self._read_ahead: dict[str, tuple[tuple[Fact, ...], int]] = {}
        """Facts that were read in a group, kept until they are requested or have changed."""
        self._read_ahead_room = _MAX_READ_AHEAD_BYTES
        self._rows: list[tuple[str, str, bytes]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._is_sync = False
        """Whether a waiter needs the facts to be synced to disk."""
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        try:
            _make_directory(self._directory)
            await self._take_lock()
            is_new = not self._path.exists()
            os.close(open_private(self._path, os.O_RDWR))  # SQLite creates its other files with the same mode
            self._writer = WriterThread(self._path, at_end=index_facts)
            self._known = await self._writer.wait(prepare_tables)
            self._recent.clear()
            self._marker.open(await self._writer.wait(_syncs), is_new=is_new)
        except (sqlite3.Error, OSError) as error:
            await self.aclose()
            raise self._failure(error) from error
        except BaseException:
            await self.aclose()
            raise

    async def _take_lock(self) -> None:
        for delay in _LOCK_DELAYS:
            try:
                self._lock.take()
            except StoreError:
                await asyncio.sleep(delay)
            else:
                return
        self._lock.take()

    async def plan(self) -> Mapping[str, Any] | None:
        row = await self._wait(lambda db: db.execute("SELECT data FROM plan").fetchone())
        if row is None or not self._known:
            return None
        found: Mapping[str, Any] = orjson.loads(row[0])
        return found

    async def save_plan(self, plan: Mapping[str, Any]) -> None:
        data = orjson.dumps(plan)
        self._opened.post(lambda db: db.execute("INSERT OR REPLACE INTO plan VALUES (0, ?)", (data,)))

    async def identity(self) -> str:
        row = await self._wait(lambda db: db.execute("SELECT identity FROM run").fetchone())
        return str(row[0])

    async def facts(self, key: str) -> Sequence[Fact]:
        if _hashed(key) not in self._known:
            return ()
        if (known := self._drop_read_ahead(key)) is not None:
            await asyncio.sleep(0)  # thousands of agents are read in succession: others need a turn
            return known
        return self._decode(key, await self._wait(lambda db: _facts_of(db, key)))

    @property
    def has_facts(self) -> bool:
        return bool(self._known)

    async def max_ended(self, samples: int) -> int:
        """Number of agents that may have ended: those that have facts, and those whose inputs were rejected. An input
        has `samples` agents."""
        [rejected] = await self._wait(lambda db: db.execute("SELECT count(error) FROM inputs").fetchone())
        return len(self._known) + int(rejected) * samples

    async def fact_lists(self, keys: Sequence[str]) -> Sequence[Sequence[Fact]]:
        """Facts of several agents, in one turn of the writer. They are kept for `facts` if there is room, so none of
        these agents may run meanwhile."""
        found = {key: self._read_ahead[key][0] for key in keys if key in self._read_ahead}
        stored = [key for key in keys if key not in found and _hashed(key) in self._known]
        groups = await self._wait(lambda db: [_facts_of(db, key) for key in stored]) if stored else []
        for key, rows in zip(stored, groups, strict=True):
            found[key] = self._decode(key, rows)
            size = sum(len(data) for _, data in rows)
            if size < self._read_ahead_room:
                self._read_ahead[key] = found[key], size
                self._read_ahead_room -= size
        return [found.get(key, ()) for key in keys]

    def _drop_read_ahead(self, key: str) -> tuple[Fact, ...] | None:
        found, size = self._read_ahead.pop(key, (None, 0))
        self._read_ahead_room += size
        return found

    def _decode(self, key: str, rows: list[tuple[str, bytes]]) -> tuple[Fact, ...]:
        try:
            return tuple(decode(kind, data) for kind, data in rows)
        except ValueError as error:
            raise StoreError(f"{self._directory}: the facts of agent {row_key(key)} cannot be read: {error}") from error

    async def spent(self) -> Usage:
        return sum_of_rows(await self._wait(lambda db: db.execute(TOTAL_USAGE).fetchall()))

    async def account(self) -> Account | None:
        row = await self._wait(lambda db: db.execute("SELECT tokens, usd FROM account").fetchone())
        return None if row is None else Account(*row)

    async def save_account(self, account: Account) -> None:
        row = (account.tokens, account.usd)
        await self._wait(lambda db: db.execute("INSERT OR REPLACE INTO account VALUES (0, ?, ?)", row))

    async def submissions(self) -> Sequence[Submission]:
        found: Sequence[Submission] = await self._wait(_submissions)
        return found

    async def save_submission(self, submission: Submission) -> None:
        self._flush()
        saved = asyncio.get_running_loop().create_future()
        self._opened.wait_for(lambda db: _save_submission(db, submission), [saved], synced=self._marker.record)
        try:
            await saved
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def take_lines(self, wave: str, keys: Sequence[str]) -> None:
        rows = [(wave, key) for key in keys]
        self._flush()
        self._opened.post(lambda db: db.executemany("DELETE FROM submitted_lines WHERE wave = ? AND key = ?", rows))

    async def controls(self) -> Sequence[Control]:
        rows = await self._wait(
            lambda db: db.execute("SELECT name, value, given FROM controls ORDER BY seq").fetchall()
        )
        return [Control(name, loads(value), loads(given)) for name, value, given in rows]

    async def save_controls(self, controls: Sequence[Control], first_index: int | None = None) -> None:
        rows = [(each.name, dumps(each.value), dumps(each.given)) for each in controls]
        added = [value for each in controls if each.name == "add" for value in each.value]
        inputs = [] if first_index is None else [(at, encode_input(each)) for at, each in enumerate(added, first_index)]

        def save(db: sqlite3.Connection) -> None:
            db.executemany("INSERT INTO controls (name, value, given) VALUES (?, ?, ?)", rows)
            db.executemany("INSERT OR REPLACE INTO inputs VALUES (?, ?, NULL)", inputs)

        await self._wait(save)

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        self._opened.post(lambda db: _save_run(db, inputs, prices))

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        row = (index, encode_input(value), encode_error(error))
        self._opened.post(lambda db: db.execute("INSERT OR REPLACE INTO inputs VALUES (?, ?, ?)", row))

    def record(self, key: str, fact: Fact) -> None:
        if self._writer is None:
            raise StoreError(_NOT_OPEN)
        if key not in self._recent:
            self._add_known(key)
        if self._read_ahead:
            self._drop_read_ahead(key)
        self._rows.append((key, *encode(fact)))
        if self._timer is None:
            self._flush_soon()

    def _add_known(self, key: str) -> None:
        self._known.add(_hashed(key))
        if len(self._recent) >= _MAX_RECENT:
            self._recent.clear()
        self._recent.add(key)

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        rows = [(key, *encode(fact)) for fact in facts]
        self._known.add(_hashed(key))
        self._drop_read_ahead(key)
        self._flush()
        self._opened.post(lambda db: _restart(db, key, rows))

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        was_sync, self._is_sync = self._is_sync, self._is_sync or sync
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        if not sync:
            if self._timer is None:
                self._flush_soon()
        elif (
            not was_sync
        ):  # a tool call waits: write this iteration's facts now; later ones follow while these are written
            loop.call_soon(self._flush)
        try:
            await waiter
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _flush_soon(self) -> None:
        """Collects facts and waiters for a moment, because waking the thread for each fact would cost more than writing
        it."""
        self._timer = asyncio.get_running_loop().call_later(_FLUSH_DELAY, self._flush)

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
            self._writer.wait_for(lambda db: _insert_synced(db, rows), waiters, synced=self._marker.record)
        elif waiters:
            self._writer.wait_for(lambda db: insert_facts(db, rows), waiters)
        elif rows:
            self._writer.post(lambda db: insert_facts(db, rows))

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
            return StoreError(f"The checkpoint {str(self._path)!r} is damaged ({error}). Move it away to start over.")
        return StoreError(
            f"The checkpoint in {str(self._directory)!r} cannot be used: {error}. Check that the directory is writable "
            "and the disk has space. What was stored before is safe; run again with the same checkpoint_dir to resume."
        )


def _make_directory(directory: Path) -> None:
    """Creates the directory so that it survives a power failure. SQLite does so for the files in it."""
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    make_private_dir(directory)
    for each in new:
        with suppress(OSError):  # a system on which directories cannot be opened
            opened = os.open(each.parent, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def insert_facts(db: sqlite3.Connection, rows: list[tuple[str, str, bytes]]) -> None:
    """Inserts many rows per statement. After each statement, the thread waits to get the interpreter lock back from the
    event loop."""
    for count in _ROWS_PER_STATEMENT:
        while len(rows) >= count:
            chunk, rows = rows[:count], rows[count:]
            db.execute(_INSERT[count], [value for row in chunk for value in row])


def index_facts(db: sqlite3.Connection) -> None:
    """Creates the index by key if it is missing. A run that only adds facts does so at its end: sorting all keys once
    costs at most a tenth of inserting them one by one."""
    db.execute(f"CREATE INDEX IF NOT EXISTS {FACT_INDEX} ON facts (key, seq)")


def _facts_of(db: sqlite3.Connection, key: str) -> list[tuple[str, bytes]]:
    index_facts(db)
    return db.execute("SELECT kind, data FROM facts WHERE key = ? ORDER BY seq", (key,)).fetchall()


def _save_run(db: sqlite3.Connection, inputs: Sequence[Any], prices: Prices | None) -> None:
    _replace_inputs(db, inputs)
    db.execute("DELETE FROM price")
    if prices is not None:
        db.execute("INSERT INTO price VALUES (0, ?)", (orjson.dumps(prices).decode(),))


def _replace_inputs(db: sqlite3.Connection, values: Sequence[Any]) -> None:
    """Encodes and inserts many inputs per statement, like `insert_facts`, in portions that fit into memory twice."""
    db.execute("DELETE FROM inputs")
    room = MAX_INPUT_BYTES
    for first in range(0, len(values), _INPUTS_PER_STATEMENT):
        chunk = values[first : first + _INPUTS_PER_STATEMENT]
        rows = [encode_input(value) if room > 0 else None for value in chunk]
        room -= sum(len(data or b"") for data in rows)
        places = ", ".join(["(?, ?, NULL)"] * len(rows))
        parameters = [value for row in enumerate(rows, first) for value in row]
        db.execute(f"INSERT INTO inputs VALUES {places}", parameters)  # noqa: S608


def _insert_synced(db: sqlite3.Connection, rows: list[tuple[str, str, bytes]]) -> int:
    """Inserts facts, and returns the number of the synchronous commit."""
    insert_facts(db, rows)
    db.execute("UPDATE run SET syncs = syncs + 1")
    return _syncs(db)


def _submissions(db: sqlite3.Connection) -> list[Submission]:
    lines: dict[str, list[SubmittedLine]] = {}
    for wave, *line in db.execute("SELECT wave, key, input, output, usd FROM submitted_lines ORDER BY seq"):
        lines.setdefault(wave, []).append(SubmittedLine(*line))
    rows = db.execute("SELECT wave, at, file, batch, has_ended FROM submissions ORDER BY seq")
    return [
        Submission(wave, at, tuple(lines[wave]), file, batch, bool(has_ended))
        for wave, at, file, batch, has_ended in rows
        if wave in lines
    ]


def _save_submission(db: sqlite3.Connection, submission: Submission) -> int:
    """Saves a submission, and returns the number of the synchronous commit. Lines are written only with a new
    submission."""
    wave, known = submission.wave, (submission.file, submission.batch, submission.has_ended)
    updated = db.execute("UPDATE submissions SET file = ?, batch = ?, has_ended = ? WHERE wave = ?", (*known, wave))
    if not updated.rowcount:
        db.execute(
            "INSERT INTO submissions (wave, at, file, batch, has_ended) VALUES (?, ?, ?, ?, ?)",
            (wave, submission.at, *known),
        )
        rows = [(wave, line.key, line.input, line.output, line.usd) for line in submission.lines]
        db.executemany("INSERT INTO submitted_lines (wave, key, input, output, usd) VALUES (?, ?, ?, ?, ?)", rows)
    db.execute("UPDATE run SET syncs = syncs + 1")
    return _syncs(db)


def _restart(db: sqlite3.Connection, key: str, rows: list[tuple[str, str, bytes]]) -> None:
    """Deletes the facts of an agent but keeps its usage, in one job and therefore one commit."""
    index_facts(db)
    db.execute(f"INSERT INTO discarded {_REPLIES} AND key = ?", (key,))
    db.execute("DELETE FROM facts WHERE key = ?", (key,))
    insert_facts(db, rows)


def _hashed(key: str) -> int:
    return hash(key) % 2**64


def prepare_tables(db: sqlite3.Connection) -> HashSet:
    """Creates missing tables in a transaction. Returns the hashes of the keys that have facts. Raises StoreError for a
    newer format."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The checkpoint was written by a newer version of batch-agent (format {version}; this version reads "
            f"{SCHEMA_VERSION}). Upgrade batch-agent, or use another checkpoint_dir."
        )
    db.execute("COMMIT")  # the journal mode cannot be changed inside a transaction
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA fullfsync = ON")  # without it, macOS does not flush to the disk
    db.execute("BEGIN")
    for statement in filter(str.strip, _TABLES.split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    known = HashSet()
    if db.execute("SELECT 1 FROM facts LIMIT 1").fetchone():
        index_facts(db)
    for (key,) in db.execute("SELECT DISTINCT key FROM facts"):
        known.add(_hashed(key))
    identity = (
        "" if known else secrets.token_hex(8)
    )  # an older checkpoint has no identity: its calls keep their original keys
    db.execute("INSERT OR IGNORE INTO run VALUES (0, ?, 0)", (identity,))
    return known


def _syncs(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT syncs FROM run").fetchone()[0])
