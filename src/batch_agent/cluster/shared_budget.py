"""One budget for all workers of a run. Each worker leases amounts before it spends them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import orjson

from .. import aio
from ..core.coordinator import Document, Documents
from ..core.errors import StoreError
from ..core.fast_dataclass import dataclass
from ..engine.budget_pool import BudgetPool
from ..schedule.budget import Amount
from ..schedule.fair_share import BudgetClaim, lease
from .document_change import ContentionError, change, retry_contention
from .membership import best_effort
from .shared_limits import SAFETY_FACTOR, renewal_interval

_log = logging.getLogger("batch_agent")
_BUDGET = "budget"

Spent = Callable[[], Awaitable[Amount]]


@asynccontextmanager
async def share_budget(
    coordinator: Documents, worker: str, pool: BudgetPool, spent: Spent, *, ttl: float, interval: float = 0.5
) -> AsyncIterator[bool]:
    """Limits spending from the pool to what this worker has leased, while the block runs. The worker leases more when
    an agent waits, returns what it does not need at each renewal if other workers wait, and returns everything at the
    end. Together the workers never exceed the budget. `spent`: returns the cost of all replies so far; called if no
    worker is alive. A lease that is not renewed for `ttl` seconds counts as spent. Yields whether this worker opened
    the account with the amount from `spent`. Raises StoreError."""
    requested = asyncio.Event()
    pool.require_leases(requested.set)
    sharing = _BudgetSharing(coordinator, worker, pool, ttl)
    await retry_contention(lambda: sharing.join(spent))
    renewing = asyncio.get_running_loop().create_task(_renew_forever(sharing, requested, interval, ttl))
    try:
        yield sharing.has_opened
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])
        await sharing.leave()


async def shared_spending(coordinator: Documents) -> Amount:
    """The spending of all workers, as last reported: up to a second old, or up to a lease for a worker that died.
    Raises StoreError."""
    account = _decode(await coordinator.read(_BUDGET))
    return sum((share.at_least for share in account.shares.values()), account.before)


async def _renew_forever(sharing: "_BudgetSharing", requested: asyncio.Event, interval: float, ttl: float) -> None:
    while True:  # until it is cancelled with the run
        with suppress(TimeoutError):
            async with asyncio.timeout(renewal_interval(interval, ttl, sharing.workers)):
                await requested.wait()
        requested.clear()
        try:
            await sharing.renew()
        except StoreError as error:  # retried; a lease that is not renewed expires
            _log.debug("The budget could not be shared: %s", error)


@dataclass(frozen=True, slots=True)
class _Account:
    """The account that all workers share."""

    before: Amount
    """Amount spent by workers that have left."""
    shares: dict[str, BudgetClaim]
    until: dict[str, float]

    @property
    def is_abandoned(self) -> bool:
        return not any(share.is_alive for share in self.shares.values())

    @property
    def upper_bound(self) -> Amount:
        """Upper bound of the spending if no worker is alive: workers that died may have spent all that they had
        leased."""
        return sum((share.leased for share in self.shares.values()), self.before)

    def with_share(self, worker: str, share: BudgetClaim, until: float) -> "_Account":
        return _Account(self.before, {**self.shares, worker: share}, {**self.until, worker: until})

    def without(self, worker: str, spent: Amount) -> "_Account":
        """Removes a worker that has spent this amount. Does nothing if the worker is unknown."""
        if worker not in self.shares:
            return self
        shares = {name: share for name, share in self.shares.items() if name != worker}
        return _Account(self.before + spent, shares, self.until)


@dataclass(frozen=True, slots=True)
class _Report:
    """A worker's report, and the changes that take effect once other workers can read it."""

    spent: Amount
    leased: Amount
    elsewhere: Amount
    workers: int


class _BudgetSharing:
    """One worker among those that share a budget."""

    def __init__(self, coordinator: Documents, worker: str, pool: BudgetPool, ttl: float) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._pool = pool
        self._budget = pool.budget
        self._ttl = ttl
        self._reported = self._pending = _Report(self._budget.spent_here, Amount(), Amount(), 1)
        self._in_force = Amount()
        self._uncounted = self._reported.spent
        """Amount spent here that no longer counts as this worker's."""
        self.has_opened = False
        self._stopping: asyncio.TimerHandle | None = None

    @property
    def workers(self) -> int:
        return self._reported.workers

    async def join(self, spent: Spent) -> None:
        """Raises StoreError."""

        async def enter(document: Document) -> bytes:
            account = _decode(document)
            self.has_opened = document.data is None
            if account.is_abandoned:
                account = _Account(account.upper_bound.maximum(await spent()), {}, {})
            elif self._worker in account.shares:  # an earlier worker with this name has died
                account = account.without(self._worker, account.shares[self._worker].leased)
            empty = BudgetClaim(Amount(), Amount(), waits=False)
            return _encode(account.with_share(self._worker, empty, document.now + self._ttl))

        await change(self._coordinator, _BUDGET, enter)
        await self.renew()

    async def renew(self) -> None:
        """Reports the spending here, and leases what is needed. Raises StoreError."""
        began = aio.now()
        await change(self._coordinator, _BUDGET, self._edit)
        stops_at = began + SAFETY_FACTOR * self._ttl
        if aio.now() >= stops_at:
            raise ContentionError("The coordinator responded so late that other workers may consider this one dead.")
        self._reported = self._pending
        self._in_force = self._reported.leased
        self._pool.lease(self._reported.leased, self._reported.elsewhere, self._reported.workers)
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.get_running_loop().call_at(stops_at, self._stop)

    async def leave(self) -> None:
        """Returns the unspent amount to the other workers."""
        if self._stopping is not None:
            self._stopping.cancel()
        self._stop()
        await best_effort(change(self._coordinator, _BUDGET, self._without))  # otherwise all of it counts as spent

    async def _edit(self, document: Document) -> bytes:
        """A decrease takes effect before it is written, an increase only after it."""
        account = _decode(document)
        if self._worker not in account.shares:
            # All workers were considered gone, and others have reopened the account. Amounts not written by then count
            # again.
            self._uncounted = self._reported.spent
        others = [share for name, share in account.shares.items() if name != self._worker]
        before = account.before - self._uncounted
        leased, waits = lease(self._budget.limit, before, others, self._budget.committed_here, self._pool.needs)
        self._put(self._in_force.minimum(leased))
        elsewhere = sum((share.at_least for share in others), before)
        workers = 1 + sum(share.is_alive for share in others)
        self._pending = _Report(self._budget.spent_here, leased, elsewhere, workers)
        share = BudgetClaim(self._pending.spent - self._uncounted, leased - self._uncounted, waits)
        return _encode(account.with_share(self._worker, share, document.now + self._ttl))

    async def _without(self, document: Document) -> bytes:
        return _encode(_decode(document).without(self._worker, self._budget.committed_here - self._uncounted))

    def _stop(self) -> None:
        """Stops spending, because other workers may consider this one dead."""
        self._put(Amount())

    def _put(self, leased: Amount) -> None:
        self._in_force = leased
        self._budget.lease(leased)


def _decode(document: Document) -> _Account:
    if document.data is None:
        return _Account(Amount(), {}, {})
    try:
        before, claims = orjson.loads(document.data)
        shares = {
            worker: BudgetClaim(Amount(*spent), Amount(*leased), waits, is_alive=until > document.now)
            for worker, (until, spent, leased, waits) in claims.items()
        }
        return _Account(Amount(*before), shares, {worker: each[0] for worker, each in claims.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            "The shared budget cannot be read. All workers of a run need the same version of batch_agent."
        ) from error


def _encode(account: _Account) -> bytes:
    claims = {
        worker: [account.until[worker], _pair(share.spent), _pair(share.leased), share.waits]
        for worker, share in account.shares.items()
    }
    return orjson.dumps([_pair(account.before), claims])


def _pair(amount: Amount) -> list[float]:
    return [amount.tokens, amount.usd]
