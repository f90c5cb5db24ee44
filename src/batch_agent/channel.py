"""Bounded channel between tasks of one loop: a slow reader slows the writers down instead of filling the memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Channel(AsyncIterator[T], Generic[T]):
    """First in, first out, with one reader. No value is ever refused or lost: `send` waits after its value is in, and a
    writer that cannot wait uses `put`."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._values: deque[T] = deque()
        self._is_closed = False
        self._news = asyncio.Event()
        self._awaiting_room: list[asyncio.Future[None]] = []
        self._senders: deque[asyncio.Future[None]] = deque()

    def put(self, value: T) -> None:
        self._values.append(value)
        self._news.set()

    async def send(self, value: T) -> None:
        """Puts a value, and returns when there is room for another one."""
        self._values.append(value)
        self._news.set()
        if len(self._values) > self._capacity:
            may_go_on = asyncio.get_running_loop().create_future()
            self._senders.append(may_go_on)
            await may_go_on

    async def room(self) -> None:
        """Returns when there are fewer values than the capacity."""
        if len(self._values) >= self._capacity:
            has_room = asyncio.get_running_loop().create_future()
            self._awaiting_room.append(has_room)
            await has_room

    def close(self) -> None:
        """Nothing more will come. What is in the channel can still be read."""
        self._is_closed = True
        self._news.set()

    def rest(self) -> list[T]:
        """Takes out all values that were not read."""
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
            self._news.clear()
            await self._news.wait()
        value = self._values.popleft()
        if self._awaiting_room and len(self._values) < self._capacity:
            self._tell_of_room()
        if self._senders:
            self._let_one_sender_go()
        return value

    def _tell_of_room(self) -> None:
        waiters, self._awaiting_room = self._awaiting_room, []
        for waiter in waiters:
            if not waiter.done():  # cancelled
                waiter.set_result(None)

    def _let_one_sender_go(self) -> None:
        """One per value that is read: as many wait as there are values beyond the capacity."""
        while self._senders:
            sender = self._senders.popleft()
            if not sender.done():  # a cancelled sender does not wait any more
                sender.set_result(None)
                return
