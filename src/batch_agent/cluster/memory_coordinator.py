"""Coordinator in memory, with the facts in a store: for workers of one process, or inside an actor for those of a
cluster."""

import asyncio
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

import orjson

from .. import aio
from ..core.agent_config import Job
from ..core.coordinator import (
    Append,
    Completion,
    Cursor,
    Document,
    End,
    Lease,
    RejectedInput,
    Replace,
    Updates,
    Write,
    permit_update,
)
from ..core.facts import Claimed, Fact, Replied
from ..core.protocols import Prices, Store
from ..core.requests import NO_USAGE, Usage
from ..store.codec import EncodedInput, decode_job, encode_job


@dataclass(slots=True)
class _Call:
    worker: str
    outcome: bytes | None = None
    expires: float = 0.0


class CallTable:
    """Which worker makes which call, and the outcomes. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def claim(self, name: str, worker: str, now: float, is_alive: Callable[[str], bool]) -> bytes | bool:
        """As `Coordinator.claim`."""
        call = self._calls.get(name)
        if call is not None:
            if call.outcome is not None and call.expires > now:
                return call.outcome
            if call.outcome is None and call.worker != worker and is_alive(call.worker):
                return False
        self._calls[name] = _Call(worker)
        return True

    def complete(self, name: str, worker: str, outcome: bytes | None, expires: float) -> bool:
        """Returns whether the worker held the claim."""
        call = self._calls.get(name)
        if call is None or call.worker != worker or call.outcome is not None:
            return False
        if outcome is None:
            del self._calls[name]
        else:
            call.outcome, call.expires = outcome, expires
        return True


class PermitTable:
    """How many permits of each name the workers hold. Pure."""

    def __init__(self) -> None:
        self._held: dict[str, Counter[str]] = {}
        self._wanted: set[str] = set()

    def acquire(self, name: str, worker: str, limit: int, is_alive: Callable[[str], bool]) -> bool:
        """As `Coordinator.acquire_permit`."""
        held = self._held.setdefault(name, Counter())
        for other in [other for other in held if other != worker and not is_alive(other)]:
            del held[other]
        if held.total() >= limit:
            self._wanted.add(name)
            return False
        held[worker] += 1
        return True

    def release(self, name: str, worker: str) -> bool:
        """Returns whether a worker may wait for it."""
        held = self._held.get(name, Counter())
        if held[worker] > 1:
            held[worker] -= 1
        else:
            del held[worker]
        is_wanted = name in self._wanted
        self._wanted.discard(name)
        return is_wanted


PLAN = "plan"
"""Name of a document that the store keeps with the facts."""
IDENTITY = "identity"
"""Name of the document with the run's random identity, which the store keeps too."""
_MAX_UPDATES = 20_000


@dataclass(slots=True)
class _Agent:
    """An agent that was submitted and has not ended."""

    job: Job
    token: int = 0
    worker: str = ""
    """Empty while no worker has it."""
    until: float = 0.0
    attempts: int = 0
    has_facts: bool = False


@dataclass(slots=True)
class _LastBatch:
    """The last batch of a worker."""

    number: int = 0
    refused: frozenset[str] = frozenset()
    ended: list[Completion] = field(default_factory=list)
    """Completions that are published once the facts are durable."""


@dataclass(slots=True)
class _Update:
    """One update for `poll`."""

    number: int
    completion: Completion | None = None
    completed_call: str | None = None
    message: bytes | None = None


@dataclass(slots=True)
class _Work:
    agents: dict[str, _Agent] = field(default_factory=dict)
    queue: deque[str] = field(default_factory=deque)
    """Keys of agents that no worker has; some may have ended since."""
    held: dict[str, _Agent] = field(default_factory=dict)
    """Agents that a worker has."""
    completions: dict[str, Completion] = field(default_factory=dict)
    ended_by: dict[str, int] = field(default_factory=dict)
    """Tokens of the leases under which agents ended."""


class MemoryCoordinator:
    """Only the facts and the plan are durable: a process that opens the same store again submits the same work, and
    finds what is done."""

    is_durable = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._work = _Work()
        self._tokens = itertools.count(1)
        self._last_batches: dict[str, _LastBatch] = {}
        self._alive: dict[str, float] = {}
        """Workers, each with its expiry time."""
        self._documents: dict[str, bytes] = {}
        self._refused = NO_USAGE
        self._updates: deque[_Update] = deque(maxlen=_MAX_UPDATES)
        self._numbers = itertools.count(1)
        self._last = 0
        self._changed = asyncio.Event()
        self._calls = CallTable()
        self._permits = PermitTable()
        self._rate_slots: dict[str, float] = {}

    async def open(self) -> None:
        await self._store.open()

    async def aclose(self) -> None:
        await self._store.aclose()

    async def delete_run(self) -> None:
        """Facts are kept: they belong to the store."""
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
            await self._store.save_plan(orjson.loads(new))
        elif new is None:
            self._documents.pop(name, None)
        else:
            self._documents[name] = new
        return True

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        ended: dict[str, Completion] = {}
        work = self._work
        for job in jobs:
            completion = work.completions.get(job.key)
            if completion is not None and (completion.error is None or not retry_failed):
                ended[job.key] = completion
            elif job.key not in work.agents:
                work.completions.pop(job.key, None)
                work.agents[job.key] = _Agent(decode_job(encode_job(job)))
                work.queue.append(job.key)
        self._wake()
        return ended

    async def save_run(self, inputs: Sequence[bytes], prices: Prices | None) -> None:
        self._store.save_run(list(map(EncodedInput, inputs)), prices)

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        for each in rejected:
            self._store.reject(each.index, EncodedInput(each.data), each.error)

    async def pending_count(self) -> int:
        return len(self._work.agents)

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float, parts: float = 1) -> list[Lease]:
        deadline = aio.now() + wait
        self._alive[worker] = max(self._alive.get(worker, 0.0), aio.now() + ttl)
        while not (keys := self._take(worker, self._part(max_jobs, parts), ttl)) and aio.now() < deadline:
            await self._wait_for_update(min(deadline, self._next_expiry()))
        return [await self._leased(agent) for agent in keys.values()]

    async def _leased(self, agent: _Agent) -> Lease:
        token, attempts = agent.token, agent.attempts
        facts = tuple(await self._store.facts(agent.job.key))
        agent.has_facts = agent.has_facts or bool(facts)
        return Lease(agent.job, token, facts, attempts)

    def _part(self, max_jobs: int, parts: float) -> int:
        return min(max_jobs, max(1, math.ceil(len(self._work.agents) / parts)))

    def _take(self, worker: str, max_jobs: int, ttl: float) -> dict[str, _Agent]:
        now = aio.now()
        taken: dict[str, _Agent] = {}
        while self._work.queue and len(taken) < max_jobs:
            key = self._work.queue.popleft()
            agent = self._work.agents.get(key)
            if agent is not None and not agent.worker:
                taken[key] = agent
        if len(taken) < max_jobs:
            expired = (item for item in self._work.held.items() if item[1].until <= now)
            taken.update(itertools.islice(expired, max_jobs - len(taken)))
        for agent in taken.values():
            agent.worker, agent.token, agent.until = worker, next(self._tokens), now + ttl
            agent.attempts += 1
        self._work.held.update(taken)
        return taken

    def _next_expiry(self) -> float:
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
        agent.attempts -= 1
        self._work.queue.appendleft(key)
        self._wake()

    def _holds(self, key: str, token: int) -> bool:
        agent = self._work.held.get(key)
        return agent is not None and agent.token == token

    async def facts(self, key: str) -> tuple[Fact, ...]:
        return tuple(await self._store.facts(key))

    async def fact_lists(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        return [await self.facts(key) for key in keys]

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        last_batch = self._last_batches.setdefault(worker, _LastBatch())
        if number > last_batch.number:
            last_batch.number, last_batch.refused = number, self._apply(writes, last_batch.ended)
        await self._store.settle(
            sync=any(isinstance(each, Append) and isinstance(each.fact, Claimed) for each in writes)
        )
        ended, last_batch.ended = last_batch.ended, []
        for completion in ended:
            self._publish(_Update(0, completion=completion))
        return last_batch.refused

    def _apply(self, writes: Sequence[Write], ended: list[Completion]) -> frozenset[str]:
        refused: set[str] = set()
        for write in writes:
            if not self._holds(write.key.partition(".")[0], write.token):
                refused.add(write.key)
                self._refused += _usage(write)
                continue
            if write.key in self._work.held and not isinstance(write, End):
                self._work.held[write.key].has_facts = True
            match write:
                case Append(key, _, fact):
                    self._store.record(key, fact)
                case Replace(key, _, facts):
                    self._store.restart(key, facts)
                case End(_, completion):
                    self._reject_unstarted(self._work.held[completion.key], completion)
                    del self._work.agents[completion.key], self._work.held[completion.key]
                    self._work.completions[completion.key] = completion
                    self._work.ended_by[completion.key] = write.token
                    ended.append(completion)
                case _:
                    assert_never(write)
        return frozenset(refused)

    def _reject_unstarted(self, agent: _Agent, completion: Completion) -> None:
        """An agent that fails without a fact, because it was leased too often or the deadline has passed, has no other
        record in the store."""
        if completion.error is not None and not agent.has_facts:
            self._store.reject(agent.job.index, agent.job.input, completion.error)

    async def spent(self) -> Usage:
        return await self._store.spent() + self._refused

    async def position(self, *, completions: bool = True) -> Cursor:
        return (str(self._last),)

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        deadline, last = aio.now() + wait, int(after[0])
        while self._last <= last and aio.now() < deadline:
            await self._wait_for_update(deadline)
        found = list(itertools.takewhile(lambda each: each.number > last, reversed(self._updates)))[::-1]
        return Updates(
            (str(self._last),),
            tuple(each.completion for each in found if each.completion is not None),
            tuple(each.completed_call for each in found if each.completed_call is not None),
            tuple(each.message for each in found if each.message is not None),
        )

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        self._publish(_Update(0, message=data))

    async def claim(self, name: str, worker: str) -> bytes | bool:
        now = aio.now()
        return self._calls.claim(name, worker, now, lambda other: self._alive.get(other, 0.0) > now)

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        if self._calls.complete(name, worker, outcome, aio.now() + ttl):
            self._publish(_Update(0, completed_call=name))

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        now = aio.now()
        due = max(self._rate_slots.get(name, now), now)
        self._rate_slots[name] = due + interval
        return max(0.0, due - ahead - now)

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        return self._permits.acquire(name, worker, limit, lambda other: self._alive.get(other, 0.0) > aio.now())

    async def release_permit(self, name: str, worker: str) -> None:
        if self._permits.release(name, worker):
            self._publish(_Update(0, completed_call=permit_update(name)))

    def _publish(self, update: _Update) -> None:
        self._last = update.number = next(self._numbers)
        self._updates.append(update)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_for_update(self, deadline: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline if deadline != float("inf") else None):
                await self._changed.wait()


def _usage(write: Write) -> Usage:
    return write.fact.reply.usage if isinstance(write, Append) and isinstance(write.fact, Replied) else NO_USAGE
