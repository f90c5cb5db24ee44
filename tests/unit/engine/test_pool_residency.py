"""Where agents are admitted among several endpoints, and when they move."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from tests.property.test_pool_residency import Pool

from batch_agent.core.agent_config import FirstPrompt
from batch_agent.core.requests import Usage
from batch_agent.engine.pool_residency import PoolResidency
from batch_agent.schedule.slot_queue import Priority
from batch_agent.testing import run_virtual

NEW, STARTED = Priority(True), Priority(False)


class CalmPool(Pool):
    """Endpoints with a fixed time for each request."""

    def __init__(self, *capacities: int) -> None:
        super().__init__(capacities, random.Random(0))
        self.seconds = [1.0] * len(capacities)

    def expected_wait(self, endpoint: str, requests: int) -> float:
        return requests * self.seconds[int(endpoint)]


def pool_of(*capacities: int) -> tuple[CalmPool, PoolResidency]:
    pool = CalmPool(*capacities)
    return pool, PoolResidency(pool, pool.kv_capacities, 0, chars_per_token=1.0)


async def is_waiting(admission: Coroutine[Any, Any, None]) -> tuple[bool, asyncio.Task[None]]:
    task = asyncio.create_task(admission)
    await asyncio.sleep(0.001)
    return not task.done(), task


def test_an_agent_is_admitted_where_it_fits_though_another_endpoint_serves_fewer() -> None:
    async def scene() -> None:
        pool, residency = pool_of(1000, 4000)
        for agent in "abcd":
            await residency.admit(agent, FirstPrompt(600), NEW)
        assert [pool.homes[agent] for agent in "abcd"] == [0, 1, 1, 1]

    run_virtual(scene())


def test_an_agent_that_fits_nowhere_is_admitted_by_the_first_endpoint_with_room() -> None:
    async def scene() -> None:
        pool, residency = pool_of(1000, 1000)
        await residency.admit("a", FirstPrompt(600), NEW)
        await residency.admit("b", FirstPrompt(600), NEW)
        waits, task = await is_waiting(residency.admit("c", FirstPrompt(600), NEW))
        assert waits
        residency.release("b")
        await task
        assert pool.homes == {"a": 0, "b": 1, "c": 1}

    run_virtual(scene())


def test_a_cancelled_waiter_is_forgotten_by_all_endpoints() -> None:
    async def scene() -> None:
        _, residency = pool_of(1000, 1000)
        await residency.admit("a", FirstPrompt(600), NEW)
        await residency.admit("b", FirstPrompt(600), NEW)
        _, task = await is_waiting(residency.admit("c", FirstPrompt(600), NEW))
        task.cancel()
        await asyncio.wait([task])
        assert all(set(endpoint.ledger._agents) <= {"a", "b"} for endpoint in residency.endpoints)

    run_virtual(scene())


def test_an_agent_whose_endpoint_was_ejected_asks_for_residency_on_another() -> None:
    async def scene() -> None:
        pool, residency = pool_of(1000, 1000)
        await residency.admit("a", FirstPrompt(600), NEW)
        await residency.admit("b", FirstPrompt(600), NEW)
        pool.down = {1}
        waits, task = await is_waiting(residency.readmit("b", STARTED))
        assert waits
        assert residency.endpoints[1].ledger.residents == 0
        residency.release("a")
        await task
        assert pool.homes["b"] == 0
        assert residency.endpoints[0].ledger.is_resident("b")

    run_virtual(scene())


def test_a_request_that_fails_over_is_not_delayed_and_its_agent_asks_before_its_next_turn() -> None:
    async def scene() -> None:
        pool, residency = pool_of(1000, 1000)
        await residency.admit("a", FirstPrompt(600), NEW)
        await residency.admit("b", FirstPrompt(600), NEW)
        residency.on_routed("b", "0")
        assert not any(endpoint.ledger.is_resident("b") for endpoint in residency.endpoints)
        residency.on_reply("b", Usage(600, 0, 10), 1.0, None)
        waits, task = await is_waiting(residency.readmit("b", STARTED))
        assert waits
        residency.release("a")
        await task
        assert pool.is_available("0")

    run_virtual(scene())


def test_an_agent_leaves_an_endpoint_that_is_several_times_slower_if_another_has_room() -> None:
    async def scene() -> None:
        pool, residency = pool_of(4000, 4000)
        await residency.admit("a", FirstPrompt(600), NEW)
        pool.seconds[0] = 3.0
        await residency.readmit("a", STARTED)
        assert pool.homes["a"] == 0
        pool.seconds[0] = 5.0
        await residency.readmit("a", STARTED)
        assert pool.homes["a"] == 1
        assert [endpoint.ledger.residents for endpoint in residency.endpoints] == [0, 1]

    run_virtual(scene())


def test_an_agent_moves_to_the_endpoint_whose_residents_have_its_new_references() -> None:
    async def scene() -> None:
        pool, residency = pool_of(4000, 4000)
        for agent in "abc":
            await residency.admit(agent, FirstPrompt(300), NEW)
            residency.on_reply(agent, Usage(300, 0, 10), 1.0, None)
        assert [pool.homes[agent] for agent in "abc"] == [0, 1, 0]
        residency.on_references("b", {"manual": 500})
        await residency.readmit("b", STARTED)
        residency.on_references("a", {"manual": 500})
        await residency.readmit("a", STARTED)
        await residency.readmit("c", STARTED)
        assert [pool.homes[agent] for agent in "abc"] == [1, 1, 0]
        assert residency.endpoints[1].ledger.references.tokens == 500

    run_virtual(scene())


def test_started_agents_that_wait_for_an_ejected_endpoint_wait_for_the_other_one() -> None:
    async def scene() -> None:
        pool, residency = pool_of(1000, 1000)
        await residency.admit("a", FirstPrompt(600), NEW)
        await residency.admit("b", FirstPrompt(600), NEW)
        pool.homes["b"] = 0
        residency.on_routed("b", "0")
        waits, task = await is_waiting(residency.readmit("b", STARTED))
        assert waits
        pool.down = {0}
        residency.on_routed("a", "1")
        await task
        assert pool.homes["b"] == 1
        assert residency.endpoints[1].ledger.is_resident("b")

    run_virtual(scene())
