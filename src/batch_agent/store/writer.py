"""One thread that owns a SQLite connection. Writes are committed in batches; nobody blocks the event loop."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..core.fast_dataclass import dataclass

_BATCH = 500

Work = Callable[[sqlite3.Connection], Any]


@dataclass(frozen=True, slots=True)
class _WriteJob:
    work: Work | None
    """None: stop."""
    done: Callable[[Any, Exception | None], None] | None = None
    synced: Callable[[Any], None] | None = None
    """Given: the commit is written to the disk itself, and this is told what came of the work."""


class WriterThread:
    """Runs what it is given in order. A failed batch is rolled back, told to everyone in it who waits, and raised at
    the next `wait`, so that a fact which nobody waited for is not lost in silence."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._orders: SimpleQueue[_WriteJob] = SimpleQueue()
        self._failure: Exception | None = None
        threading.Thread(target=self._serve, name="batch-agent-store", daemon=True).start()

    def post(self, work: Work) -> None:
        """Does `work` some time soon."""
        self._orders.put(_WriteJob(work))

    async def wait(self, work: Work) -> Any:
        """The result of `work`, once everything up to it is committed. Raises whatever the writing raised."""
        done = asyncio.get_running_loop().create_future()
        self._place(work, [done])
        return await done

    def wait_for(
        self, work: Work, waiters: "Sequence[asyncio.Future[Any]]", *, synced: Callable[[Any], None] | None = None
    ) -> None:
        """The same for several who wait. `synced`: the commit survives a power cut, and this is called in the thread
        after it, with what came of the work."""
        self._place(work, waiters, synced)

    async def stop(self) -> None:
        """Commits what is there and ends the thread, also when nobody waits for it any more."""
        stopped = asyncio.get_running_loop().create_future()
        self._place(None, [stopped])
        await stopped

    def _place(
        self,
        work: Work | None,
        waiters: "Sequence[asyncio.Future[Any]]",
        synced: Callable[[Any], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()

        def settle(result: Any, error: Exception | None) -> None:
            for waiter in waiters:
                if waiter.done():  # cancelled by now
                    continue
                if error is None:
                    waiter.set_result(result)
                else:
                    waiter.set_exception(error)
                    waiter.exception()  # seen: whoever waited may be cancelled by now

        def done(result: Any, error: Exception | None) -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, result, error)

        self._orders.put(_WriteJob(work, done, synced))

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        stop: _WriteJob | None = None
        while stop is None:
            batch = self._next_batch()
            stop = batch.pop() if batch[-1].work is None else None
            try:
                connection = connection or sqlite3.connect(self._path, isolation_level=None)
                self._commit(connection, batch)
            except Exception as error:  # noqa: BLE001 - a thread that died would leave all the others waiting
                self._fail(connection, batch, error)
        if connection is not None:
            connection.close()
        if stop.done:
            stop.done(None, None)

    def _next_batch(self) -> list[_WriteJob]:
        batch = [self._orders.get()]
        while len(batch) < _BATCH and batch[-1].work is not None:
            try:
                batch.append(self._orders.get_nowait())
            except Empty:
                break
        return batch

    def _commit(self, connection: sqlite3.Connection, batch: list[_WriteJob]) -> None:
        if self._failure is not None:
            raise self._failure
        is_synced = any(order.synced for order in batch)
        if is_synced:
            connection.execute("PRAGMA synchronous = FULL")  # not possible inside the transaction
        connection.execute("BEGIN")
        results = [order.work(connection) if order.work else None for order in batch]
        connection.execute("COMMIT")
        if is_synced:
            connection.execute("PRAGMA synchronous = NORMAL")
        for order, result in zip(batch, results, strict=True):
            if order.synced:
                order.synced(result)
            if order.done:
                order.done(result, None)

    def _fail(self, connection: sqlite3.Connection | None, batch: list[_WriteJob], error: Exception) -> None:
        self._failure = error
        if connection is not None and connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.rollback()
        for order in batch:
            if order.done:
                order.done(None, error)
