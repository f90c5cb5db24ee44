"""Several workers use one KV cache: agents are admitted as if one ledger had all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import orjson
import pytest
from tests.support.virtual_time import virtual
from tests.unit.cluster.test_shared_limits import BEAT, FRESH, LASTS, Link, beats

from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_kv_cache import share_kv_caches
from batch_agent.core.agent_config import FirstPrompt
from batch_agent.core.errors import StoreError
from batch_agent.core.requests import Usage
from batch_agent.engine.residency import Residency
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.store.memory_store import MemoryStore

CAPACITY = 8000
"""Seven agents of 1000 tokens fit into 0.9 of it."""


class Worker:
    """A ledger of agents that are known not to grow, with 1000 tokens each."""

    def __init__(
        self, coordinator: MemoryCoordinator, name: str, tokens: int | None = CAPACITY, shared: int = 0
    ) -> None:
        self.link = Link(coordinator)
        self.name = name
        self.ledger = KvLedger(tokens)
        self.ledger._context_growth.finished = 1
        self.residency = Residency(self.ledger, 4 * shared)
        self.waiting: dict[str, asyncio.Task[None]] = {}

    def joins(self) -> AbstractAsyncContextManager[None]:
        return share_kv_caches(self.link, self.name, {"a": self.residency}, ttl=LASTS, interval=BEAT)

    @asynccontextmanager
    async def active(self, agents: int = 0) -> AsyncIterator["Worker"]:
        async with self.joins():
            self.begin(agents)
            await beats(0)
            try:
                yield self
            finally:
                await self.end_all()

    def begin(self, agents: int) -> None:
        for _ in range(agents):
            name = f"{self.name}{len(self.waiting)}"
            self.waiting[name] = asyncio.create_task(self.residency.admit(name, FirstPrompt(4000), FRESH))

    def end(self, agents: int) -> None:
        residents = [name for name in self.waiting if self.ledger.is_resident(name)]
        for name in residents[:agents]:
            self.residency.release(name)

    async def end_all(self) -> None:
        for name, task in self.waiting.items():
            task.cancel()
            with suppress(asyncio.CancelledError, StoreError):
                await task
            self.residency.release(name)


def residents(*workers: Worker) -> list[int]:
    return [worker.ledger.residents for worker in workers]


def coordinated() -> MemoryCoordinator:
    return MemoryCoordinator(MemoryStore())


@virtual
async def test_a_lone_worker_admits_at_once_without_asking_for_each_agent() -> None:
    async with Worker(coordinated(), "a").active() as alone:
        asked = alone.link.asked
        alone.begin(7)
        await asyncio.sleep(0)
        assert residents(alone) == [7]
        assert alone.link.asked == asked


@virtual
async def test_the_cache_is_filled_by_the_agents_of_all_workers_and_never_beyond() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(3) as first, Worker(coordinator, "b").active(20) as second:
        await beats(2)
        assert residents(first, second) == [3, 4]


@virtual
async def test_no_capacity_is_lost_to_shares_that_are_not_whole_agents() -> None:
    """Quotas of 2250 tokens would hold two agents each: six of seven."""
    coordinator = coordinated()
    workers = [Worker(coordinator, name) for name in "abc"]
    async with workers[0].active(9), workers[1].active(9), workers[2].active(9):
        await beats(3)
        assert sum(residents(*workers)) == 7


@virtual
async def test_a_worker_that_joins_late_gets_its_share_as_agents_end() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(20) as first, Worker(coordinator, "b").active(20) as second:
        await beats(2)
        assert residents(first, second) == [7, 0]
        first.end(2)
        await beats(2)
        assert residents(first, second) == [5, 2]
        first.end(3)
        await beats(2)
        assert sorted(residents(first, second)) == [3, 4]


@virtual
async def test_a_worker_with_its_share_replaces_an_agent_that_ends_at_once() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(20) as first, Worker(coordinator, "b").active(20) as second:
        await beats(1)
        first.end(4)
        await beats(2)
        assert residents(first, second) == [4, 3]
        first.link.whole.clear()  # no transaction is needed
        first.end(1)
        assert residents(first, second) == [4, 3]
        first.link.whole.set()


@virtual
async def test_workers_take_turns_where_fewer_agents_fit_than_there_are_workers() -> None:
    coordinator = coordinated()
    workers = [Worker(coordinator, name, 1500) for name in "abc"]
    turns = [0, 0, 0]

    async def work(number: int) -> None:
        worker = workers[number]
        async with worker.joins():
            while asyncio.get_running_loop().time() < 60:
                agent = f"{number} {turns[number]}"
                await worker.residency.admit(agent, FirstPrompt(4000), FRESH)
                assert sum(residents(*workers)) == 1
                await asyncio.sleep(1.0)
                turns[number] += 1
                worker.residency.release(agent)

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(number))
    assert sum(turns) > 38
    assert min(turns) >= 12


@virtual
async def test_the_shared_prefix_counts_once() -> None:
    coordinator = coordinated()
    workers = [Worker(coordinator, name, shared=3000) for name in "ab"]
    async with workers[0].active(9), workers[1].active(9):
        await beats(3)
        assert sum(residents(*workers)) == 4  # 3000 + 4 * 1000 of 7200


@virtual
async def test_growth_is_learned_once_for_all_workers() -> None:
    coordinator = coordinated()
    first, second = Worker(coordinator, "a"), Worker(coordinator, "b")
    for worker in (first, second):
        worker.ledger._context_growth.finished = 0
    async with first.active(1), second.active(9):
        first.residency.on_reply("a0", Usage(1000, 0, 0), 1.0, None)
        first.residency.on_reply("a0", Usage(2500, 0, 0), 1.0, None)
        first.end(1)
        await beats(2)
        assert second.ledger.growth == 1500
        async with Worker(coordinator, "c").active() as third:
            assert third.ledger.growth == 1500


@virtual
async def test_cache_misses_shrink_the_limit_once() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(3) as first, Worker(coordinator, "b").active(3) as second:
        await beats(3)
        for worker in (first, second):
            for name in list(worker.waiting) * 3:
                worker.residency.on_reply(name, Usage(1000, 10, 0), 1.0, None)
        await beats(12)
        assert first.ledger.limit == second.ledger.limit
        assert second.ledger.limit is not None
        assert 0.9 * 6000 <= second.ledger.limit <= 0.9 * 7200


@virtual
async def test_a_capacity_that_turns_out_larger_is_used_by_the_worker_that_knows_it() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(20) as first, Worker(coordinator, "b").active(20) as second:
        first.residency.set_capacity(2 * CAPACITY)
        await beats(2)
        assert (first.ledger.limit, second.ledger.limit) == (0.9 * 2 * CAPACITY, 0.9 * CAPACITY)
        second.residency.set_capacity(2 * CAPACITY)
        await beats(3)
        assert sum(residents(first, second)) == 14


@virtual
async def test_a_limit_that_one_worker_learned_holds_for_a_cache_of_unknown_size() -> None:
    coordinator = coordinated()
    first, second = Worker(coordinator, "a", None), Worker(coordinator, "b", None)
    async with first.active(12), second.active():
        await beats(1)
        assert (first.ledger.residents, second.ledger.limit) == (12, None)
        for name in list(first.waiting) * 3:
            first.residency.on_reply(name, Usage(1000, 10, 0), 1.0, None)
        await beats(12)
        assert first.ledger.limit is not None
        assert second.ledger.limit == first.ledger.limit


@virtual
async def test_a_worker_that_leaves_gives_back_what_it_held() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(20) as first:
        first.end(7)
        async with Worker(coordinator, "b").active(20) as second:
            await beats(2)
            first.end(7)
            await beats(2)
            assert sum(residents(first, second)) == 7
            assert second.ledger.residents >= 3
        await beats(2)
        assert residents(first) == [6]  # all of its own that are left


@virtual
async def test_the_tokens_of_a_dead_worker_come_back_when_its_entry_expires() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(5) as dead, Worker(coordinator, "b").active(20) as living:
        await beats(3)
        assert residents(living) == [2]
        dead.link.whole.clear()
        await asyncio.sleep(LASTS - 2 * BEAT)
        assert residents(living) == [2]
        await beats(4)
        assert residents(living) == [7]
        dead.link.whole.set()


@virtual
async def test_an_isolated_worker_admits_nothing_before_others_count_it_as_dead() -> None:
    async with Worker(coordinated(), "a").active(7) as alone:
        alone.link.whole.clear()
        await asyncio.sleep(0.7 * LASTS)
        alone.end(1)
        alone.begin(1)
        await beats(0)
        assert residents(alone) == [7]
        await asyncio.sleep(0.3 * LASTS)
        alone.end(3)
        alone.begin(3)
        await beats(0)
        assert residents(alone) == [4]
        alone.link.whole.set()
        await beats(1)
        assert residents(alone) == [7]


@virtual
async def test_room_granted_to_a_cancelled_agent_is_not_lost() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(7) as first, Worker(coordinator, "b").active(1) as second:
        await beats(1)
        second.link.delay = 0.2
        first.end(1)
        await asyncio.sleep(BEAT)  # the transaction of the second is under way
        second.waiting["b0"].cancel()
        await beats(2)
        assert residents(first, second) == [6, 0]
        first.begin(1)
        await beats(2)
        assert residents(first, second) == [7, 0]


@virtual
async def test_an_agent_is_overcommitted_only_while_no_worker_has_a_request_in_flight() -> None:
    coordinator = coordinated()
    first, second = Worker(coordinator, "a", 2500), Worker(coordinator, "b", 2500)
    async with first.active(2), second.active(1):
        with first.residency.lease("a0", ["look"]):
            await asyncio.sleep(10)
            assert residents(first, second) == [2, 0]
            with first.residency.lease("a1", ["look"]):
                await asyncio.sleep(3)
                assert residents(first, second) == [2, 1]
                assert second.ledger.counts.overcommitted == 1


@virtual
async def test_an_expired_lease_makes_room_for_an_agent_of_another_worker() -> None:
    coordinator = coordinated()
    async with Worker(coordinator, "a").active(7) as first, Worker(coordinator, "b").active(1) as second:
        await beats(1)
        first.ledger.prefill_speed.tokens_per_second = 7200.0
        with first.residency.lease("a0", ["look"]):
            await asyncio.sleep(0.5)
            assert residents(first, second) == [7, 0]
            await beats(3)
            assert residents(first, second) == [6, 1]
            assert first.ledger.counts.evictions == 1


@virtual
async def test_an_account_of_another_version_is_an_error() -> None:
    coordinator = coordinated()
    await coordinator.documents.compare_and_set("kv a", None, orjson.dumps({"a": 1}))
    with pytest.raises(StoreError, match="same version"):
        await Worker(coordinator, "b").joins().__aenter__()


@virtual
async def test_a_late_reply_of_the_coordinator_grants_nothing() -> None:
    late = Worker(coordinated(), "a")
    late.link.delay = LASTS
    with pytest.raises(StoreError, match="so late"):
        await late.joins().__aenter__()
    assert not late.ledger.grant or not late.ledger.grant.tokens


@virtual
async def test_a_worker_writes_little_while_no_agent_waits() -> None:
    coordinator = coordinated()
    written: list[str] = []
    original = coordinator.documents.compare_and_set

    async def counted(name: str, old: bytes | None, new: bytes | None) -> bool:
        written.append(name)
        return await original(name, old, new)

    coordinator.documents.compare_and_set = counted  # type: ignore[method-assign]
    async with Worker(coordinator, "a").active(2), Worker(coordinator, "b").active(2):
        await beats(2)
        written.clear()
        await asyncio.sleep(4 * LASTS)
        assert len(written) <= 2 * 4 * 3
