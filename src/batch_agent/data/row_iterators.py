"""Rows that are counted before they are read.

Rows of what blocks, such as a database or a download, for an event loop that must not.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any

from ..core.fast_dataclass import dataclass

_MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class SizedRows:
    """Can be read several times, each time from the first row on."""

    count: int
    begin: Callable[[], Iterator[Any]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return self.begin()

    def kept(self) -> "list[Any] | SizedRows":
        """All of them, so that they can be asked in the best order; very many, one by one."""
        return list(self) if self.count <= _MOST_ROWS else self


_AT_ONCE = 256

_Orders = SimpleQueue["asyncio.Future[list[Any]] | None"]


@dataclass(frozen=True, slots=True)
class ThreadIterator:
    """Each reading has a thread of its own, which opens, reads and closes the rows, some at a time, when they are
    asked for. A thread that hangs does not keep the program from ending."""

    rows: Iterable[Any]

    async def __aiter__(self) -> AsyncIterator[Any]:
        orders: _Orders = SimpleQueue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=_serve, args=(self.rows, orders, loop), name="batch-agent-rows", daemon=True).start()
        try:
            while True:
                order: asyncio.Future[list[Any]] = loop.create_future()
                orders.put(order)
                rows = await order
                for row in rows:
                    yield row
                if len(rows) < _AT_ONCE:
                    return
        finally:
            orders.put(None)


def _serve(rows: Iterable[Any], orders: _Orders, loop: asyncio.AbstractEventLoop) -> None:
    reading: Iterator[Any] | None = None
    while (order := orders.get()) is not None:
        found, error = [], None
        try:
            reading = iter(rows) if reading is None else reading
            found = list(islice(reading, _AT_ONCE))
        except BaseException as raised:  # noqa: BLE001 - carried over to whoever waits, who would wait for ever
            error = raised
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(_settle, order, found, error)
    del reading  # a generator that was left in the middle closes what it has opened, in the thread that opened it


def _settle(order: "asyncio.Future[list[Any]]", found: list[Any], error: BaseException | None) -> None:
    if order.done():  # cancelled by now
        return
    if error is None:
        order.set_result(found)
    else:
        order.set_exception(error)
