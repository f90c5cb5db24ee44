"""One budget for all workers of a run: each leases what it is about to spend."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import orjson

from .. import aio
from ..core.coordinator import Document
from ..core.errors import StoreError
from ..core.fast_dataclass import dataclass
from ..engine.budget import BudgetPool
from ..schedule.budget import Amount
from ..schedule.fair_share import BudgetClaim, lease
from .limit_sharing import CAUTION, ContentionError, Documents, change, pause, retry_contention
from .membership import best_effort

_log = logging.getLogger("batch_agent")
_BUDGET = "budget"

Spent = Callable[[], Awaitable[Amount]]


@asynccontextmanager
async def share_budget(
    hub: Documents, worker: str, purse: BudgetPool, spent: Spent, *, ttl: float, interval: float = 0.5
) -> AsyncIterator[bool]:
    """Nothing is spent from the purse but what this worker has leased, for as long as the block runs. It leases more
    when somebody waits, gives back what it does not need at each beat, if others wait, and all of it at the end.
    Together the workers never spend more than there is. `spent`: what replies have cost so far; asked where no worker
    is alive. What was leased by a worker that is not heard of for `ttl` seconds counts as spent. Gives whether this
    worker opened the account, with what `spent` gave. Raises StoreError."""
    asked = asyncio.Event()
    purse.require_leases(asked.set)
    sharing = _BudgetSharing(hub, worker, purse, ttl)
    await retry_contention(lambda: sharing.join(spent))
    beating = asyncio.get_running_loop().create_task(_beat(sharing, asked, interval, ttl))
    try:
        yield sharing.has_opened
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await sharing.leave()


async def _beat(sharing: "_BudgetSharing", asked: asyncio.Event, interval: float, ttl: float) -> None:
    while True:  # until it is cancelled with the run
        with suppress(TimeoutError):
            async with asyncio.timeout(pause(interval, ttl, sharing.workers)):
                await asked.wait()
        asked.clear()
        try:
            await sharing.beat()
        except StoreError as error:  # it is tried again, and what is not renewed ends by itself
            _log.debug("The budget was not shared for a moment: %s", error)


@dataclass(frozen=True, slots=True)
class _Account:
    """What all workers together have spent, and may."""

    before: Amount
    """Spent by those that are gone."""
    shares: dict[str, BudgetClaim]
    until: dict[str, float]

    @property
    def is_abandoned(self) -> bool:
        return not any(share.is_alive for share in self.shares.values())

    @property
    def at_most(self) -> Amount:
        """What was spent, if nobody is alive: workers that ended without a word may have spent all they had leased."""
        return sum((share.leased for share in self.shares.values()), self.before)

    def with_share(self, worker: str, share: BudgetClaim, until: float) -> "_Account":
        return _Account(self.before, {**self.shares, worker: share}, {**self.until, worker: until})

    def without(self, worker: str, spent: Amount) -> "_Account":
        """A worker is gone, and has spent so much. Harmless where it is not known."""
        if worker not in self.shares:
            return self
        shares = {name: share for name, share in self.shares.items() if name != worker}
        return _Account(self.before + spent, shares, self.until)


@dataclass(frozen=True, slots=True)
class _Reported:
    """What a worker says of itself, and what follows from it once all can read it."""

    spent: Amount
    leased: Amount
    elsewhere: Amount
    workers: int


class _BudgetSharing:
    """One worker among those that share a budget."""

    def __init__(self, hub: Documents, worker: str, purse: BudgetPool, ttl: float) -> None:
        self._hub = hub
        self._worker = worker
        self._purse = purse
        self._budget = purse.budget
        self._ttl = ttl
        self._said = self._says = _Reported(self._budget.spent_here, Amount(), Amount(), 1)
        self._in_force = Amount()
        self._begun_with = self._said.spent
        """Spent here, but not counted as this worker's."""
        self.has_opened = False
        self._stopping: asyncio.TimerHandle | None = None

    @property
    def workers(self) -> int:
        return self._said.workers

    async def join(self, spent: Spent) -> None:
        """Raises StoreError."""

        async def enter(document: Document) -> bytes:
            account = _decode(document)
            self.has_opened = document.data is None
            if account.is_abandoned:
                account = _Account(account.at_most.maximum(await spent()), {}, {})
            elif self._worker in account.shares:  # one of this name that ended without a word
                account = account.without(self._worker, account.shares[self._worker].leased)
            nothing = BudgetClaim(Amount(), Amount(), waits=False)
            return _encode(account.with_share(self._worker, nothing, document.now + self._ttl))

        await change(self._hub, _BUDGET, enter)
        await self.beat()

    async def beat(self) -> None:
        """Says what was spent here, and leases what is needed. Raises StoreError."""
        began = aio.now()
        await change(self._hub, _BUDGET, self._edit)
        stops_at = began + CAUTION * self._ttl
        if aio.now() >= stops_at:
            raise ContentionError("The hub took so long to answer that others may take this worker for gone.")
        self._said = self._says
        self._in_force = self._said.leased
        self._purse.lease(self._said.leased, self._said.elsewhere)
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.get_running_loop().call_at(stops_at, self._stop)

    async def leave(self) -> None:
        """What was not spent is there for others."""
        if self._stopping is not None:
            self._stopping.cancel()
        self._stop()
        await best_effort(change(self._hub, _BUDGET, self._without))  # else all of it counts as spent

    async def _edit(self, document: Document) -> bytes:
        """What is lowered is in force before it is said, what is raised only after it."""
        account = _decode(document)
        if self._worker not in account.shares:
            # All were taken for gone, and others began anew from what was written. What was not by then counts again.
            self._begun_with = self._said.spent
        others = [share for name, share in account.shares.items() if name != self._worker]
        before = account.before - self._begun_with
        leased, waits = lease(self._budget.limit, before, others, self._budget.committed_here, self._purse.needs)
        self._put(self._in_force.minimum(leased))
        elsewhere = sum((share.at_least for share in others), before)
        workers = 1 + sum(share.is_alive for share in others)
        self._says = _Reported(self._budget.spent_here, leased, elsewhere, workers)
        share = BudgetClaim(self._says.spent - self._begun_with, leased - self._begun_with, waits)
        return _encode(account.with_share(self._worker, share, document.now + self._ttl))

    async def _without(self, document: Document) -> bytes:
        return _encode(_decode(document).without(self._worker, self._budget.committed_here - self._begun_with))

    def _stop(self) -> None:
        """Others may take this worker for gone."""
        self._put(Amount())

    def _put(self, leased: Amount) -> None:
        self._in_force = leased
        self._budget.lease(leased)


def _decode(document: Document) -> _Account:
    if document.data is None:
        return _Account(Amount(), {}, {})
    try:
        before, said = orjson.loads(document.data)
        shares = {
            who: BudgetClaim(Amount(*spent), Amount(*leased), waits, is_alive=until > document.now)
            for who, (until, spent, leased, waits) in said.items()
        }
        return _Account(Amount(*before), shares, {who: each[0] for who, each in said.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            "The budget that workers share cannot be read. All workers of a run need the same version of batch_agent."
        ) from error


def _encode(account: _Account) -> bytes:
    said = {
        who: [account.until[who], _pair(share.spent), _pair(share.leased), share.waits]
        for who, share in account.shares.items()
    }
    return orjson.dumps([_pair(account.before), said])


def _pair(amount: Amount) -> list[float]:
    return [amount.tokens, amount.usd]
