"""Iterators over rows: with a known count, and over blocking sources such as databases, read in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any

from ..core.fast_dataclass import dataclass

_MAX_LIST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class SizedRows:
    """A known number of rows. Each iteration starts at the first row."""

    count: int
    open: Callable[[], Iterator[Any]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return self.open()

    def materialized(self) -> "list[Any] | SizedRows":
        """A list, so that the inputs can be reordered; the rows themselves if there are very many."""
        return list(self) if self.count <= _MAX_LIST_ROWS else self


_BATCH_ROWS = 256

_Requests = SimpleQueue["asyncio.Future[list[Any]] | None"]


@dataclass(frozen=True, slots=True)
class ThreadIterator:
    """Async iterator over a blocking iterable. Each iteration has its own thread, which opens, reads and closes the
    rows in batches, on demand. A hanging thread does not keep the program from exiting."""

    rows: Iterable[Any]

    async def __aiter__(self) -> AsyncIterator[Any]:
        requests: _Requests = SimpleQueue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=_serve, args=(self.rows, requests, loop), name="batch-agent-rows", daemon=True).start()
        try:
            while True:
                request: asyncio.Future[list[Any]] = loop.create_future()
                requests.put(request)
                rows = await request
                for row in rows:
                    yield row
                if len(rows) < _BATCH_ROWS:
                    return
        finally:
            requests.put(None)


def _serve(rows: Iterable[Any], requests: _Requests, loop: asyncio.AbstractEventLoop) -> None:
    reading: Iterator[Any] | None = None
    while (request := requests.get()) is not None:
        found, error = [], None
        try:
            reading = iter(rows) if reading is None else reading
            found = list(islice(reading, _BATCH_ROWS))
        except BaseException as raised:  # noqa: BLE001 - carried over to the reader, which would wait for ever
            error = raised
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(_settle, request, found, error)
    del reading  # a generator that was not exhausted closes its resources in the thread that opened them


def _settle(request: "asyncio.Future[list[Any]]", found: list[Any], error: BaseException | None) -> None:
    if request.done():  # cancelled by now
        return
    if error is None:
        request.set_result(found)
    else:
        request.set_exception(error)
