"""Budget of a run: what earlier runs have spent of it, and backends whose requests count against it."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ..backends.connect import TrialRequest
from ..backends.prices import price_of
from ..core.events import BudgetReported
from ..core.options import SpendingLimits
from ..core.options.price import FREE, Price
from ..core.protocols import Backend, EventSink, Store
from ..core.requests import NO_USAGE, Usage
from ..core.spec import BatchSpec
from ..engine.budget_pool import BudgetedBackend, BudgetPool, PriceOf, persist_account
from ..schedule.budget import Amount, Budget
from ..store.memory_store import NoStore

if TYPE_CHECKING:
    from ..cluster.cluster_session import ClusterSession


class RunBudget:
    """The budget that all stages of a flow share."""

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
        """The budget with what earlier runs have spent, as far as it is known without prices. Raises StoreError."""
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
        """The trial request of a server, which counts against the budget. If nothing is left, the server is assumed to
        be as it was."""
        plans = [await store.plan() for store in stores]
        used_action_mode = any(plan is not None and plan.get("tool mode") == "action" for plan in plans)
        return TrialRequest(
            lambda backend: BudgetedBackend(backend, self.pool, self._prices(backend)),
            assume_tools=not used_action_mode,
        )

    def backend(self, backend: Backend, spec: BatchSpec) -> Backend:
        return BudgetedBackend(backend, self.pool, self._prices(backend), spec.context.context_tokens)

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
        """Replies report their usage; the account, in the first store, also counts requests without a reply."""
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
