"""A process that has joined a run: everything of it that is shared with others."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ..core.agent_config import Job
from ..core.coordinator import Completion, Coordinator
from ..core.errors import StoreError
from ..core.protocols import EventSink
from ..core.results import AgentResult
from ..engine.admission import AdmissionController
from ..engine.budget import BudgetPool
from ..schedule.budget import FREE, Amount
from .budget_sharing import share_budget
from .events.relay import EventRelay
from .leased_source import LeasedSource
from .limit_sharing import LimitSharing, share_limits, workers_of
from .membership import Membership, worker_name
from .presence import ClientPresence
from .shared_store import SharedStore
from .shared_tool_calls import ClusterToolCalls

_SHOWN = 3


class ClusterSession:
    """One worker's part in a run, or one caller's."""

    def __init__(
        self,
        hub: Coordinator,
        member: Membership,
        store: SharedStore,
        calls: ClusterToolCalls,
        callers: ClientPresence,
        events: EventRelay,
    ) -> None:
        self.hub = hub
        self.member = member
        self.store = store
        self.calls = calls
        self.callers = callers
        self.events = events
        """What happens here, and what others tell."""
        self.retry_failed = False
        """Whether agents that ended without an answer are done again."""
        self._limits: LimitSharing | None = None

    async def check_alone(self) -> None:
        """Before something changes under everybody. Raises StoreError where others are at work."""
        if others := await workers_of(self.hub) - {self.member.name}:
            raise StoreError(
                f"{len(others)} others are at work on this run, and would go on with what it was: "
                f"{', '.join(sorted(others)[:_SHOWN])}. Stop them first, or give this run another run_id."
            )

    @asynccontextmanager
    async def share_limits(self, gates: Mapping[str, AdmissionController]) -> AsyncIterator[None]:
        """Of the servers behind these gates, by their names. Raises StoreError."""
        async with share_limits(self.hub, self.member.name, gates, ttl=self.member.ttl) as self._limits:
            yield

    def share_purse(self, purse: BudgetPool) -> AbstractAsyncContextManager[bool]:
        """Gives whether the account was opened here, in tokens only: nobody knows a price yet. Raises StoreError."""

        async def spent() -> Amount:
            return Amount.of(await self.hub.spent(), FREE)

        return share_budget(self.hub, self.member.name, purse, spent, ttl=self.member.ttl)

    def source(self, gate: AdmissionController, *, ends_by_itself: bool = False) -> LeasedSource:
        """Work for this process. `ends_by_itself`: when nobody has anything left to do."""
        return LeasedSource(
            self.member,
            self.store,
            slots=lambda: gate.slots.limit,
            workers=lambda: self._limits.workers if self._limits else 1,
            is_over=self._is_over if ends_by_itself else None,
        )

    async def submit(self, jobs: Sequence[Job]) -> dict[str, Completion]:
        """Raises StoreError."""
        return await self.hub.submit(jobs, retry_failed=self.retry_failed)

    async def end(self, result: AgentResult) -> None:
        """The agent came to its end here, and its facts are written. Raises LeaseLost and StoreError."""
        await self.store.end(Completion(result.key, result.error, result.timing.total, self.member.name))

    async def _is_over(self) -> bool:
        return await self.hub.pending_count() == 0 and not await self.callers.are_there()


@asynccontextmanager
async def join(
    hub: Coordinator, *, ttl: float, retry_failed: bool, events: EventSink | None = None, asks: bool = True
) -> AsyncIterator[ClusterSession]:
    """For as long as the block runs; at its end, others may have what is not done. `retry_failed`: agents that ended
    without an answer are done again, unless other callers are there, whose results these are too. Raises StoreError."""
    await hub.open()
    try:
        member = Membership(hub, worker_name(), ttl, hears_endings=asks)
        store, calls = SharedStore(member), ClusterToolCalls(hub, member.name)
        member.on_news(lambda news: calls.on_completed(news.completed_calls))
        hearing = EventRelay(hub, member.name, events, asks=asks)
        member.on_news(lambda news: hearing.heard(news.published))
        joined = ClusterSession(hub, member, store, calls, ClientPresence(hub, ttl), hearing)
        joined.retry_failed = retry_failed and not await joined.callers.are_there()
        async with member.at_work(), store.writing(), hearing.open():
            try:
                yield joined
            finally:
                await calls.aclose()
    finally:
        await hub.aclose()
