"""Disk cache of pure tools across runs: their results, and which calls each task tends to make."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from ..atomic_file import make_private_dir, open_private
from ..core.errors import StoreError
from .threads import DaemonThreads
from .tool import Tool

T = TypeVar("T")
_MAX_CHARS = 1_000_000
_PLAIN = (str, int, float, bool, bytes, type(None))
_TABLES = """
CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, content TEXT NOT NULL, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS calls (
    task TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL, at REAL NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (task, tool, arguments)
);
"""


class StoredResult(NamedTuple):
    content: str
    seconds: float


class ToolDiskCache:
    """SQLite file, owned by one thread so that it never blocks the loop. Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tools.sqlite3"
        self._thread = DaemonThreads(max_threads=1)
        self._db: sqlite3.Connection | None = None
        self._in_use = threading.Lock()
        """Held while the connection is used. A call that is cancelled goes on in its thread, and the next one, or the
        end, gets another thread."""
        self._is_closed = False

    async def open(self) -> None:
        """Raises StoreError."""
        await self._do(lambda db: db.executescript(_TABLES))

    async def get(self, key: bytes) -> StoredResult | None:
        row = await self._do(
            lambda db: db.execute("SELECT content, seconds FROM results WHERE key = ?", (key,)).fetchone()
        )
        return StoredResult(*row) if row else None

    async def put(self, key: bytes, result: StoredResult) -> None:
        if len(result.content) <= _MAX_CHARS:
            await self._do(lambda db: db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (key, *result)))

    async def record_calls(self, task: str, calls: dict[tuple[str, str], int]) -> None:
        """Stores how often a run of this task made each call, by tool and arguments."""
        now = time.time()
        rows = [(task, tool, arguments, now, times) for (tool, arguments), times in calls.items()]
        query = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?)"
        await self._do(lambda db: db.executemany(query, rows))

    async def likely_calls(self, task: str, max_age: float, limit: int) -> list[tuple[str, str]]:
        """Tool and arguments of the calls that runs of this task made within `max_age` seconds, the most frequent
        first."""
        since = time.time() - max_age
        query = "SELECT tool, arguments FROM calls WHERE task = ? AND at >= ? ORDER BY times DESC, arguments LIMIT ?"
        found: list[tuple[str, str]] = await self._do(lambda db: db.execute(query, (task, since, limit)).fetchall())
        return found

    async def aclose(self) -> None:
        def close() -> None:
            with self._in_use:
                self._is_closed = True
                if self._db is not None:
                    self._db.close()
                    self._db = None

        await self._thread.run(close)
        self._thread.close()

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            with self._in_use:
                if self._is_closed:
                    raise sqlite3.ProgrammingError("it is closed")
                if self._db is None:
                    make_private_dir(self._path.parent)
                    os.close(open_private(self._path, os.O_RDWR))
                    self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=10)
                    self._db.execute("PRAGMA journal_mode = WAL")
                return work(self._db)

        async with self._thread.slots:
            try:
                result: T = await self._thread.run(run)
            except (sqlite3.Error, OSError) as error:
                raise StoreError(f"The tool cache {str(self._path)!r} cannot be used: {error}.") from error
        return result


def disk_cache_key(tool: Tool, max_tokens: int, arguments: bytes) -> bytes | None:
    """Key of a call and of the tool's code, so that a changed tool does not return old results. None if the tool is not
    pure or its code is not known."""
    code = code_digest(tool)
    if tool.sharing.effect != "pure" or tool.batch is not None or code is None:
        return None
    shape: list[Any] = [tool.name, tool.max_tokens or max_tokens, tool.summarize]
    return blake2b(repr(shape).encode() + code + arguments, digest_size=24).digest()


def code_digest(tool: Tool) -> bytes | None:
    """Digest of the function's code, the same in every process. None if the code is not known."""
    code = getattr(tool.function, "__code__", None)
    return _digest(code) if isinstance(code, CodeType) else None


def shared_call_name(tool: Tool, key: tuple[str, bytes], version: Hashable) -> str | None:
    """Name of a call across processes. None if its version means nothing in other processes."""
    name = f"{tool.name}:{(code_digest(tool) or b'').hex()}:{key[1].hex()}"
    if tool.sharing.version is None:
        return name
    return f"{name}:{blake2b(repr(version).encode(), digest_size=8).hexdigest()}" if _is_plain(version) else None


def _is_plain(version: Hashable) -> bool:
    """Whether the version is determined by its repr; that of an object may be its address in memory."""
    return all(map(_is_plain, version)) if type(version) is tuple else type(version) in _PLAIN


def _digest(code: CodeType) -> bytes:
    """Includes nested functions."""
    inner = b"".join(map(_constant, code.co_consts))
    return blake2b(code.co_code + repr(code.co_names).encode() + inner, digest_size=16).digest()


def _constant(value: Any) -> bytes:
    if isinstance(value, CodeType):
        return _digest(value)
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()
