"""Claims and outcomes of tool calls, batched into few messages to the Redis server."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from ... import aio
from ...core.errors import StoreError
from ...core.fast_dataclass import dataclass
from .lua.calls import CLAIM
from .write_batches import split_batches

INTERVAL = 0.04
"""Seconds between two messages. A claim that arrives later than that is sent at once."""
MAX_WAITING = 16
"""Number of waiting changes that triggers a message at once."""


@dataclass(frozen=True, slots=True)
class CallChange:
    """A claim or an outcome."""

    name: str
    worker: str
    ttl_millis: int | None = None
    """None: a claim. 0: the claim is released. -1: the outcome is kept as long as the run."""
    outcome: bytes = b""

    @property
    def header(self) -> tuple[str, int, int]:
        """The part of the change that precedes the outcomes in the script's arguments."""
        return self.name, CLAIM if self.ttl_millis is None else self.ttl_millis, len(self.outcome)


Send = Callable[[str, Sequence[CallChange]], Awaitable[list[bytes | int]]]
"""Sends the changes of one worker, and returns the replies to its claims, in order. May be repeated."""


@dataclass(slots=True)
class _Waiting:
    change: CallChange
    due: float
    reply: bytes | int | None = None
    error: StoreError | None = None
    is_done: bool = False


class CallBatches:
    """Sends changes in order, one message at a time. Changes that arrive meanwhile share the next message.

    The first caller sends for all waiting callers. If it is cancelled, the next one sends the rest again, which has no
    second effect."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[_Waiting] = []
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._next_message = 0.0

    async def apply(self, change: CallChange) -> bytes | int | None:
        """Returns the reply to a claim, None for an outcome. Raises StoreError."""
        now = aio.now()
        due = max(now, self._next_message) if change.ttl_millis is None else now + INTERVAL
        one = _Waiting(change, due)
        self._waiting.append(one)
        self._changed.set()
        try:
            async with self._turn:
                while not one.is_done:
                    await self._wait_until_due()
                    await self._send_waiting()
        finally:
            self._waiting = [each for each in self._waiting if each is not one]
        if one.error is not None:
            raise one.error
        return one.reply

    async def _wait_until_due(self) -> None:
        while len(self._waiting) < MAX_WAITING and (due := min(one.due for one in self._waiting)) > aio.now():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _send_waiting(self) -> None:
        """Sends the waiting changes of one worker."""
        worker = self._waiting[0].change.worker
        sent = next(
            split_batches(
                [one for one in self._waiting if one.change.worker == worker], lambda one: len(one.change.outcome)
            )
        )
        self._next_message = aio.now() + INTERVAL
        try:
            replies = iter(await self._send(worker, [one.change for one in sent]))
        except StoreError as error:
            for one in sent:
                one.error, one.is_done = error, True
        else:
            for one in sent:
                one.reply = next(replies) if one.change.ttl_millis is None else None
                one.is_done = True
        self._waiting = [one for one in self._waiting if not one.is_done]
