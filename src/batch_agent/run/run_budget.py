"""Budget of a run: the spending of earlier runs, backends whose requests count against it, and its durable account."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ..backends.connect import TrialRequest
from ..backends.prices import price_of
from ..core.agent_config import AgentConfig
from ..core.errors import SpecError, StoreError
from ..core.events import BudgetReported
from ..core.options import SpendingLimits
from ..core.options.price import FREE, Price
from ..core.protocols.backend import Backend
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Account, EarlierSubmission, Store
from ..core.requests import LANES, NO_USAGE, Request, Usage
from ..core.spec import BatchSpec
from ..engine.budget_pool import BudgetedBackend, BudgetPool, PriceOf
from ..schedule.budget import Amount, Budget
from ..schedule.fair_share import lease
from ..store.memory_store import NoStore

if TYPE_CHECKING:
    from ..cluster.cluster_session import ClusterSession


class RunBudget:
    """The budget of a run, shared by all stages of a flow."""

    def __init__(self, spending: SpendingLimits) -> None:
        self._spending = spending
        self.pool = BudgetPool(Budget(max_tokens=spending.max_total_tokens, max_usd=spending.max_usd))
        self._usd_is_known = True
        self._replied: list[Usage] = []
        """Usage that replies of earlier runs reported, for each stage."""
        self._unreplied = 0.0
        """Tokens that earlier runs may have spent on requests without a reply."""

    @classmethod
    async def open(
        cls, spending: SpendingLimits, stores: Sequence[Store], stack: AsyncExitStack, cluster: "ClusterSession | None"
    ) -> "RunBudget":
        """Opens the budget, with the spending of earlier runs as far as it is known without prices. Raises
        StoreError."""
        opened = cls(spending)
        opened._replied = [await store.spent() for store in stores]
        if cluster is not None:
            opened._usd_is_known = not await stack.enter_async_context(cluster.share_budget_pool(opened.pool))
            return opened
        await opened._count_earlier(stores)
        if not isinstance(stores[0], NoStore):
            await stack.enter_async_context(persist_account(opened.pool, stores[0]))
        return opened

    async def trial(self, stores: Sequence[Store]) -> TrialRequest:
        """A function that sends a server its trial request, which counts against the budget. If none is left, the
        server is assumed to be unchanged."""
        plans = [await store.plan() for store in stores]
        used_action_mode = any(plan is not None and plan.get("tool mode") == "action" for plan in plans)
        return TrialRequest(
            lambda backend: BudgetedBackend(backend, self.pool, self._prices(backend)),
            assume_tools=not used_action_mode,
        )

    def backend(
        self,
        backend: Backend,
        spec: BatchSpec,
        config: AgentConfig,
        agents: int | None,
        notify: Callable[[str], None],
        submitted: Callable[[Request], EarlierSubmission | None] | None = None,
    ) -> Backend:
        """The backend of a stage, wrapped so that its requests count. Raises SpecError if the budget cannot pay for one
        request."""
        in_flight = spec.limits.max_inflight or backend.traits.inflight
        budgeted = BudgetedBackend(
            backend,
            self.pool,
            self._prices(backend),
            spec.context.context_tokens,
            in_flight if agents is None else max(1, min(in_flight, agents)),
            submitted,
        )
        request = Request(config.prompt, (), config.model, config.sampling, config.last_turn_schema)
        price = budgeted.price(config.model)
        worst = budgeted.worst(request, price)
        self._check(worst, price)
        if config.sampling.max_tokens is None:
            notify(
                f"max_tokens is not set: the budget limits answers to {worst.output:,} tokens at first. One that needs "
                "more is requested again with more. Set max_tokens for a limit of your own."
            )
        return budgeted

    def _check(self, worst: Usage, price: Price) -> None:
        limit = self.pool.budget.limit
        tokens, usd = worst.input + worst.output, min(price.at_most(worst.in_lane(lane)) for lane in LANES)
        if tokens > limit.tokens:
            name, least = f"max_total_tokens={limit.tokens:,.0f}", f"{tokens:,}"
        elif usd > limit.usd:
            name, least = f"max_usd={limit.usd:g}", f"${usd:.2g}"
        else:
            return
        raise SpecError(
            f"{name} does not pay for one request: without its input, it may take {worst.input:,} tokens of prompt and "
            f"{worst.output:,} of answer. Allow more than {least}, or set a lower max_tokens."
        )

    def price_earlier(self, backend: Backend, spec: BatchSpec, model: str, stage: int) -> None:
        """Adds what earlier runs of the stage have cost, if they did not count dollars. Raises SpecError for a model
        whose price is needed but unknown."""
        price_of_model = self._prices(backend)
        if price_of_model is None:
            return
        price = price_of_model(model)
        if spec.context.compact_model is not None:
            price_of_model(spec.context.compact_model)
        if not self._usd_is_known:
            unreplied = self._unreplied * price.highest if stage == 0 else 0.0
            self.pool.budget.add_earlier(Amount(0, price.of(self._replied[stage]) + unreplied))

    def report_spent(self, events: EventSink | None) -> None:
        if events is not None:
            events.emit(BudgetReported(self.pool.budget.tokens, self.pool.budget.usd))

    async def _count_earlier(self, stores: Sequence[Store]) -> None:
        """Counts what earlier runs spent. Replies have their usage; the account in the first store also counts requests
        without a reply."""
        replied = sum(self._replied, NO_USAGE)
        tokens, account = replied.input + replied.output, await stores[0].account()
        counted = 0.0 if account is None else account.tokens or 0.0
        self._usd_is_known = account is not None and account.usd is not None
        self._unreplied = max(0.0, counted - tokens)
        usd = 0.0 if account is None else account.usd or 0.0
        self.pool.budget.add_earlier(Amount(max(tokens, counted), usd))

    def _prices(self, backend: Backend) -> PriceOf | None:
        """None if no price is needed."""
        spending, known = self._spending, dict[str, Price]()
        if spending.max_usd is None and not spending.prices:
            return None

        def price(model: str) -> Price:
            if model not in known:
                is_needed = spending.max_usd is not None or model in spending.prices
                known[model] = price_of(model, backend.traits.name, spending.prices) if is_needed else FREE
            return known[model]

        return price


_AHEAD_DIVISOR = 64
"""Divisor: this part of the remaining budget is recorded as spent ahead of time, so that not every request waits for
the disk. A kill costs this much in addition to the requests in flight."""
_UNLIMITED = float("inf")


@asynccontextmanager
async def persist_account(pool: BudgetPool, store: Store) -> AsyncIterator[None]:
    """While the block runs, no request is sent that the store does not account for. After a kill, everything accounted
    for counts as spent; at a regular end, the account is what was spent. Raises StoreError."""
    account, requested = _KeptAccount(pool, store), asyncio.Event()
    pool.require_leases(requested.set, requests_again=True)
    keeping = asyncio.get_running_loop().create_task(account.keep(requested))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await account.close()


class _KeptAccount:
    """The account in the store, raised as needed."""

    def __init__(self, pool: BudgetPool, store: Store) -> None:
        self._pool = pool
        self._store = store
        self._budget = pool.budget
        self._kept = Amount()

    async def keep(self, requested: asyncio.Event) -> None:
        while True:  # until it is cancelled with the run
            await requested.wait()
            requested.clear()
            needs = self._pool.needs
            wanted, _ = lease(self._budget.limit, Amount(), (), self._budget.committed_here, needs, _AHEAD_DIVISOR)
            raised = self._limited(wanted).maximum(self._kept)
            if raised == self._kept:
                continue  # waiters wait for requests in flight
            try:
                await self._write(raised)
            except StoreError as error:
                self._pool.fail(error)
                return
            self._kept = raised
            self._pool.lease(raised, Amount())

    async def close(self) -> None:
        await self._write(self._budget.committed_here)

    def _limited(self, amount: Amount) -> Amount:
        """The amount, without its unlimited parts."""
        limit = self._budget.limit
        return Amount(0 if limit.tokens == _UNLIMITED else amount.tokens, 0 if limit.usd == _UNLIMITED else amount.usd)

    async def _write(self, amount: Amount) -> None:
        limit = self._budget.limit
        await self._store.save_account(
            Account(
                None if limit.tokens == _UNLIMITED else amount.tokens,
                None if limit.usd == _UNLIMITED else amount.usd,
            )
        )
