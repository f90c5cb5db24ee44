"""Backends that serve the lanes of a run, and the choice between lanes."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ..backends.http_backend import HttpBackend
from ..backends.prices import known_price
from ..core.protocols.backend import Backend, Traits
from ..core.protocols.store import KeepsSubmissions, Store
from ..core.requests import Lane
from ..core.spec import BatchSpec
from ..lazy_imports import lazy_modules
from .admissions import has_later_turns
from .setup import RunSetup

with lazy_modules(globals()):
    from ..lanes import batch_lane as lane
    from ..lanes import batch_service, lane_turn_runner

if TYPE_CHECKING:
    from ..lanes.lane_turn_runner import LaneStats, SpendingOutlook
    from .run_budget import RunBudget


async def batch_lane(setup: RunSetup, server: Backend, store: Store, stack: AsyncExitStack) -> Backend:
    """The backend of a run in lane batch. The stack closes it."""
    backend = await lane.open_batch_lane(server, store, setup.notify)
    stack.push_async_callback(backend.aclose)
    return backend


async def batch_of_auto(setup: RunSetup, server: Backend, store: Store, stack: AsyncExitStack) -> Backend | None:
    """The backend for the batch requests of a run in lane auto; None if it offers no batches. Batches outlive the
    process, so they need a checkpoint."""
    spec = setup.spec
    if "batch" not in server.traits.lanes or spec.runtime:
        return None
    if not isinstance(server, HttpBackend | batch_service.OffersBatches):
        return server
    if not isinstance(store, KeepsSubmissions):
        return None
    backend = await lane.open_batch_lane(server, store, setup.notify, is_mixed=True)
    stack.push_async_callback(backend.aclose)
    return backend


async def warn_of_batches(setup: RunSetup, store: KeepsSubmissions) -> None:
    """Warns of requests that an earlier run left in batches."""
    count = sum(len(each.lines) for each in await store.submissions())
    if count:
        setup.notify(
            f"{count:,} requests of this run are in batches at the provider, and are billed. In lane "
            f"{setup.spec.lane!r} they are sent again: lane='batch' collects their results instead."
        )


def lane_stats(
    setup: RunSetup, traits: Traits, known: int | None, deadline: float | None, *, has_batch: bool
) -> "LaneStats | None":
    """Lanes of a run that may use others than the standard one. `known`: its agents, if no other run shares its lanes;
    `deadline`: on the clock of the loop."""
    lane, offered = setup.spec.lane, list[Lane]()
    if lane == "auto" and has_batch:
        offered.append("batch")
    if lane in ("flex", "auto") and "flex" in traits.lanes:
        offered.append("flex")  # as cheap as batch, but with the rate limits of the lane standard
    if not offered:
        return None
    max_turns = setup.spec.max_turns if has_later_turns(setup.spec) else 1
    return lane_turn_runner.LaneStats((*offered, "standard"), known, deadline, max_turns)


def spending_outlook(
    budget: "RunBudget | None", spec: BatchSpec, server: Backend, model: str
) -> "SpendingOutlook | None":
    """Forecast of what a budget in dollars can pay for in each lane."""
    if budget is None or spec.spending.max_usd is None or spec.lane in ("standard", "batch"):
        return None
    price = known_price(model, server.traits.name, spec.spending.prices)
    return None if price is None else lane_turn_runner.SpendingOutlook(budget.pool.budget, price)
