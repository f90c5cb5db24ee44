"""Writer thread that owns a SQLite connection. It commits in batches and never blocks the event loop."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..core.fast_dataclass import dataclass

_BATCH_SIZE = 500

Work = Callable[[sqlite3.Connection], Any]


@dataclass(frozen=True, slots=True)
class _WriteJob:
    work: Work | None
    """None stops the thread."""
    done: Callable[[Any, Exception | None], None] | None = None
    synced: Callable[[Any], None] | None = None
    """If given, the commit is synced to disk, and this function is called with the result of the work."""


class WriterThread:
    """Runs jobs one by one. A failed batch is rolled back, and its error goes to every waiter in it and to every later
    one, so that the loss of a fact without a waiter is noticed too."""

    def __init__(self, path: Path, at_end: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """`at_end`: called in the thread after the last commit. Anything that it cannot write is left out."""
        self._path = path
        self._at_end = at_end
        self._jobs: SimpleQueue[_WriteJob] = SimpleQueue()
        self._failure: Exception | None = None
        threading.Thread(target=self._serve, name="batch-agent-store", daemon=True).start()

    def post(self, work: Work) -> None:
        """Schedules `work` without waiting for it."""
        self._jobs.put(_WriteJob(work))

    async def wait(self, work: Work) -> Any:
        """The result of `work`, after everything up to it is committed. Raises the error of the batch."""
        done = asyncio.get_running_loop().create_future()
        self._submit(work, [done])
        return await done

    def wait_for(
        self, work: Work, waiters: "Sequence[asyncio.Future[Any]]", *, synced: Callable[[Any], None] | None = None
    ) -> None:
        """Like `wait`, for several waiters. `synced`: makes the commit survive a power failure; called in the thread
        afterwards with the result of the work."""
        self._submit(work, waiters, synced)

    async def stop(self) -> None:
        """Commits the remaining jobs and ends the thread, even if the caller is cancelled."""
        stopped = asyncio.get_running_loop().create_future()
        self._submit(None, [stopped])
        await stopped

    def _submit(
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
                    waiter.exception()  # mark as retrieved: the waiter may be cancelled by now

        def done(result: Any, error: Exception | None) -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, result, error)

        self._jobs.put(_WriteJob(work, done, synced))

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        stop: _WriteJob | None = None
        while stop is None:
            batch = self._next_batch()
            stop = batch.pop() if batch[-1].work is None else None
            try:
                connection = connection or sqlite3.connect(self._path, isolation_level=None)
                self._commit(connection, batch)
            except Exception as error:  # noqa: BLE001 - if the thread died, all waiters would wait for ever
                self._fail(connection, batch, error)
        if connection is not None:
            if self._at_end is not None and self._failure is None:
                with suppress(sqlite3.Error):
                    self._at_end(connection)
            connection.close()
        if stop.done:
            stop.done(None, None)

    def _next_batch(self) -> list[_WriteJob]:
        batch = [self._jobs.get()]
        while len(batch) < _BATCH_SIZE and batch[-1].work is not None:
            try:
                batch.append(self._jobs.get_nowait())
            except Empty:
                break
        return batch

    def _commit(self, connection: sqlite3.Connection, batch: list[_WriteJob]) -> None:
        if self._failure is not None:
            raise self._failure
        is_synced = any(job.synced for job in batch)
        if is_synced:
            connection.execute("PRAGMA synchronous = FULL")  # not possible inside the transaction
        connection.execute("BEGIN")
        results = [job.work(connection) if job.work else None for job in batch]
        connection.execute("COMMIT")
        if is_synced:
            connection.execute("PRAGMA synchronous = NORMAL")
        for job, result in zip(batch, results, strict=True):
            if job.synced:
                job.synced(result)
            if job.done:
                job.done(result, None)

    def _fail(self, connection: sqlite3.Connection | None, batch: list[_WriteJob], error: Exception) -> None:
        self._failure = error
        if connection is not None and connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.rollback()
        for job in batch:
            if job.done:
                job.done(None, error)
