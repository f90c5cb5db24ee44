"""A run's facts at a hub, as the engine knows stores. Each carries the token of its agent's lease.

What a worker has to write to the hub: in order for each agent, together with others, no sooner than it must be.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from .. import aio
from ..core.coordinator import Append, Completion, End, Replace, Write
from ..core.errors import LeaseLost, PlanMismatch, StoreError
from ..core.facts import Fact, Started
from ..core.protocols import Account
from ..core.requests import Usage
from .membership import Membership
from .memory import IDENTITY, PLAN

MOMENT = 0.04
"""Seconds. What somebody waits for goes at the next full one, so that all of the same one go together."""
A_WHILE = 0.2
"""The same for what nobody waits for, at the next but one. If the worker dies it is done again, as if it had still been
under way."""


@dataclass(slots=True)
class PendingWrites:
    """Of one agent, with its parts, and whoever waits until it is written."""

    writes: list[Write] = field(default_factory=list)
    waiters: "list[asyncio.Future[None]]" = field(default_factory=list)
    due: float | None = None
    """None: nobody minds when."""


class WriteBuffer:
    """Time is an argument; nothing here waits."""

    def __init__(self) -> None:
        self._parcels: dict[str, PendingWrites] = {}
        self.next_due: float | None = None

    def __bool__(self) -> bool:
        return bool(self._parcels)

    @property
    def agents(self) -> list[str]:
        return list(self._parcels)

    def add(self, write: Write, now: float, *, is_due: bool = True) -> None:
        parcel = self._of(write.key)
        parcel.writes.append(write)
        if is_due and parcel.due is None:
            self._put_due(parcel, (now // A_WHILE + 2) * A_WHILE)

    def hurry(self, key: str, waiter: "asyncio.Future[None]", now: float, *, at_once: bool = False) -> None:
        """Somebody waits for all that there is of this agent. `at_once`: with the next message, for a call that holds
        a place of its tool meanwhile."""
        parcel = self._of(key)
        parcel.waiters.append(waiter)
        self._put_due(parcel, now if at_once else (now // MOMENT + 1) * MOMENT)

    def take(self, now: float, most: int) -> Iterator[list[PendingWrites]]:
        """What is due by now, in loads of about so many writes."""
        due = [agent for agent, parcel in self._parcels.items() if parcel.due is not None and parcel.due <= now]
        load: list[PendingWrites] = []
        for agent in due:
            load.append(self._parcels.pop(agent))
            if sum(len(parcel.writes) for parcel in load) >= most:
                yield load
                load = []
        self.next_due = min((parcel.due for parcel in self._parcels.values() if parcel.due is not None), default=None)
        if load:
            yield load

    def _of(self, key: str) -> PendingWrites:
        return self._parcels.setdefault(key.partition(".")[0], PendingWrites())

    def _put_due(self, parcel: PendingWrites, due: float) -> None:
        parcel.due = due if parcel.due is None else min(due, parcel.due)
        self.next_due = parcel.due if self.next_due is None else min(self.next_due, parcel.due)


_LAST_WORDS = 5.0
"""Seconds for what is left to be sent at the end of a run."""
_MOST = 500
"""Facts in one message."""


class SharedStore:
    """Sends facts in the background, in order, one message at a time: what comes meanwhile goes with the next."""

    is_durable = True

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._told: dict[str, tuple[Fact, ...]] = {}
        self._identity: str | None = None
        self._outgoing = WriteBuffer()
        self._changed = asyncio.Event()
        self._number = 0
        self._failure: StoreError | None = None
        self._is_over = False

    async def open(self) -> None:
        """The hub is whose who joined."""

    async def plan(self) -> Mapping[str, Any] | None:
        data = (await self._member.hub.read(PLAN)).data
        plan: Mapping[str, Any] | None = None if data is None else orjson.loads(data)
        return plan

    async def keep_plan(self, plan: Mapping[str, Any]) -> None:
        """Raises PlanMismatch where another process has kept another one at the same time."""
        hub = self._member.hub
        if (
            not await hub.compare_and_set(PLAN, (await hub.read(PLAN)).data, orjson.dumps(plan))
            and await self.plan() != plan
        ):
            raise PlanMismatch(
                "Another process has begun this run at the same time, and asks something else. Start both with the "
                "same task, model, tools and options, or give one another run_id."
            )

    async def identity(self) -> str:
        """The first worker that asks gives the run its name."""
        if self._identity is None:
            hub = self._member.hub
            await hub.compare_and_set(IDENTITY, None, secrets.token_hex(8).encode())
            self._identity = ((await hub.read(IDENTITY)).data or b"").decode()
        return self._identity

    def tell(self, key: str, facts: tuple[Fact, ...]) -> None:
        """What came with a lease need not be asked for."""
        self._told[key] = facts

    async def facts(self, key: str) -> Sequence[Fact]:
        told = self._told.pop(key, None)
        return told if told is not None else await self._member.hub.facts(key)

    async def spent(self) -> Usage:
        return await self._member.hub.spent()

    async def account(self) -> Account | None:
        """None: workers share one of their own (cluster/budget_sharing.py)."""
        return None

    async def keep_account(self, account: Account) -> None:
        pass

    def record(self, key: str, fact: Fact) -> None:
        """Raises LeaseLost."""
        # That it has begun is worth no message: whoever finds no facts begins it.
        self._add(Append(key, self._member.token(key), fact), is_due=not isinstance(fact, Started))

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        """Raises LeaseLost."""
        self._add(Replace(key, self._member.token(key), tuple(facts)))

    async def end(self, ending: Completion) -> None:
        """The agent is done. Raises LeaseLost, and StoreError."""
        self._add(End(self._member.token(ending.key), ending))
        await self.settle(ending.key)
        self._member.drop(ending.key)

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        if self._failure is not None:
            raise self._failure
        for agent in self._outgoing.agents if key is None else [key]:
            written = asyncio.get_running_loop().create_future()
            self._outgoing.hurry(agent, written, aio.now(), at_once=sync)
            self._changed.set()
            await written
        if key is not None:
            self._member.token(key)

    async def aclose(self) -> None:
        """As `open`."""

    def _add(self, write: Write, *, is_due: bool = True) -> None:
        before = self._outgoing.next_due
        self._outgoing.add(write, aio.now(), is_due=is_due)
        if before is None:
            self._changed.set()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Facts are sent for as long as the block runs; what is there at its end is sent too. What cannot be sent ends
        the block."""
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send())
                try:
                    yield
                finally:
                    self._is_over = True
                    self._changed.set()
                    await asyncio.wait([sending], timeout=_LAST_WORDS)
                    sending.cancel()

    async def _send(self) -> None:
        while not self._is_over:
            await self._until_due()
            await self._send_what_is_due(aio.now())
        await self._send_what_is_due(float("inf"))

    async def _until_due(self) -> None:
        while not self._is_over and ((due := self._outgoing.next_due) is None or due > aio.now()):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _send_what_is_due(self, now: float) -> None:
        """Whoever waits is told what came of it."""
        for load in self._outgoing.take(now, _MOST):
            error = self._failure or await self._sent([write for parcel in load for write in parcel.writes])
            for waiter in (waiter for parcel in load for waiter in parcel.waiters if not waiter.done()):
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    async def _sent(self, writes: Sequence[Write]) -> StoreError | None:
        if not writes:
            return None
        self._number += 1
        try:
            refused = await self._member.hub.write(self._member.name, self._number, writes)
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
