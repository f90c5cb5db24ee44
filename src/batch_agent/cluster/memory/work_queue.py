"""Work queue in memory."""

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ... import aio
from ...core.agent_config import Job
from ...core.coordinator import Completion, Lease
from ...core.protocols.store import Store
from ...store.codec import decode_job, encode_job
from .updates import MemoryUpdateStream


@dataclass(slots=True)
class _Agent:
    """An agent that was submitted and has not ended."""

    job: Job
    token: int = 0
    worker: str = ""
    """Empty while no worker holds the agent."""
    until: float = 0.0
    attempts: int = 0
    has_facts: bool = False


@dataclass(slots=True)
class _Work:
    agents: dict[str, _Agent] = field(default_factory=dict)
    queue: deque[str] = field(default_factory=deque)
    """Keys of agents that no worker holds. Some of them may have ended since."""
    held: dict[str, _Agent] = field(default_factory=dict)
    """Agents held by a worker."""
    completions: dict[str, Completion] = field(default_factory=dict)
    ended_by: dict[str, int] = field(default_factory=dict)
    """Tokens of the leases under which agents ended."""


class MemoryWorkQueue:
    """Work queue in memory. A lease comes with the stored facts of its agent."""

    def __init__(self, store: Store, updates: MemoryUpdateStream) -> None:
        self._store = store
        self._updates = updates
        self._work = _Work()
        self._tokens = itertools.count(1)
        self._alive: dict[str, float] = {}
        """Expiry time of each worker."""

    def clear(self) -> None:
        """Forgets all agents."""
        self._work = _Work()

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
        self._updates.wake_up()
        return ended

    async def pending_count(self) -> int:
        return len(self._work.agents)

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float, parts: float = 1) -> list[Lease]:
        deadline = aio.now() + wait
        self._alive[worker] = max(self._alive.get(worker, 0.0), aio.now() + ttl)
        while not (taken := self._take(worker, self._part(max_jobs, parts), ttl)) and aio.now() < deadline:
            await self._updates.wait_for_change(min(deadline, self._next_expiry()))
        return [await self._leased(agent) for agent in taken.values()]

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        until = aio.now() + ttl
        self._alive[worker] = until
        kept = {key for key, token in tokens.items() if self.holds(key, token)}
        for key in kept:
            self._work.held[key].until = until
        ended = {key for key, token in tokens.items() if self._work.ended_by.get(key) == token}
        return frozenset(tokens) - kept - ended

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        for key in [key for key, token in tokens.items() if self.holds(key, token)]:
            self._free(key)

    async def leave(self, worker: str) -> None:
        for key in [key for key, agent in self._work.held.items() if agent.worker == worker]:
            self._free(key)
        self._alive.pop(worker, None)

    def is_alive(self, worker: str) -> bool:
        return self._alive.get(worker, 0.0) > aio.now()

    def holds(self, key: str, token: int) -> bool:
        """Whether a worker holds the agent with this token."""
        agent = self._work.held.get(key)
        return agent is not None and agent.token == token

    def add_facts(self, key: str) -> None:
        """Notes that the store has facts of this agent. Chunks are ignored: the queue never looks them up."""
        if (agent := self._work.held.get(key)) is not None:
            agent.has_facts = True

    def end(self, completion: Completion, token: int) -> None:
        """Ends an agent that a worker holds. Records the end of an agent that failed without a fact, because it was
        leased too often or the deadline has passed: the store has no other record of it."""
        key, work = completion.key, self._work
        agent = work.held.pop(key)
        del work.agents[key]
        if completion.error is not None and not agent.has_facts:
            self._store.reject(agent.job.index, agent.job.input, completion.error)
        work.completions[key] = completion
        work.ended_by[key] = token

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

    def _free(self, key: str) -> None:
        agent = self._work.held.pop(key)
        agent.worker = ""
        agent.attempts -= 1
        self._work.queue.appendleft(key)
        self._updates.wake_up()
