"""Jobs on lease: as many as can be worked on, a few at a time."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..core.agent_config import Job
from ..core.coordinator import Lease
from ..core.errors import ErrorKind
from ..core.results import AgentError
from .membership import Membership
from .shared_store import SharedStore

_MOST = 32
_FEW = 4
_SHARE = 2
"""Beyond a few, no more than one in so many of the slots is leased ahead."""
_ROUNDS = 4
"""Of leases that each worker makes of what is left: the last ones are small, so that all end together."""
_MOST_TIMES = 5
"""An agent that was handed out more often has taken its workers with it."""
_WAIT = 2.0
_PAUSE = 0.2


class LeasedSource:
    """The work source of one worker among several. It ends when it is told to, or when nobody has anything left."""

    total = None
    is_bounded = False

    def __init__(
        self,
        member: Membership,
        store: SharedStore,
        *,
        slots: Callable[[], int],
        workers: Callable[[], int],
        is_over: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`slots`: how many requests may be in flight from here; `workers`: how many share the work. `is_over`: asked
        when there is nothing to do; None: only `stop` ends it."""
        self._member = member
        self._store = store
        self._slots = slots
        self._workers = workers
        self._is_over = is_over
        self._ready: deque[Lease] = deque()
        self._running: set[str] = set()
        self._stopped = False
        self._waiting: asyncio.Timeout | None = None

    async def take(self) -> Job | None:
        """Raises StoreError."""
        while not self._stopped:
            if self._ready:
                lease = self._ready.popleft()
                if self._member.holds(lease.job.key):  # else it was handed to another one while it waited here
                    return self._begun(lease)
            elif not await self._lease() and self._is_over is not None and await self._is_over():
                return None
        await self._give_back()
        return None

    def _begun(self, lease: Lease) -> Job:
        self._running.add(lease.job.key)
        self._store.tell(lease.job.key, lease.facts)
        return lease.job if lease.attempts <= _MOST_TIMES else replace(lease.job, problem=_deadly(lease))

    def release(self, job: Job) -> None:
        self._running.discard(job.key)

    def stop(self) -> None:
        """Whoever waits for work gets none any more."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def _lease(self) -> bool:
        most = min(_MOST, max(_FEW, self._slots() // _SHARE))
        share = await self._member.hub.pending_count() / (_ROUNDS * max(1, self._workers()))
        most = min(most, max(1, math.ceil(share)))
        if self._stopped:
            return False
        try:
            async with asyncio.timeout(None) as self._waiting:
                leases = await self._member.lease(most, _WAIT)
        except TimeoutError:
            return False
        finally:
            self._waiting = None
        twice = {lease.job.key: lease.token for lease in leases if lease.job.key in self._running}
        for lease in leases:
            if lease.job.key not in twice:
                self._member.hold(lease)
                self._ready.append(lease)
        if twice:  # it was lost, and what runs here does not know it yet
            await self._member.hub.release(self._member.name, twice)
            await asyncio.sleep(_PAUSE)
        return bool(leases)

    async def _give_back(self) -> None:
        """What was not begun."""
        tokens = {lease.job.key: lease.token for lease in self._ready if self._member.holds(lease.job.key)}
        self._ready.clear()
        for key in tokens:
            self._member.drop(key)
        await self._member.hub.release(self._member.name, tokens)


def _deadly(lease: Lease) -> AgentError:
    return AgentError(
        ErrorKind.INTERNAL,
        f"It was begun {lease.attempts - 1} times, and each time its worker ended or was not heard of any more. Look "
        "at what its tools do, or give workers more memory or a longer lease.",
        retryable=True,
    )
