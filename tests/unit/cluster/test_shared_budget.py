"""Workers that pay from one budget never spend more than there is, and leave nothing of it unspent that is needed."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest
from tests.support.virtual_time import virtual
from tests.unit.cluster.test_shared_limits import BEAT, LASTS, Link, beats

from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_budget import share_budget
from batch_agent.core.errors import BackendError, ErrorKind, StoreError
from batch_agent.core.options.price import FREE, Price
from batch_agent.core.requests import Usage
from batch_agent.engine.budget_pool import BudgetPool
from batch_agent.schedule.budget import Amount, Budget, Reservation
from batch_agent.store.memory_store import MemoryStore


class Worker:
    def __init__(
        self, coordinator: MemoryCoordinator, name: str, *, before: Amount | None = None, **limits: Any
    ) -> None:
        """`before`: what replies have cost, as the hub knows it."""
        self.link = Link(coordinator)
        self.name = name
        self.purse = BudgetPool(Budget(**(limits or {"max_tokens": 1000})))
        self.before = before or Amount()

    def joins(self) -> AbstractAsyncContextManager[bool]:
        return share_budget(self.link, self.name, self.purse, self._spent, ttl=LASTS, interval=BEAT)

    async def _spent(self) -> Amount:
        return self.before

    async def reserve(self, tokens: int, price: Price = FREE) -> Reservation:
        return await self.purse.reserve(lambda: Usage(tokens), price)

    def begin(self, tokens: int) -> "asyncio.Task[Reservation]":
        return asyncio.get_running_loop().create_task(self.reserve(tokens))

    async def spend(self, tokens: int, seconds: float = 0.0, worst: int | None = None) -> None:
        reserved = await self.reserve(worst or tokens)
        await asyncio.sleep(seconds)
        self.purse.settle(reserved, Usage(tokens))


@virtual
async def test_one_worker_may_spend_the_whole_budget_and_no_more() -> None:
    worker = Worker(MemoryCoordinator(MemoryStore()), "a")
    async with worker.joins():
        await worker.spend(400)
        await worker.spend(600)
        with pytest.raises(BackendError, match=r"1,000 tokens were spent.*this request may take 1,") as refused:
            await worker.spend(1)
        assert refused.value.kind is ErrorKind.BUDGET


@virtual
async def test_the_budget_spent_by_other_workers_is_not_available() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins():
        await first.spend(700)
        with pytest.raises(BackendError, match="700 tokens were spent"):
            await second.spend(301)
        await second.spend(300)
        assert first.purse.budget.spent_here + second.purse.budget.spent_here == Amount(1000)


@virtual
async def test_a_waiting_worker_gets_the_budget_that_other_workers_requests_leave() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins():
        under_way = asyncio.create_task(first.spend(100, seconds=10.0, worst=900))
        await beats(1)
        waiting = second.begin(800)
        await asyncio.sleep(8.0)
        assert not waiting.done()
        await under_way
        await beats(2)
        assert waiting.done()
        second.purse.settle(await waiting, Usage(800))


@virtual
async def test_a_waiting_worker_gets_the_budget_leased_ahead_by_other_workers() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins():
        await first.spend(10)
        async with asyncio.timeout(3 * BEAT):
            await second.spend(990)


@virtual
async def test_a_returned_quota_is_not_spent_before_it_is_returned() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins():
        first.link.delay = 2.0
        second.purse.settle(await second.reserve(900), Usage(900))
        assert first.purse.budget.reserve(Usage(101), FREE) is None


@virtual
async def test_a_waiting_worker_reports_its_need_at_once() -> None:
    worker = Worker(MemoryCoordinator(MemoryStore()), "a")
    async with worker.joins(), asyncio.timeout(BEAT / 10):
        await worker.spend(900)


@virtual
async def test_two_workers_that_need_more_than_half_take_turns() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins(), asyncio.timeout(10):
        await asyncio.gather(
            *(worker.spend(10, seconds=1.0, worst=600) for worker in (first, second) for _ in range(2))
        )


@virtual
async def test_requests_within_the_leased_quota_need_no_coordinator_call() -> None:
    worker = Worker(MemoryCoordinator(MemoryStore()), "a", max_tokens=100_000)
    async with worker.joins():
        asked = worker.link.asked
        for _ in range(50):
            await worker.spend(100)
        assert worker.link.asked == asked


@virtual
async def test_a_waiting_request_does_not_poll_the_coordinator_constantly() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins():
        held = await first.reserve(900)
        waiting, asked = second.begin(800), second.link.asked
        await beats(10)
        assert second.link.asked - asked <= 12
        first.purse.settle(held, Usage(1))
        second.purse.settle(await waiting, Usage(1))


@virtual
async def test_the_spending_of_a_worker_that_leaves_is_exact() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins():
        async with second.joins():
            await second.spend(300, worst=600)
        with pytest.raises(BackendError):
            await first.spend(701)
        await first.spend(700)


@virtual
async def test_the_quota_of_a_silent_worker_counts_as_spent() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, dead = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins():
        dying = dead.joins()
        await dying.__aenter__()
        held = await dead.reserve(600)
        dead.link.is_gone = True
        waiting = first.begin(500)
        await asyncio.sleep(LASTS - 2 * BEAT)
        assert not waiting.done()
        await beats(4)
        with pytest.raises(BackendError, match=r"6\d\d tokens were spent"):  # some were leased ahead
            await waiting
        await first.spend(300)
        dead.purse.settle(held, Usage(600))
        await dying.__aexit__(None, None, None)


@virtual
async def test_a_worker_that_returns_has_spent_what_it_reports() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, away = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), away.joins():
        held = await away.reserve(600)
        away.link.whole.clear()
        await asyncio.sleep(2 * LASTS)
        away.purse.settle(held, Usage(100))
        away.link.whole.set()
        await beats(2)
        await first.spend(900)


@virtual
async def test_a_worker_without_its_coordinator_spends_nothing() -> None:
    worker = Worker(MemoryCoordinator(MemoryStore()), "a")
    async with worker.joins():
        worker.link.whole.clear()
        await asyncio.sleep(0.7 * LASTS - BEAT)
        await worker.spend(10)  # of what is leased ahead
        await asyncio.sleep(0.3 * LASTS)
        waiting = worker.begin(10)
        await asyncio.sleep(10 * LASTS)
        assert not waiting.done()
        worker.link.whole.set()
        await waiting


@virtual
async def test_a_late_reply_of_the_coordinator_leases_nothing() -> None:
    late = Worker(MemoryCoordinator(MemoryStore()), "a")
    late.link.delay = LASTS
    with pytest.raises(StoreError, match="so late"):
        await late.joins().__aenter__()
    assert late.purse.budget.reserve(Usage(1), FREE) is None


@virtual
async def test_a_run_without_workers_resumes_from_its_recorded_spending() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first = Worker(coordinator, "a", before=Amount(300))
    async with first.joins():
        await first.spend(100)
        other = Worker(coordinator, "b", before=Amount(999))  # is not asked while the first one knows better
        async with other.joins():
            await other.spend(200)
    second = Worker(coordinator, "c", before=Amount(500))  # replies do not tell of what brought none
    async with second.joins():
        assert second.purse.budget.tokens == 600
        await second.spend(100)
    third = Worker(coordinator, "d", before=Amount(800))  # others were at work without a budget
    async with third.joins():
        assert third.purse.budget.tokens == 800
        await third.spend(200)


@virtual
async def test_requests_in_flight_of_a_killed_last_worker_count_as_spent() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    dying: list[AbstractAsyncContextManager[bool]] = []
    sent = 0
    for _ in range(14):
        killed = Worker(coordinator, "a")
        dying.append(killed.joins())
        await dying[-1].__aenter__()
        with suppress(BackendError):
            await killed.reserve(150)
            sent += 1
        killed.link.is_gone = True
        await asyncio.sleep(2 * LASTS)
    assert 2 < sent <= 6
    last = Worker(coordinator, "b")
    async with last.joins():
        assert last.purse.budget.tokens >= sent * 150
        with pytest.raises(BackendError, match="The budget is used up"):
            await last.spend(150)
    for each in dying:
        await each.__aexit__(None, None, None)


@virtual
async def test_spending_reported_late_counts_after_a_restart() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    away, later = Worker(coordinator, "a"), Worker(coordinator, "b", before=Amount(100))
    async with away.joins():
        await away.spend(100)
        await beats(1)
        held = await away.reserve(200)
        away.link.whole.clear()
        await asyncio.sleep(2 * LASTS)
        async with later.joins():
            away.purse.settle(held, Usage(200))
            away.link.whole.set()
            await beats(2)
            with pytest.raises(BackendError, match="tokens were spent"):
                await later.spend(701)
            assert later.purse.budget.tokens >= 300


@virtual
async def test_a_crashed_worker_of_the_same_name_has_spent_its_quota() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    witness, dead, again = Worker(coordinator, "a"), Worker(coordinator, "b"), Worker(coordinator, "b")
    async with witness.joins():
        dying = dead.joins()
        await dying.__aenter__()
        held = await dead.reserve(600)
        dead.link.is_gone = True
        async with again.joins():
            with pytest.raises(BackendError):
                await again.spend(401)
            await again.spend(300)
        dead.purse.settle(held, Usage(600))
        await dying.__aexit__(None, None, None)


@virtual
async def test_a_waiting_request_that_is_cancelled_is_not_leased_for() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    async with first.joins(), second.joins():
        held = await first.reserve(900)
        waiting = second.begin(800)
        await beats(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert second.purse.needs == []
        first.purse.settle(held, Usage(0))
        await first.spend(1000)


@virtual
async def test_an_unreadable_budget_document_is_an_error() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    await coordinator.documents.compare_and_set("budget", None, b'{"a": 1}')
    with pytest.raises(StoreError, match="same version"):
        await Worker(coordinator, "b").joins().__aenter__()


@virtual
async def test_dollars_and_tokens_have_separate_limits() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    price = Price(1e-3, 1e-3, 1e-3)
    first, second = Worker(coordinator, "a", max_usd=1.0), Worker(coordinator, "b", max_usd=1.0)
    async with first.joins(), second.joins():
        first.purse.settle(await first.reserve(600, price), Usage(600))
        second.purse.settle(await second.reserve(400, price), Usage(300))
        second.purse.settle(await second.reserve(100_000), Usage(100_000))  # free
        await beats(2)
        assert first.purse.budget.tokens == 100_900
        assert first.purse.budget.usd == pytest.approx(0.9)
        with pytest.raises(BackendError, match=r"\$0\.9"):
            await first.reserve(101, price)


@pytest.mark.parametrize("seed", range(5))
@virtual
async def test_many_workers_with_many_requests_spend_nearly_all_and_never_more(seed: int) -> None:
    dice, coordinator = random.Random(seed), MemoryCoordinator(MemoryStore())
    workers = [Worker(coordinator, name, max_tokens=20_000) for name in "abcd"]
    answers = {True: 0, False: 0}

    async def request(worker: Worker) -> None:
        try:
            await worker.spend(dice.randint(1, 100), seconds=dice.random(), worst=100)
        except BackendError:
            answers[False] += 1
        else:
            answers[True] += 1
        assert sum(each.purse.budget.committed_here.tokens for each in workers) <= 20_000

    async def work(worker: Worker) -> None:
        async with worker.joins():
            for _ in range(10):
                await asyncio.gather(*(request(worker) for _ in range(20)))

    await asyncio.gather(*map(work, workers))
    assert sum(answers.values()) == 800
    assert sum(each.purse.budget.spent_here.tokens for each in workers) > 19_900
