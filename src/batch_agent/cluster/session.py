"""A process that has joined a run: everything of it that is shared with others."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ..core.agent_config import Job
from ..core.coordinator import Ending, Hub
from ..core.errors import StoreError
from ..core.protocols import EventSink
from ..core.results import AgentResult
from ..engine.admission import Gate
from ..engine.budget import Purse
from ..schedule.budget import FREE, Amount
from .budget_sharing import share_purse
from .events.relay import Hearing
from .leased_source import LeasedSource
from .limit_sharing import LimitSharing, share_limits, workers_of
from .membership import Member, worker_name
from .presence import Callers
from .shared_store import SharedStore
from .shared_tool_calls import SharedCalls

_SHOWN = 3


class Joined:
    """One worker's part in a run, or one caller's."""

    def __init__(
        self, hub: Hub, member: Member, store: SharedStore, calls: SharedCalls, callers: Callers, events: Hearing
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
    async def share_limits(self, gates: Mapping[str, Gate]) -> AsyncIterator[None]:
        """Of the servers behind these gates, by their names. Raises StoreError."""
        async with share_limits(self.hub, self.member.name, gates, lasts=self.member.lasts) as self._limits:
            yield

    def share_purse(self, purse: Purse) -> AbstractAsyncContextManager[bool]:
        """Gives whether the account was opened here, in tokens only: nobody knows a price yet. Raises StoreError."""

        async def spent() -> Amount:
            return Amount.of(await self.hub.spent(), FREE)

        return share_purse(self.hub, self.member.name, purse, spent, lasts=self.member.lasts)

    def source(self, gate: Gate, *, ends_by_itself: bool = False) -> LeasedSource:
        """Work for this process. `ends_by_itself`: when nobody has anything left to do."""
        return LeasedSource(
            self.member,
            self.store,
            slots=lambda: gate.slots.limit,
            workers=lambda: self._limits.workers if self._limits else 1,
            is_over=self._is_over if ends_by_itself else None,
        )

    async def post(self, jobs: Sequence[Job]) -> dict[str, Ending]:
        """Raises StoreError."""
        return await self.hub.post(jobs, retry_failed=self.retry_failed)

    async def end(self, result: AgentResult) -> None:
        """The agent came to its end here, and its facts are written. Raises LeaseLost and StoreError."""
        await self.store.end(Ending(result.key, result.error, result.timing.total, self.member.name))

    async def _is_over(self) -> bool:
        return await self.hub.left() == 0 and not await self.callers.are_there()


@asynccontextmanager
async def join(
    hub: Hub, *, lasts: float, retry_failed: bool, events: EventSink | None = None, asks: bool = True
) -> AsyncIterator[Joined]:
    """For as long as the block runs; at its end, others may have what is not done. `retry_failed`: agents that ended
    without an answer are done again, unless other callers are there, whose results these are too. Raises StoreError."""
    await hub.open()
    try:
        member = Member(hub, worker_name(), lasts, hears_endings=asks)
        store, calls = SharedStore(member), SharedCalls(hub, member.name)
        member.on_news(lambda news: calls.landed(news.landed))
        hearing = Hearing(hub, member.name, events, asks=asks)
        member.on_news(lambda news: hearing.heard(news.told))
        joined = Joined(hub, member, store, calls, Callers(hub, lasts), hearing)
        joined.retry_failed = retry_failed and not await joined.callers.are_there()
        async with member.at_work(), store.writing(), hearing.open():
            try:
                yield joined
            finally:
                await calls.aclose()
    finally:
        await hub.aclose()
