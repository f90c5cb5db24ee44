"""Bounded channel between tasks of one event loop, with backpressure: a slow reader delays the writers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Channel(AsyncIterator[T], Generic[T]):
    """FIFO channel with one reader. No value is refused or lost: `send` waits after its value is queued, and a writer
    that cannot wait uses `put`."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._values: deque[T] = deque()
        self._is_closed = False
        self._wakeup = asyncio.Event()
        self._awaiting_room: list[asyncio.Future[None]] = []
        self._senders: deque[asyncio.Future[None]] = deque()

    def put(self, value: T) -> None:
        self._values.append(value)
        self._wakeup.set()

    async def send(self, value: T) -> None:
        """Queues a value, and returns when there is room for another one."""
        self._values.append(value)
        self._wakeup.set()
        if len(self._values) > self._capacity:
            released = asyncio.get_running_loop().create_future()
            self._senders.append(released)
            await released

    async def wait_for_room(self) -> None:
        """Waits until there are fewer values than the capacity."""
        if len(self._values) >= self._capacity:
            has_room = asyncio.get_running_loop().create_future()
            self._awaiting_room.append(has_room)
            await has_room

    def close(self) -> None:
        """Closes the channel for writers. Queued values can still be read."""
        self._is_closed = True
        self._wakeup.set()

    def drain(self) -> list[T]:
        """Removes and returns all values that were not read."""
        rest = list(self._values)
        self._values.clear()
        return rest

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next value. Raises StopAsyncIteration once the channel is closed and empty."""
        while not self._values:
            if self._is_closed:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        value = self._values.popleft()
        if self._awaiting_room and len(self._values) < self._capacity:
            self._wake_waiters()
        if self._senders:
            self._release_sender()
        return value

    def _wake_waiters(self) -> None:
        waiters, self._awaiting_room = self._awaiting_room, []
        for waiter in waiters:
            if not waiter.done():  # cancelled
                waiter.set_result(None)

    def _release_sender(self) -> None:
        """Releases one sender per value read: as many wait as there are values beyond the capacity."""
        while self._senders:
            sender = self._senders.popleft()
            if not sender.done():  # a cancelled sender no longer waits
                sender.set_result(None)
                return
