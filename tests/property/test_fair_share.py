"""Workers that share a limit or a budget never use more than there is, whatever happens to them and to their hub."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.cluster.shared_budget import share_budget
from batch_agent.cluster.shared_limits import share_limits
from batch_agent.core.coordinator import Document
from batch_agent.core.errors import BackendError, StoreError
from batch_agent.core.options.price import Price
from batch_agent.core.requests import Usage
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.budget_pool import BudgetPool
from batch_agent.engine.slots import Slots
from batch_agent.schedule.budget import Amount, Budget
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.fair_share import SlotClaim, allocate, fair_shares
from batch_agent.schedule.slot_queue import Priority
from batch_agent.testing import run_virtual

LASTS = 5.0
LONGEST = 0.9
"""Seconds of a request: it ends before others take its worker for gone."""
PRICE = Price(1e-6, 1e-7, 4e-6)
DUST = Amount(0, 1e-12)
"""Sums of dollars depend on their order."""

amounts = st.integers(0, 40)
claims = st.builds(SlotClaim, amounts, amounts, st.none() | amounts, st.just(None), st.floats(0.0, 20.0))


@pytest.mark.slow
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), claims, min_size=1, max_size=8), st.integers(0, 60))
def test_everything_is_allocated_max_min_fairly(said: dict[str, SlotClaim], total: int) -> None:
    parts = fair_shares(said, total, 20.0)
    assert sum(parts.values()) == total
    assert min(parts.values()) >= (1 if total >= 4 * len(said) else 0)
    for name, claim in said.items():
        if claim.wants is None or parts[name] < claim.wants:
            assert all(parts[name] >= part - 1 for part in parts.values())


@pytest.mark.slow
@given(
    st.lists(st.none() | amounts, min_size=1, max_size=6),
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.none() | amounts), max_size=40),
)
def test_held_shares_never_exceed_the_total_whatever_the_order_of_reports(
    wants: list[int | None], total: int, beats: list[tuple[int, int, int | None]]
) -> None:
    """Each beat: whose it is, what it uses by then if it may, and what it wants from then on."""
    said = {str(number): SlotClaim(0, 0, each, total, 0.0) for number, each in enumerate(wants)}
    in_the_end = [(number, 0, wants[number % len(wants)]) for number in range(5 * len(wants))]
    for place, (number, used, wanted) in enumerate([*beats, *in_the_end]):
        now = float(min(place, len(beats)))
        worker = str(number % len(wants))
        before = said[worker]
        uses = min(used, before.held)
        most = allocate({**said, worker: SlotClaim(before.held, uses, wanted, total, before.since)}, worker, now)
        assert most is not None
        since = before.since if bool(most) == bool(before.held) else now
        said[worker] = SlotClaim(max(most, uses), uses, wanted, total, since)
        assert sum(claim.held for claim in said.values()) <= total
    if None in wants:  # five beats of each later nothing lies idle
        assert sum(claim.held for claim in said.values()) == total


class Papers:
    """Documents that all read and change."""

    def __init__(self) -> None:
        self.data: dict[str, bytes | None] = {}


class Link:
    """A worker's way to them: slow, and without an answer now and then, unless it is calm; and while it is cut."""

    def __init__(self, papers: Papers, dice: random.Random, *, is_calm: bool = False) -> None:
        self._papers = papers
        self._dice = dice
        self._fails, self._slowest = (0.0, 0.02) if is_calm else (0.03, 1.0)
        self.is_cut = False

    async def read(self, name: str) -> Document:
        await self._travel()
        found = Document(self._papers.data.get(name), asyncio.get_running_loop().time())
        await self._travel()
        return found

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        await self._travel()
        is_same = self._papers.data.get(name) == old
        if is_same:
            self._papers.data[name] = new
        await self._travel()
        return is_same

    async def _travel(self) -> None:
        await asyncio.sleep(self._dice.choice([0.0, 0.001, self._slowest * self._dice.random()]))
        if self.is_cut or self._dice.random() < self._fails:
            raise StoreError("the hub is not there")


async def fate(link: Link, dice: random.Random, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, while the hub is out of reach now and then, unless the worker dies of a sudden."""
    working = asyncio.ensure_future(work)
    try:
        for _ in range(dice.choice([0, 0, 1, 3])):
            await asyncio.wait([working], timeout=dice.uniform(0.0, 15.0))
            link.is_cut = True
            await asyncio.wait([working], timeout=dice.uniform(0.0, 3 * LASTS))
            link.is_cut = False
        if dice.random() < 0.3:
            await asyncio.wait([working], timeout=dice.uniform(0.0, 15.0))
            link.is_cut = True
            working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    finally:
        working.cancel()


async def entered(stack: AsyncExitStack, opening: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    """As soon as the hub can be reached."""
    while True:
        try:
            await stack.enter_async_context(opening())
        except StoreError:
            await asyncio.sleep(0.1)
        else:
            return


@pytest.mark.slow
@given(st.integers(0, 10**9), st.integers(1, 6), st.integers(1, 12))
def test_workers_never_exceed_the_slots_and_all_finish(seed: int, workers: int, total: int) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        papers = Papers()
        living: dict[int, Slots] = {}

        def check() -> None:
            assert sum(max(slots.limit, slots.in_use) for slots in living.values()) <= total

        async def request(slots: Slots) -> None:
            await asyncio.sleep(dice.choice([0.0, 3.0]) * dice.random())
            held = await slots.acquire(Priority(True))
            try:
                check()
                await asyncio.sleep(LONGEST * dice.random())
            finally:
                held.release()

        async def worker(number: int) -> None:
            await asyncio.sleep(dice.choice([0.0, 8.0]) * dice.random())
            link = Link(papers, dice)
            slots = Slots(InflightLimit(total, fixed=True))

            async def work() -> None:
                async with AsyncExitStack() as stack:
                    await entered(
                        stack, lambda: share_limits(link, str(number), {"a": AdmissionController(slots)}, ttl=LASTS)
                    )
                    living[number] = slots
                    stack.callback(living.pop, number)
                    check()
                    async with asyncio.TaskGroup() as group:
                        for _ in range(dice.choice([0, 3, 30])):
                            group.create_task(request(slots))

            await fate(link, dice, work())

        async with asyncio.timeout(1000), asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(worker(number))

    run_virtual(main())


@given(st.integers(0, 10**9), st.integers(1, 5), st.integers(50, 3000), st.booleans(), st.booleans())
def test_workers_never_exceed_the_budget_and_stop_only_when_it_is_used_up(
    seed: int, workers: int, most: int, in_dollars: bool, is_calm: bool
) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        papers = Papers()
        limits: dict[str, Any] = {"max_usd": most * 2e-6} if in_dollars else {"max_tokens": most}
        budgets = [Budget(**limits) for _ in range(workers)]
        refused: list[Amount] = []

        def taken() -> Amount:
            return sum((budget.committed_here for budget in budgets), Amount())

        def check() -> None:
            assert (taken() - DUST).fits(budgets[0].limit)

        async def request(purse: BudgetPool) -> None:
            worst = Usage(dice.randint(0, 50), 0, dice.randint(0, 50))
            await asyncio.sleep(dice.choice([0.0, 3.0]) * dice.random())
            try:
                reserved = await purse.reserve(lambda: worst, PRICE)
            except BackendError:
                refused.append(Amount.worst(worst, PRICE))
                return
            check()
            usage = worst
            try:
                await asyncio.sleep(LONGEST * dice.random())
                usage = Usage(worst.input, 0, dice.randint(0, worst.output))
            finally:
                purse.settle(reserved, usage)
                check()

        async def worker(number: int) -> None:
            await asyncio.sleep(dice.choice([0.0, 20.0]) * dice.random())
            link = Link(papers, dice, is_calm=is_calm)
            purse = BudgetPool(budgets[number])

            async def written() -> Amount:
                return sum((budget.spent_here for budget in budgets), Amount())

            async def work() -> None:
                async with AsyncExitStack() as stack:
                    await entered(stack, lambda: share_budget(link, str(number), purse, written, ttl=LASTS))
                    async with asyncio.TaskGroup() as group:
                        for _ in range(dice.choice([0, 3, 30])):
                            group.create_task(request(purse))

            await (work() if is_calm else fate(link, dice, work()))

        async with asyncio.timeout(1000), asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(worker(number))
        check()
        if is_calm:  # what a worker had leased that is not heard of counts as spent
            assert not any((taken() + each + DUST).fits(budgets[0].limit) for each in refused)

    run_virtual(main())
