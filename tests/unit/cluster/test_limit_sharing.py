"""Several workers use one server: together they keep to its limits, and portions go to where the work is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
from tests.support.virtual_time import virtual

from batch_agent.cluster.limit_sharing import LimitSharing, change, renewal_interval, share_limits
from batch_agent.cluster.memory_coordinator import MemoryCoordinator
from batch_agent.core.coordinator import Document
from batch_agent.core.errors import StoreError
from batch_agent.core.protocols import ServerLoad
from batch_agent.core.requests import Usage
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.residency import Residency
from batch_agent.engine.slots import HeldSlot, Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.health import Health
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.slot_queue import Priority
from batch_agent.store.memory_store import MemoryStore

FRESH = Priority(is_fresh=True)
LASTS = 5.0
BEAT = 0.5


class Link:
    """A worker's way to the hub. Cut, whoever asks waits until it is mended."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self._coordinator = coordinator
        self.asked = 0
        self.whole = asyncio.Event()
        self.whole.set()
        self.is_gone = False
        """Whoever asks is told so at once."""
        self.delay = 0.0
        """Seconds until it is said that something was done."""

    async def read(self, name: str) -> Document:
        self.asked += 1
        await self.whole.wait()
        if self.is_gone:
            raise StoreError("the hub is not there")
        return await self._coordinator.read(name)

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        await self.whole.wait()
        is_done = await self._coordinator.compare_and_set(name, old, new)
        await asyncio.sleep(self.delay)
        return is_done


class Worker:
    """Its gates, and agents that want slots."""

    def __init__(self, coordinator: MemoryCoordinator, name: str, gate: AdmissionController, server: str = "a") -> None:
        self.link = Link(coordinator)
        self.name = name
        self.gate = gate
        self.slots = gate.slots
        self.server = server
        self.held: list[HeldSlot] = []
        self.waiting: set[asyncio.Task[None]] = set()

    def joins(self) -> AbstractAsyncContextManager[LimitSharing]:
        return share_limits(self.link, self.name, {self.server: self.gate}, ttl=LASTS, interval=BEAT)

    @asynccontextmanager
    async def active(self, requests: int = 0) -> AsyncIterator[LimitSharing]:
        """So many want a slot each, and keep it."""
        async with self.joins() as sharing:
            for _ in range(requests):
                self.ask()
            await beats(0)
            try:
                yield sharing
            finally:
                for task in self.waiting:
                    task.cancel()
                await asyncio.gather(*self.waiting, return_exceptions=True)
                self.end(len(self.held))

    def ask(self) -> None:
        self.waiting.add(asyncio.get_running_loop().create_task(self._ask()))

    async def _ask(self) -> None:
        self.held.append(await self.slots.acquire(FRESH))

    def end(self, requests: int) -> None:
        for _ in range(requests):
            self.held.pop().release()


def of_slots(
    coordinator: MemoryCoordinator, name: str, total: int = 8, *, fixed: bool = True, server: str = "a"
) -> Worker:
    return Worker(coordinator, name, AdmissionController(Slots(InflightLimit(total, fixed=fixed))), server)


def in_flight(*workers: Worker) -> list[int]:
    return [worker.slots.in_use for worker in workers]


async def beats(number: int) -> None:
    """So many of every worker, and a bit."""
    await asyncio.sleep(number * BEAT + 0.01)


@virtual
async def test_a_lone_worker_has_the_whole_limit_from_the_start() -> None:
    alone = of_slots(MemoryCoordinator(MemoryStore()), "a")
    async with alone.active(10) as sharing:
        assert in_flight(alone) == [8]
        assert sharing.workers == 1


@virtual
async def test_a_joining_worker_gets_its_half_as_the_other_workers_requests_end() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_slots(coordinator, "a"), of_slots(coordinator, "b")
    async with first.active(20), second.active(20) as sharing:
        assert sharing.workers == 2
        await beats(3)
        assert in_flight(first, second) == [8, 0]
        for ended in range(1, 4):
            first.end(1)
            await beats(2)
            assert in_flight(first, second) == [8 - ended, ended]
        first.end(5)
        await beats(2)
        assert in_flight(first, second) == [4, 4]


@virtual
async def test_an_unused_quota_goes_to_the_other_worker_and_returns_on_demand() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    busy, idle = of_slots(coordinator, "a"), of_slots(coordinator, "b")
    async with idle.active(), busy.active(20):
        await beats(6)
        assert in_flight(busy, idle) == [7, 0]
        for _ in range(20):
            idle.ask()
        await beats(1)
        assert in_flight(busy, idle) == [7, 1]
        busy.end(7)
        await beats(2)
        assert in_flight(busy, idle) == [4, 4]


@virtual
async def test_a_worker_that_leaves_returns_its_quota() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_slots(coordinator, "a"), of_slots(coordinator, "b")
    async with first.active(20) as sharing:
        async with second.active(20):
            await beats(1)
            first.end(8)
            await beats(2)
            assert in_flight(first, second) == [4, 4]
        await beats(1)
        assert in_flight(first) == [8]
        assert sharing.workers == 1


@virtual
async def test_the_quota_of_a_silent_worker_is_free_when_its_lease_expires() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_slots(coordinator, "a"), of_slots(coordinator, "b")
    async with first.active(20), second.active(20):
        await beats(1)
        first.end(4)
        await beats(2)
        assert in_flight(first, second) == [4, 4]
        second.link.whole.clear()
        await asyncio.sleep(LASTS - 2 * BEAT)
        assert in_flight(first) == [4]
        await beats(3)
        assert in_flight(first) == [8]
        second.link.whole.set()


@virtual
async def test_a_worker_without_its_coordinator_stops_before_its_quota_is_reassigned() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    alone = of_slots(coordinator, "a", 2)
    async with alone.active(4) as sharing:
        alone.link.whole.clear()
        await asyncio.sleep(0.7 * LASTS - BEAT)
        alone.end(1)
        await beats(0)
        assert in_flight(alone) == [2]
        await asyncio.sleep(0.3 * LASTS)
        assert sharing.is_isolated
        alone.end(1)
        await asyncio.sleep(10 * LASTS)
        assert (in_flight(alone), alone.slots.waiting) == ([1], 1)
        alone.link.whole.set()
        await beats(1)
        assert not sharing.is_isolated
        assert in_flight(alone) == [2]


@virtual
async def test_a_short_coordinator_failure_changes_no_quota() -> None:
    alone = of_slots(MemoryCoordinator(MemoryStore()), "a", 2)
    async with alone.active(1) as sharing:
        alone.link.is_gone = True
        await asyncio.sleep(0.7 * LASTS)
        alone.link.is_gone = False
        await asyncio.sleep(LASTS)
        alone.ask()
        await beats(0)
        assert in_flight(alone) == [2]
        assert not sharing.is_isolated


@virtual
async def test_a_lost_coordinator_at_the_end_is_no_error() -> None:
    alone = of_slots(MemoryCoordinator(MemoryStore()), "a", 2)
    async with alone.active(1):
        alone.link.is_gone = True
    assert alone.slots.limit == 0


@virtual
async def test_a_late_reply_of_the_coordinator_gives_no_quota() -> None:
    late = of_slots(MemoryCoordinator(MemoryStore()), "a", 2)
    late.link.delay = LASTS
    with pytest.raises(StoreError, match="so late"):
        await late.joins().__aenter__()
    assert late.slots.limit == 0


@virtual
async def test_workers_take_turns_where_there_are_fewer_slots_than_workers() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    workers = [of_slots(coordinator, name, 2) for name in "abc"]
    turns = [0, 0, 0]

    async def work(number: int) -> None:
        async with workers[number].joins():
            while asyncio.get_running_loop().time() < 60:
                slot = await workers[number].slots.acquire(FRESH)
                assert sum(in_flight(*workers)) <= 2
                await asyncio.sleep(0.2)
                turns[number] += 1
                slot.release()

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(number))
    assert sum(turns) > 540  # of the 600 for which there is time
    assert min(turns) > 150


@virtual
async def test_workers_of_other_endpoints_do_not_share_the_limit() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    here, there = of_slots(coordinator, "a"), of_slots(coordinator, "b", server="b")
    async with here.active(10), there.active(10) as sharing:
        await beats(3)
        assert in_flight(here, there) == [8, 8]
        assert sharing.workers == 2


@virtual
async def test_an_adaptive_limit_starts_with_its_share_and_is_then_per_worker() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = (of_slots(coordinator, name, 8, fixed=False) for name in "ab")
    async with first.active(40), second.active(40):
        assert in_flight(first, second) == [8, 4]
        await beats(1)
        first.end(4)
        await beats(0)
        assert in_flight(first, second) == [4, 4]
        for _ in range(4):
            first.slots.on_success(1.0)
        await beats(4)
        assert in_flight(first, second) == [8, 4]
        assert [first.slots.limit, second.slots.limit] == [8, 4]


@virtual
async def test_each_worker_counts_its_share_of_the_server_queue() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = (of_slots(coordinator, name, 40, fixed=False) for name in "ab")
    async with first.active(30), second.active(30):
        first.end(10)
        second.slots.on_success(1.0)
        await beats(2)
        assert in_flight(first, second) == [20, 20]
        for _ in range(2):
            second.gate.on_load(ServerLoad(running=20, waiting=20))
            second.slots.on_success(1.0)
        assert second.slots.limit == 14  # 10 of its 20 waited, 4 of them may; the 20 of all would halve it


@virtual
async def test_refusals_of_most_requests_cut_the_limit_of_the_worker() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_slots(coordinator, "a", 16), of_slots(coordinator, "b", 16)
    async with first.active(), second.active(40):
        await beats(2)
        for _ in range(40):
            first.ask()
        await beats(2)
        second.end(8)
        await beats(2)
        assert in_flight(first, second) == [8, 8]
        health = Health(max_outage=15.0)
        for _ in range(10):
            assert first.slots.limit == 8
            number = health.sent(0.0)
            first.slots.on_rate_limited(5.0, number, health)
            health.abandoned(number)
        assert first.slots.limit == 4


@virtual
async def test_an_unreadable_limit_document_is_an_error() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    await coordinator.compare_and_set("members", None, b'{"a": 1}')
    with pytest.raises(StoreError, match="same version"):
        await of_slots(coordinator, "b").joins().__aenter__()


@virtual
async def test_a_worker_that_always_loses_the_update_race_gives_up() -> None:
    class Busy:
        async def read(self, name: str) -> Document:
            return Document(None, 0.0)

        async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
            return False

    async def edit(document: Document) -> bytes:
        return b""

    with pytest.raises(StoreError, match="contention"):
        await change(Busy(), "members", edit)


def test_many_workers_report_less_often_but_within_their_lease() -> None:
    assert [renewal_interval(0.5, 30.0, workers) for workers in (1, 32, 64, 10_000)] == [0.5, 0.5, 1.0, 6.0]


def of_places(coordinator: MemoryCoordinator, name: str, tokens: int | None = 8000) -> Worker:
    """Of an engine whose agents are known not to grow."""
    ledger = KvLedger(tokens)
    ledger._finished = 1
    return Worker(coordinator, name, AdmissionController(Slots(InflightLimit(100, fixed=True)), Residency(ledger, 0)))


def places(worker: Worker) -> Residency:
    assert worker.gate.residency is not None
    return worker.gate.residency


@asynccontextmanager
async def agents(worker: Worker, *names: str) -> AsyncIterator[None]:
    """That want a place for 1000 tokens each."""
    entering = [asyncio.create_task(places(worker).admit(name, 4000, FRESH)) for name in names]
    await beats(0)
    try:
        yield
    finally:
        for task in entering:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for name in names:
            places(worker).release(name)


@virtual
async def test_the_kv_cache_is_shared_by_workers_that_need_it() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_places(coordinator, "a"), of_places(coordinator, "b")
    names = [str(number) for number in range(20)]
    async with first.joins(), agents(first, *names):
        assert places(first).ledger.residents == 7
        async with second.joins(), agents(second, *names):
            assert places(second).ledger.residents == 1  # a lone one is let in whatever there is
            await beats(2)
            assert (places(first).ledger.capacity, places(second).ledger.residents) == (4000, 1)
            for name in names[:5]:
                places(first).release(name)
            await beats(3)
            assert [places(worker).ledger.capacity for worker in (first, second)] == [4000, 4000]
            assert [places(worker).ledger.residents for worker in (first, second)] == [3, 3]
        await beats(2)
        assert places(first).ledger.capacity == 8000
        assert places(first).ledger.residents == 7


@virtual
async def test_the_report_shows_the_whole_kv_cache() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_places(coordinator, "a"), of_places(coordinator, "b")
    async with first.joins(), second.joins():
        await beats(2)
        assert first.gate.report().kv_tokens == 8000


@virtual
async def test_a_cache_of_unknown_size_is_not_shared() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_places(coordinator, "a", None), of_places(coordinator, "b", None)
    async with first.joins(), second.joins(), agents(first, *map(str, range(20))):
        await beats(2)
        assert (places(first).ledger.residents, places(first).ledger.limit) == (20, None)


@virtual
async def test_no_agent_is_overcommitted_while_several_workers_use_the_engine() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_places(coordinator, "a", 1500), of_places(coordinator, "b", 1500)
    async with first.joins():
        async with second.joins(), agents(first, "1", "2"):
            with places(first).lease("1", ["look"]):
                await asyncio.sleep(60)
                assert places(first).ledger.residents == 1
        async with agents(first, "3", "4"):
            await beats(3)
            with places(first).lease("3", ["look"]):
                await asyncio.sleep(60)
                assert places(first).ledger.residents == 2


@virtual
async def test_a_smaller_kv_quota_evicts_residents_that_wait_for_tools() -> None:
    worker = of_places(MemoryCoordinator(MemoryStore()), "a", 4000)
    async with agents(worker, "1", "2", "3", "4"):
        for name in "123":
            places(worker).on_reply(name, Usage(1000, 0, 0), 1.0, None)
        with places(worker).lease("2", ["look"]):
            assert places(worker).demand().used == 3334
            places(worker).set_quota(2400)
            assert not places(worker).ledger.is_resident("2")
        assert (places(worker).ledger.residents, places(worker).ledger.limit) == (2, 2160)
        places(worker).set_quota(None)
        assert (places(worker).ledger.residents, places(worker).ledger.limit) == (3, 3600)


@virtual
async def test_running_contexts_of_all_workers_share_the_gpu_capacity() -> None:
    ledger = KvLedger(None)
    ledger._finished = 1
    gate = AdmissionController(Slots(InflightLimit(100, fixed=True)), Residency(ledger, 0), device_tokens=7000)
    worker = Worker(MemoryCoordinator(MemoryStore()), "a", gate)
    async with agents(worker, *map(str, range(10))):
        gate.set_workers(2, 0)
        gate._update_memory_cap(places(worker))
        for _ in range(10):
            worker.ask()
        await beats(0)
        assert in_flight(worker) == [3]
        for task in worker.waiting:
            task.cancel()
        await asyncio.gather(*worker.waiting, return_exceptions=True)
