"""Inputs of a stage, as they come from the one before it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Self

_CAPACITY = 1024


class Feed(AsyncIterator[Any]):
    """Never refuses what is put; `room` is for those who can wait."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._values: deque[Any] = deque()
        self._is_closed = False
        self._news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, value: Any) -> None:
        self._values.append(value)
        self._news.set()
        if len(self._values) >= self._capacity:
            self._has_room.clear()

    async def room(self) -> None:
        """Returns when little waits here."""
        await self._has_room.wait()

    def close(self) -> None:
        """Nothing more will come."""
        self._is_closed = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._values:
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        value = self._values.popleft()
        if len(self._values) < self._capacity:
            self._has_room.set()
        return value
