"""A hub in memory, with the facts in a store: for workers of one process, or behind an actor for those of a cluster.

Calls of tools that one worker makes for all.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

import orjson

from .. import aio
from ..core.agent_config import Job
from ..core.coordinator import Append, Completion, Cursor, Document, End, Lease, Replace, Updates, Write
from ..core.facts import Claimed, Fact, Replied
from ..core.protocols import Store
from ..core.requests import NO_USAGE, Usage
from ..store.codec import decode_job, encode_job


@dataclass(slots=True)
class _Call:
    worker: str
    outcome: bytes | None = None
    expires: float = 0.0


class CallTable:
    """Who makes which call, and what came of it. Time is an argument."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def claim(self, name: str, worker: str, now: float, is_alive: Callable[[str], bool]) -> bytes | bool:
        """As `Hub.claim`."""
        call = self._calls.get(name)
        if call is not None:
            if call.outcome is not None and call.expires > now:
                return call.outcome
            if call.outcome is None and call.worker != worker and is_alive(call.worker):
                return False
        self._calls[name] = _Call(worker)
        return True

    def complete(self, name: str, worker: str, outcome: bytes | None, expires: float) -> bool:
        """Whether it was this worker's to say."""
        call = self._calls.get(name)
        if call is None or call.worker != worker or call.outcome is not None:
            return False
        if outcome is None:
            del self._calls[name]
        else:
            call.outcome, call.expires = outcome, expires
        return True


PLAN = "plan"
"""The document that the store keeps with the facts."""
IDENTITY = "identity"
"""The random name of the run, which the store keeps too."""
_MOST_NEWS = 20_000


@dataclass(slots=True)
class _Agent:
    """One that was posted and has not ended."""

    job: Job
    token: int = 0
    worker: str = ""
    """Empty while nobody has it."""
    until: float = 0.0
    times: int = 0


@dataclass(slots=True)
class _Written:
    """The last batch of a worker."""

    number: int = 0
    refused: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Happened:
    """Something in the news."""

    number: int
    ending: Completion | None = None
    completed_call: str | None = None
    told: bytes | None = None


@dataclass(slots=True)
class _Work:
    agents: dict[str, _Agent] = field(default_factory=dict)
    queue: deque[str] = field(default_factory=deque)
    """Keys of agents that nobody has; some may have ended since."""
    held: dict[str, _Agent] = field(default_factory=dict)
    """Those that somebody has."""
    endings: dict[str, Completion] = field(default_factory=dict)
    ended_by: dict[str, int] = field(default_factory=dict)
    """Their last tokens."""


class MemoryCoordinator:
    """All state but the facts and the plan goes with it: who opens the same store again posts the same work again, and
    finds what is done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._work = _Work()
        self._tokens = itertools.count(1)
        self._written: dict[str, _Written] = {}
        self._alive: dict[str, float] = {}
        """Workers, and until when."""
        self._documents: dict[str, bytes] = {}
        self._refused = NO_USAGE
        self._news: deque[_Happened] = deque(maxlen=_MOST_NEWS)
        self._numbers = itertools.count(1)
        self._last = 0
        self._changed = asyncio.Event()
        self._calls = CallTable()
        self._turns: dict[str, float] = {}

    async def open(self) -> None:
        await self._store.open()

    async def aclose(self) -> None:
        await self._store.aclose()

    async def delete_run(self) -> None:
        """The facts stay: they are the store's."""
        self._work = _Work()
        self._documents.clear()
        self._calls = CallTable()

    async def read(self, name: str) -> Document:
        if name == PLAN:
            plan = await self._store.plan()
            return Document(None if plan is None else orjson.dumps(plan), aio.now())
        if name == IDENTITY:
            return Document((await self._store.identity()).encode(), aio.now())
        return Document(self._documents.get(name), aio.now())

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        if (await self.read(name)).data != old:
            return False
        if name == PLAN and new is not None:
            await self._store.keep_plan(orjson.loads(new))
        elif new is None:
            self._documents.pop(name, None)
        else:
            self._documents[name] = new
        return True

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        ended: dict[str, Completion] = {}
        work = self._work
        for job in jobs:
            ending = work.endings.get(job.key)
            if ending is not None and (ending.error is None or not retry_failed):
                ended[job.key] = ending
            elif job.key not in work.agents:
                work.endings.pop(job.key, None)
                work.agents[job.key] = _Agent(decode_job(encode_job(job)))
                work.queue.append(job.key)
        self._wake()
        return ended

    async def pending_count(self) -> int:
        return len(self._work.agents)

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float) -> list[Lease]:
        deadline = aio.now() + wait
        self._alive[worker] = max(self._alive.get(worker, 0.0), aio.now() + ttl)
        while not (keys := self._take(worker, max_jobs, ttl)) and aio.now() < deadline:
            await self._news_until(min(deadline, self._next_return()))
        return [await self._leased(agent) for agent in keys.values()]

    async def _leased(self, agent: _Agent) -> Lease:
        token, times = agent.token, agent.times
        return Lease(agent.job, token, tuple(await self._store.facts(agent.job.key)), times)

    def _take(self, worker: str, max_jobs: int, ttl: float) -> dict[str, _Agent]:
        now = aio.now()
        taken: dict[str, _Agent] = {}
        while self._work.queue and len(taken) < max_jobs:
            key = self._work.queue.popleft()
            agent = self._work.agents.get(key)
            if agent is not None and not agent.worker:
                taken[key] = agent
        if len(taken) < max_jobs:
            overdue = (item for item in self._work.held.items() if item[1].until <= now)
            taken.update(itertools.islice(overdue, max_jobs - len(taken)))
        for agent in taken.values():
            agent.worker, agent.token, agent.until = worker, next(self._tokens), now + ttl
            agent.times += 1
        self._work.held.update(taken)
        return taken

    def _next_return(self) -> float:
        return min((agent.until for agent in self._work.held.values()), default=float("inf"))

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        until = aio.now() + ttl
        self._alive[worker] = until
        kept = {key for key, token in tokens.items() if self._holds(key, token)}
        for key in kept:
            self._work.held[key].until = until
        ended = {key for key, token in tokens.items() if self._work.ended_by.get(key) == token}
        return frozenset(tokens) - kept - ended

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        for key in [key for key, token in tokens.items() if self._holds(key, token)]:
            self._free(key)

    async def leave(self, worker: str) -> None:
        for key in [key for key, agent in self._work.held.items() if agent.worker == worker]:
            self._free(key)
        self._alive.pop(worker, None)

    def _free(self, key: str) -> None:
        agent = self._work.held.pop(key)
        agent.worker = ""
        agent.times -= 1
        self._work.queue.appendleft(key)
        self._wake()

    def _holds(self, key: str, token: int) -> bool:
        agent = self._work.held.get(key)
        return agent is not None and agent.token == token

    async def facts(self, key: str) -> tuple[Fact, ...]:
        return tuple(await self._store.facts(key))

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        written = self._written.setdefault(worker, _Written())
        if number > written.number:
            written.number, written.refused = number, self._apply(writes)
        await self._store.settle(
            sync=any(isinstance(each, Append) and isinstance(each.fact, Claimed) for each in writes)
        )
        return written.refused

    def _apply(self, writes: Sequence[Write]) -> frozenset[str]:
        refused: set[str] = set()
        for write in writes:
            if not self._holds(write.key.partition(".")[0], write.token):
                refused.add(write.key)
                self._refused += _usage(write)
                continue
            match write:
                case Append(key, _, fact):
                    self._store.record(key, fact)
                case Replace(key, _, facts):
                    self._store.restart(key, facts)
                case End(_, ending):
                    del self._work.agents[ending.key], self._work.held[ending.key]
                    self._work.endings[ending.key] = ending
                    self._work.ended_by[ending.key] = write.token
                    self._say(_Happened(0, ending=ending))
                case _:
                    assert_never(write)
        return frozenset(refused)

    async def spent(self) -> Usage:
        return await self._store.spent() + self._refused

    async def position(self, *, completions: bool = True) -> Cursor:
        return (str(self._last),)

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        deadline, seen = aio.now() + wait, int(after[0])
        while self._last <= seen and aio.now() < deadline:
            await self._news_until(deadline)
        found = list(itertools.takewhile(lambda each: each.number > seen, reversed(self._news)))[::-1]
        return Updates(
            (str(self._last),),
            tuple(each.ending for each in found if each.ending is not None),
            tuple(each.completed_call for each in found if each.completed_call is not None),
            tuple(each.told for each in found if each.told is not None),
        )

    async def publish(self, data: bytes) -> None:
        self._say(_Happened(0, told=data))

    async def claim(self, name: str, worker: str) -> bytes | bool:
        now = aio.now()
        return self._calls.claim(name, worker, now, lambda other: self._alive.get(other, 0.0) > now)

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        if self._calls.complete(name, worker, outcome, aio.now() + ttl):
            self._say(_Happened(0, completed_call=name))

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        now = aio.now()
        due = max(self._turns.get(name, now), now)
        self._turns[name] = due + interval
        return max(0.0, due - ahead - now)

    def _say(self, what: _Happened) -> None:
        self._last = what.number = next(self._numbers)
        self._news.append(what)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _news_until(self, deadline: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline if deadline != float("inf") else None):
                await self._changed.wait()


def _usage(write: Write) -> Usage:
    return write.fact.reply.usage if isinstance(write, Append) and isinstance(write.fact, Replied) else NO_USAGE
