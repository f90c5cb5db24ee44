"""The order of references that all workers of a run use, on every coordinator."""

import asyncio

import pytest
from tests.contract.coordinator_contract import Meet, meet
from tests.support.redis_server import redis_server

from batch_agent.cluster import shared_tool_calls
from batch_agent.cluster.shared_tool_calls import SharedReferenceOrder
from batch_agent.core.shared_calls import SharedRank

__all__ = ["meet", "redis_server"]


async def test_workers_that_ask_at_the_same_time_get_the_same_ranks(meet: Meet) -> None:
    orders = [SharedReferenceOrder((await meet()).documents) for _ in range(3)]
    headings = [f'read(title="{number} ä")' for number in range(20)]
    async with asyncio.TaskGroup() as group:
        asking = [[group.create_task(order.rank(heading)) for heading in headings] for order in orders]
    ranks = [[task.result().rank for task in tasks] for tasks in asking]
    assert ranks[0] == ranks[1] == ranks[2]
    assert sorted(ranks[0]) == list(range(20))


async def test_a_worker_learns_that_another_one_has_asked_before(meet: Meet) -> None:
    one, other = SharedReferenceOrder((await meet()).documents), SharedReferenceOrder((await meet()).documents)
    assert await one.rank("a") == SharedRank(0, is_elsewhere=False)
    assert await other.rank("b") == SharedRank(1, is_elsewhere=False)
    assert await other.rank("a") == SharedRank(0, is_elsewhere=True)
    assert await one.rank("a") == SharedRank(0, is_elsewhere=False)


async def test_a_worker_that_joins_later_finds_the_order(meet: Meet) -> None:
    one = SharedReferenceOrder((await meet()).documents)
    for heading in ("a", "b", "c"):
        await one.rank(heading)
    later = SharedReferenceOrder((await meet()).documents)
    assert [(await later.rank(heading)).rank for heading in ("c", "b", "d")] == [2, 1, 3]


@pytest.mark.slow
async def test_references_beyond_the_limit_have_one_rank(meet: Meet) -> None:
    full = SharedReferenceOrder((await meet()).documents)
    limit = shared_tool_calls.MAX_REFERENCES
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(full.rank(f"{number}")) for number in range(limit + 5)]
    ranks = [task.result().rank for task in asking]
    assert sorted(ranks) == [*range(limit), *[limit] * 5]
