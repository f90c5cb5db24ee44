"""Several workers use one server: together they keep to its limits, and portions go to where the work is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from tests.support.virtual_time import virtual

from batch_agent.cluster.document_change import change
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_limits import LimitSharing, renewal_interval, share_limits, workers_of
from batch_agent.core.agent_config import FirstPrompt
from batch_agent.core.coordinator import Document
from batch_agent.core.errors import StoreError
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.residency import Residency
from batch_agent.engine.slots import HeldSlot, Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.health import Health
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.pace import Pace
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
        self.written = 0
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
        return await self._coordinator.documents.read(name)

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        self.written += 1
        await self.whole.wait()
        is_done = await self._coordinator.documents.compare_and_set(name, old, new)
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
async def test_a_worker_with_nothing_new_asks_every_fourth_beat_and_tells_a_change_at_the_next_one() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    busy, idle = of_slots(coordinator, "a", fixed=False), of_slots(coordinator, "b", fixed=False)
    async with idle.active(), busy.active(1):
        await beats(6)
        asked = busy.link.asked
        await beats(8)
        assert 1 <= busy.link.asked - asked <= 8
        written = busy.link.written
        busy.ask()
        await beats(1)
        assert busy.link.written == written + 1


@virtual
async def test_a_worker_that_waits_for_slots_asks_at_every_beat() -> None:
    alone = of_slots(MemoryCoordinator(MemoryStore()), "a")
    async with alone.active(20):
        await beats(2)
        asked = alone.link.asked
        await beats(6)
        assert alone.link.asked - asked == 6


@virtual
async def test_a_lone_worker_does_not_write_how_many_slots_it_uses_until_another_one_joins() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    first, second = of_slots(coordinator, "a"), of_slots(coordinator, "b")
    async with first.active(2):
        await beats(2)
        written = first.link.written
        first.ask()
        await beats(2)
        assert first.link.written == written
        async with second.active(20):
            await beats(8)
            assert in_flight(first, second) == [3, 5]


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
    await coordinator.documents.compare_and_set("members", None, b'{"a": 1}')
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


@pytest.mark.parametrize(("shared_tokens", "each"), [(0, 3), (3000, 2)])
@virtual
async def test_running_contexts_of_all_workers_share_the_gpu_capacity(shared_tokens: int, each: int) -> None:
    """Of contexts of 1000 tokens, 6.3 fit beside no shared prefix. It is there once for all workers, and so is the
    context that fits only partly."""
    ledger = KvLedger(None)
    ledger._context_growth.finished = 1
    residency = Residency(ledger, 4 * shared_tokens)
    gate = AdmissionController(Slots(InflightLimit(100, fixed=True)), residency, device_tokens=7000)
    worker = Worker(MemoryCoordinator(MemoryStore()), "a", gate)
    async with asyncio.TaskGroup() as group:
        for name in map(str, range(10)):
            group.create_task(residency.admit(name, FirstPrompt(4000), FRESH))
    gate.slots.set_workers(2, 0)
    gate._update_memory_cap(residency)
    for _ in range(10):
        worker.ask()
    await beats(0)
    assert in_flight(worker) == [each]
    for task in worker.waiting:
        task.cancel()
    await asyncio.gather(*worker.waiting, return_exceptions=True)


@pytest.mark.parametrize("steps", range(8))
@virtual
async def test_a_worker_that_is_cancelled_while_it_leaves_is_gone(steps: int) -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    gate = AdmissionController(Slots(InflightLimit(10, fixed=True)))
    joined, may_leave = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with share_limits(coordinator.documents, "a", {"server": gate}, ttl=30.0):
            joined.set()
            await may_leave.wait()

    working = asyncio.create_task(work())
    await joined.wait()
    assert await workers_of(coordinator.documents) == {"a"}
    may_leave.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working])
    assert await workers_of(coordinator.documents) == set()


def paced(coordinator: MemoryCoordinator, name: str, rpm: int) -> Worker:
    slots = Slots(InflightLimit(1_000, fixed=False), None, Pace({"requests": rpm}))
    return Worker(coordinator, name, AdmissionController(slots))


@virtual
async def test_workers_share_the_pace_and_get_it_back_when_one_leaves() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    a, b = paced(coordinator, "a", 600), paced(coordinator, "b", 600)
    async with a.active(2_000):
        async with b.active(2_000):
            await asyncio.sleep(1)
            before = len(a.held), len(b.held)
            await asyncio.sleep(60)
            sent = len(a.held) - before[0], len(b.held) - before[1]
            assert 570 <= sum(sent) <= 600
            assert min(sent) >= 280
        await asyncio.sleep(1)
        alone = len(a.held)
        await asyncio.sleep(30)
        assert 280 <= len(a.held) - alone <= 300


@pytest.mark.slow
@virtual
async def test_a_worker_without_requests_leaves_the_pace_to_the_others() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    a, idle = paced(coordinator, "a", 600), paced(coordinator, "idle", 600)
    async with a.active(2_000), idle.active():
        await asyncio.sleep(5)
        before = len(a.held)
        await asyncio.sleep(30)
        assert 280 <= len(a.held) - before <= 300
