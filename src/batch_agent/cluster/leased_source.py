"""Work source of a worker: leases agents in small batches."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..core.agent_config import Job
from ..core.coordinator import Lease
from ..core.errors import ErrorKind
from ..core.results import AgentError
from .membership import Membership
from .shared_store import SharedStore

_MAX_BATCH = 32
_MIN_BATCH = 8
_SLOTS_PER_LEASE = 2
"""Above the minimum, a worker leases one agent ahead per this many slots."""
_ROUNDS = 4
"""Number of leases into which each worker's share of the remaining agents is divided. The last leases are small, so
that all workers finish together."""
_PARTS_ALONE = 1.5
"""Divisor of the remaining agents for a worker that is alone. It leaves a third of them to workers that may join
soon."""
_MAX_ATTEMPTS = 5
"""Attempts after which an agent is assumed to kill its workers."""
_WAIT = 2.0
_PAUSE = 0.2


class LeasedSource:
    """Work source of one worker among several. Ends on `stop`, or when no agent is left."""

    total = None
    is_bounded = False

    def __init__(
        self,
        member: Membership,
        store: SharedStore,
        *,
        slots: Callable[[], int],
        workers: Callable[[], int],
        is_finished: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`slots`: number of requests that this worker may have in flight. `workers`: number of workers. `is_finished`:
        checked when there is nothing to lease; None: only `stop` ends the source."""
        self._member = member
        self._store = store
        self._slots = slots
        self._workers = workers
        self._is_finished = is_finished
        self._ready: deque[Lease] = deque()
        self._running: set[str] = set()
        self._stopped = False
        self._waiting: asyncio.Timeout | None = None

    async def take(self) -> Job | None:
        """Raises StoreError."""
        while not self._stopped:
            if self._ready:
                lease = self._ready.popleft()
                if self._member.holds(lease.job.key):  # otherwise another worker has taken it over
                    return self._start(lease)
            elif not await self._lease() and self._is_finished is not None and await self._is_finished():
                return None
        await self._release_rest()
        return None

    def _start(self, lease: Lease) -> Job:
        self._running.add(lease.job.key)
        self._store.preload(lease.job.key, lease.facts)
        return lease.job if lease.attempts <= _MAX_ATTEMPTS else replace(lease.job, problem=_too_many_attempts(lease))

    def release(self, job: Job) -> None:
        self._running.discard(job.key)

    def stop(self) -> None:
        """Ends the source; a pending `take` returns None."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def _lease(self) -> bool:
        max_jobs = min(_MAX_BATCH, max(_MIN_BATCH, self._slots() // _SLOTS_PER_LEASE))
        try:
            async with asyncio.timeout(None) as self._waiting:
                leases = await self._member.lease(max_jobs, _WAIT, self._parts)
        except TimeoutError:
            return False
        finally:
            self._waiting = None
        duplicates = {lease.job.key: lease.token for lease in leases if lease.job.key in self._running}
        for lease in leases:
            if lease.job.key not in duplicates:
                self._member.hold(lease)
                self._ready.append(lease)
        if duplicates:  # the lease was lost, but the agent still runs here and has not noticed
            await self._member.release(duplicates)
            await asyncio.sleep(_PAUSE)
        return bool(leases)

    @property
    def _parts(self) -> float:
        workers = self._workers()
        return _ROUNDS * workers if workers > 1 else _PARTS_ALONE

    async def _release_rest(self) -> None:
        """Releases agents that were not started."""
        tokens = {lease.job.key: lease.token for lease in self._ready if self._member.holds(lease.job.key)}
        self._ready.clear()
        for key in tokens:
            self._member.drop(key)
        await self._member.release(tokens)


def _too_many_attempts(lease: Lease) -> AgentError:
    return AgentError(
        ErrorKind.INTERNAL,
        f"The agent was started {lease.attempts - 1} times, and each time its worker died or lost contact. Check its "
        "tools, or give workers more memory or a longer lease.",
        retryable=True,
    )
