"""Facts of a distributed run at the coordinator, as a `Store` of the engine. Each write carries the fencing token of
its agent's lease. Writes are buffered: ordered per agent, batched across agents."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from .. import aio
from ..core.coordinator import IDENTITY, PLAN, Append, Completion, Documents, End, FactTable, Replace, Write
from ..core.errors import LeaseLost, PlanMismatch, StoreError
from ..core.facts import Fact, Started
from ..core.protocols.store import Account, Prices
from ..core.requests import Usage
from ..core.results import AgentError
from .membership import Membership

FLUSH_INTERVAL = 0.04
"""Seconds between two messages with writes that callers wait for. All of these writes are sent at the next multiple, to
share a message."""
MAX_WAITING = 32
"""Number of waiting callers that triggers a message at once. Agents that end keep their room until it is sent."""
LAZY_FLUSH_INTERVAL = 0.2
"""As FLUSH_INTERVAL, for writes that no caller waits for: they are sent at the next multiple but one. If the worker
dies before, that work is repeated."""


@dataclass(slots=True)
class PendingWrites:
    """Writes of an agent and its chunks, and the callers that wait for them."""

    writes: list[Write] = field(default_factory=list)
    waiters: "list[asyncio.Future[None]]" = field(default_factory=list)
    due: float | None = None
    """None: no deadline."""


class WriteBuffer:
    """Buffer of writes. Pure: takes the time as an argument."""

    def __init__(self, phase: float = 0.0) -> None:
        """`phase`: seconds to add to all multiples. Workers that send at the same moment would wait for each other at
        the server."""
        self._phase = phase
        self._pending: dict[str, PendingWrites] = {}
        self._waiting = 0
        self.next_due: float | None = None

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def agents(self) -> list[str]:
        return list(self._pending)

    def add(self, write: Write, now: float, *, is_due: bool = True) -> None:
        pending = self._pending_of(write.key)
        pending.writes.append(write)
        if is_due and pending.due is None:
            self._set_due(pending, self._multiple(now, LAZY_FLUSH_INTERVAL, 2))

    def request_flush(self, key: str, waiter: "asyncio.Future[None]", now: float, *, immediately: bool = False) -> None:
        """Adds a caller that waits for all writes of this agent. `immediately`: send them with the next message, for a
        call that holds a slot of its tool meanwhile."""
        pending = self._pending_of(key)
        pending.waiters.append(waiter)
        self._waiting += 1
        self._set_due(pending, now if immediately else self._multiple(now, FLUSH_INTERVAL, 1))
        if self._waiting >= MAX_WAITING:
            self.next_due = now

    def take(self, now: float, max_writes: int) -> Iterator[list[PendingWrites]]:
        """Due writes, in batches of about `max_writes`. If enough callers wait, all writes that are waited for are
        due."""
        last = now if self._waiting < MAX_WAITING else now + FLUSH_INTERVAL
        due = [agent for agent, pending in self._pending.items() if pending.due is not None and pending.due <= last]
        batch: list[PendingWrites] = []
        writes = 0
        for agent in due:
            batch.append(self._pending.pop(agent))
            self._waiting -= len(batch[-1].waiters)
            writes += len(batch[-1].writes)
            if writes >= max_writes:
                yield batch
                batch, writes = [], 0
        self.next_due = min(
            (pending.due for pending in self._pending.values() if pending.due is not None), default=None
        )
        if batch:
            yield batch

    def _pending_of(self, key: str) -> PendingWrites:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending.setdefault(key.partition(".")[0], PendingWrites())
        return pending

    def _multiple(self, now: float, interval: float, ahead: int) -> float:
        return ((now - self._phase) // interval + ahead) * interval + self._phase

    def _set_due(self, pending: PendingWrites, due: float) -> None:
        pending.due = due if pending.due is None else min(due, pending.due)
        self.next_due = pending.due if self.next_due is None else min(self.next_due, pending.due)


async def stored_plan(documents: Documents) -> Mapping[str, Any] | None:
    """The plan of a shared run; None if it was never started. Raises StoreError."""
    data = (await documents.read(PLAN)).data
    plan: Mapping[str, Any] | None = None if data is None else orjson.loads(data)
    return plan


_CLOSE_TIMEOUT = 5.0
"""Seconds to send the remaining writes at the end of a run."""
_MAX_BATCH = 500
"""Facts per message."""


class SharedStore:
    """Sends facts in the background, in order, one message at a time. Facts that arrive meanwhile share the next
    message."""

    is_durable = True

    def __init__(
        self, member: Membership, documents: Documents, facts: FactTable, *, sends_starts: bool = False
    ) -> None:
        """`sends_starts`: send the start of an agent at once, for readers of the store that distinguish running agents
        from those not started. Otherwise the start is sent with the first reply: an agent without facts is started
        anew."""
        self._member = member
        self._documents = documents
        self._table = facts
        self._sends_starts = sends_starts
        self._preloaded: dict[str, tuple[Fact, ...]] = {}
        self._identity: str | None = None
        self._buffer = WriteBuffer(random.uniform(0, FLUSH_INTERVAL))  # noqa: S311
        self._changed = asyncio.Event()
        self._number = 0
        self._failure: StoreError | None = None
        self._is_closing = False

    async def open(self) -> None:
        """Does nothing: `join` opens the coordinator."""

    async def plan(self) -> Mapping[str, Any] | None:
        return await stored_plan(self._documents)

    async def save_plan(self, plan: Mapping[str, Any]) -> None:
        """Raises PlanMismatch if another process has stored a different plan at the same time."""
        documents = self._documents
        if (
            not await documents.compare_and_set(PLAN, (await documents.read(PLAN)).data, orjson.dumps(plan))
            and await self.plan() != plan
        ):
            raise PlanMismatch(
                "Another process has started this run at the same time with a different definition. Start both with "
                "the same task, model, tools and options, or give one of them another run_id."
            )

    async def identity(self) -> str:
        """The run's identity, set by the first worker that needs it."""
        if self._identity is None:
            await self._documents.compare_and_set(IDENTITY, None, secrets.token_hex(8).encode())
            self._identity = ((await self._documents.read(IDENTITY)).data or b"").decode()
        return self._identity

    def preload(self, key: str, facts: tuple[Fact, ...]) -> None:
        """Keeps facts that came with a lease, which saves reading them."""
        self._preloaded[key] = facts

    async def facts(self, key: str) -> Sequence[Fact]:
        preloaded = self._preloaded.pop(key, None)
        return preloaded if preloaded is not None else await self._table.read(key)

    async def spent(self) -> Usage:
        return await self._table.spent()

    async def account(self) -> Account | None:
        """Returns None: workers have an account of their own (cluster/shared_budget.py)."""
        return None

    async def save_account(self, account: Account) -> None:
        pass

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        """Does nothing: the coordinator has the submitted jobs."""

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        """Does nothing: the completion of a job has its error."""

    def record(self, key: str, fact: Fact) -> None:
        """Raises LeaseLost."""
        is_due = self._sends_starts or not isinstance(fact, Started)
        self._add(Append(key, self._member.token(key), fact), is_due=is_due)

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        """Raises LeaseLost."""
        self._add(Replace(key, self._member.token(key), tuple(facts)))

    async def end(self, completion: Completion) -> None:
        """Ends the agent. Raises LeaseLost and StoreError."""
        self._add(End(self._member.token(completion.key), completion))
        await self.settle(completion.key)
        self._member.drop(completion.key)

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        if self._failure is not None:
            raise self._failure
        for agent in self._buffer.agents if key is None else [key]:
            written = asyncio.get_running_loop().create_future()
            self._buffer.request_flush(agent, written, aio.now(), immediately=sync)
            self._changed.set()
            await written
        if key is not None:
            self._member.token(key)

    async def aclose(self) -> None:
        """Does nothing, like `open`."""

    def _add(self, write: Write, *, is_due: bool = True) -> None:
        before = self._buffer.next_due
        self._buffer.add(write, aio.now(), is_due=is_due)
        if before is None:
            self._changed.set()

    @asynccontextmanager
    async def flush_in_background(self) -> AsyncIterator[None]:
        """Sends facts while the block runs, and the remaining ones at its end. A failed write ends the block."""
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send())
                try:
                    yield
                finally:
                    self._is_closing = True
                    self._changed.set()
                    await asyncio.wait([sending], timeout=_CLOSE_TIMEOUT)
                    sending.cancel()

    async def _send(self) -> None:
        while not self._is_closing:
            await self._wait_until_due()
            await self._send_due(aio.now())
        await self._send_due(float("inf"))

    async def _wait_until_due(self) -> None:
        while not self._is_closing and ((due := self._buffer.next_due) is None or due > aio.now()):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _send_due(self, now: float) -> None:
        """Sends due writes and resolves their waiters."""
        for batch in self._buffer.take(now, _MAX_BATCH):
            error = self._failure or await self._write([write for pending in batch for write in pending.writes])
            for waiter in (waiter for pending in batch for waiter in pending.waiters if not waiter.done()):
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    async def _write(self, writes: Sequence[Write]) -> StoreError | None:
        if not writes:
            return None
        self._number += 1
        try:
            refused = await self._table.write(self._member.name, self._number, writes)
        except StoreError as error:
            self._failure = error
            return error
        for write in writes:
            if write.key in refused and self._is_held_by(write.token, write.key):
                self._member.drop(write.key)
        return None

    def _is_held_by(self, token: int, key: str) -> bool:
        try:
            return self._member.token(key) == token
        except LeaseLost:
            return False
