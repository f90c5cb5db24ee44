"""Agents in a pool of endpoints: each is resident where it runs, and none is lost when an endpoint is ejected."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_kv_cache import share_kv_caches
from batch_agent.core.agent_config import FirstPrompt
from batch_agent.engine.pool_residency import PoolResidency
from batch_agent.schedule.slot_queue import Priority
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import run_virtual


class Pool:
    """Endpoints that are up or down, and the endpoint of each agent."""

    on_routed: Callable[[str, str], None] | None = None

    def __init__(self, capacities: Sequence[int], dice: random.Random) -> None:
        self.kv_capacities = {str(index): capacity for index, capacity in enumerate(capacities)}
        self.down: set[int] = set()
        """Also those that drain."""
        self.homes: dict[str, int] = {}
        self._dice = dice

    def assign(self, agent: str, endpoint: str) -> None:
        self.homes[agent] = int(endpoint)

    def is_available(self, endpoint: str) -> bool:
        return endpoint in self.kv_capacities and int(endpoint) not in self.down

    def expected_wait(self, endpoint: str, requests: int) -> float:
        return requests * self._dice.choice([1.0, 1.0, 10.0])

    def send(self, agent: str) -> None:
        """A request goes to the agent's endpoint, or to another that is up."""
        up = [int(each) for each in self.kv_capacities if int(each) not in self.down]
        if self.homes[agent] not in up and up:
            self.homes[agent] = self._dice.choice(up)
        assert self.on_routed is not None
        self.on_routed(agent, str(self.homes[agent]))


def check(residency: PoolResidency, pool: Pool, agent: str | None = None) -> None:
    for name, endpoint in residency.named_endpoints.items():
        ledger = endpoint.ledger
        residents = {agent: each for agent, each in ledger._agents.items() if each.is_resident}
        fitting = [each.own for each in residents.values() if not each.is_overcommitted]
        assert len(fitting) <= 1 or sum(fitting) <= 0.9 * (endpoint.capacity or 0)
        assert all(pool.homes[each] == int(name) for each in residents)
    if agent is not None and str(pool.homes[agent]) in residency.named_endpoints:
        assert residency.named_endpoints[str(pool.homes[agent])].ledger.is_resident(agent)


async def live(name: str, residency: PoolResidency, pool: Pool, dice: random.Random) -> None:
    await asyncio.sleep(dice.choice([0.0, 3.0]) * dice.random())
    try:
        async with asyncio.timeout(dice.choice([None, None, 1.0])):
            await residency.admit(name, FirstPrompt(4 * dice.choice([300, 1000])), Priority(True))
    except TimeoutError:
        return
    try:
        for turn in range(3):
            if turn:
                await residency.readmit(name, Priority(False, 3 - turn))
            check(residency, pool, name)
            for _ in range(2):  # the second time after the endpoint may have been ejected
                pool.send(name)
                check(residency, pool)
                await asyncio.sleep(dice.random())
            with residency.lease(name, ["look"]):
                await asyncio.sleep(5 * dice.random())
    finally:
        residency.release(name)


async def eject(pool: Pool, dice: random.Random) -> None:
    while True:
        await asyncio.sleep(3 * dice.random())
        endpoint = dice.randrange(len(pool.kv_capacities))
        pool.down ^= {endpoint}


CAPACITIES = st.lists(st.sampled_from([400, 900, 1500, 4000]), min_size=2, max_size=4)


@given(st.integers(0, 10**9), CAPACITIES)
def test_agents_fit_where_they_run_and_all_of_them_end(seed: int, capacities: list[int]) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        pool = Pool(capacities, dice)
        residency = PoolResidency(pool, pool.kv_capacities, 0)
        for endpoint in residency.endpoints:
            endpoint.ledger._context_growth.finished = 1
        async with asyncio.timeout(1000):
            ejecting = asyncio.create_task(eject(pool, dice))
            async with asyncio.TaskGroup() as group:
                for number in range(dice.choice([1, 5, 30])):
                    group.create_task(live(str(number), residency, pool, dice))
            ejecting.cancel()
        for endpoint in residency.endpoints:
            assert endpoint.ledger.residents == endpoint.busy == 0
            assert not endpoint.ledger._agents
            assert abs(endpoint.ledger.reserved_tokens) < 1e-6

    run_virtual(main())


async def come_and_go(pool: Pool, residency: PoolResidency, dice: random.Random) -> None:
    """Endpoints join, drain, leave, and are listed again; one that serves is left."""
    while True:
        await asyncio.sleep(2 * dice.random())
        serving = [each for each in pool.kv_capacities if int(each) not in pool.down]
        draining = [each for each in pool.kv_capacities if int(each) in pool.down]
        if dice.random() < 0.3 and len(serving) > 1:
            name = dice.choice(serving)
            pool.down.add(int(name))
            residency.drain(name)
        elif dice.random() < 0.3 and draining:
            name = dice.choice(draining)
            if dice.random() < 0.3:
                pool.down.discard(int(name))
                residency.join(name, pool.kv_capacities[name])
            elif not residency.named_endpoints[name].busy:
                del pool.kv_capacities[name]
                residency.leave(name)
        else:
            name = str(dice.randrange(8))
            if name not in pool.kv_capacities:
                pool.down.discard(int(name))
                pool.kv_capacities[name] = dice.choice([400, 900, 1500, 4000])
                residency.join(name, pool.kv_capacities[name])
                residency.named_endpoints[name].ledger._context_growth.finished = 1


@given(st.integers(0, 10**9), CAPACITIES)
def test_agents_fit_where_they_run_and_all_of_them_end_while_endpoints_come_and_go(
    seed: int, capacities: list[int]
) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        pool = Pool(capacities, dice)
        residency = PoolResidency(pool, pool.kv_capacities, 0)
        for endpoint in residency.endpoints:
            endpoint.ledger._context_growth.finished = 1
        async with asyncio.timeout(1000):
            changing = asyncio.create_task(come_and_go(pool, residency, dice))
            async with asyncio.TaskGroup() as group:
                for number in range(dice.choice([1, 5, 30])):
                    group.create_task(live(str(number), residency, pool, dice))
            changing.cancel()
            await asyncio.wait([changing])
        assert changing.cancelled()
        for endpoint in residency.endpoints:
            assert endpoint.ledger.residents == endpoint.busy == 0
            assert not endpoint.ledger._agents
            assert abs(endpoint.ledger.reserved_tokens) < 1e-6

    run_virtual(main())


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), CAPACITIES)
def test_workers_that_share_a_pool_share_the_account_of_each_endpoint(seed: int, capacities: list[int]) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        coordinator, pools = MemoryCoordinator(MemoryStore()), list[tuple[Pool, PoolResidency]]()

        def check_all() -> None:
            for index, capacity in enumerate(capacities):
                ledgers = [residency.endpoints[index].ledger for _, residency in pools]
                known = [each for ledger in ledgers for each in ledger._agents.values() if each.is_resident]
                fitting = [each.own for each in known if not each.is_overcommitted]
                assert len(fitting) <= 1 or sum(fitting) <= 0.9 * capacity

        async def agent(name: str, pool: Pool, residency: PoolResidency) -> None:
            await live(name, residency, pool, dice)
            check_all()

        async with AsyncExitStack() as stack, asyncio.timeout(2000), asyncio.TaskGroup() as group:
            for worker in range(2):
                pool = Pool(capacities, dice)
                residency = PoolResidency(pool, pool.kv_capacities, 0)
                pools.append((pool, residency))
                for endpoint in residency.endpoints:
                    endpoint.ledger._context_growth.finished = 1
                named = {"pool": residency}
                await stack.enter_async_context(share_kv_caches(coordinator.documents, str(worker), named, ttl=5.0))
                for number in range(dice.choice([1, 5, 20])):
                    group.create_task(agent(f"{worker}.{number}", pool, residency))

    run_virtual(main())
