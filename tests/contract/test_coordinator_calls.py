"""What every coordinator keeps to: calls that one makes for all, and places in a queue."""

import asyncio
import math

import pytest
from tests.contract.coordinator_contract import LONG, SHORT, Meet, coordinator, meet
from tests.support.redis_server import redis_server

from batch_agent.core.coordinator import Coordinator, permit_update

__all__ = ["coordinator", "meet", "redis_server"]


async def alive(coordinator: Coordinator, *workers: str) -> None:
    for worker in workers:
        await coordinator.work.renew(worker, {}, ttl=LONG)


async def test_one_worker_executes_a_tool_call_and_the_other_workers_get_its_outcome(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await alive(one, "w", "v")
    after = await other.updates.position()
    assert await one.calls.claim("look ä\0", "w") is True
    assert await other.calls.claim("look ä\0", "v") is False
    assert await other.calls.claim("another", "v") is True
    await one.calls.complete("look ä\0", "w", b"\0\xff", ttl=math.inf)
    assert (await other.updates.poll(after, wait=60)).completed_calls == ("look ä\0",)
    assert await other.calls.claim("look ä\0", "v") == b"\0\xff"
    assert await one.calls.claim("look ä\0", "w") == b"\0\xff"


@pytest.mark.parametrize("outcome", [b"", b"x" * 2_000_000], ids=["empty", "large"])
async def test_a_tool_call_can_be_completed_with_any_outcome(coordinator: Coordinator, outcome: bytes) -> None:
    await coordinator.calls.claim("call", "w")
    await coordinator.calls.complete("call", "w", outcome, ttl=LONG)
    assert await coordinator.calls.claim("call", "v") == outcome


async def test_repeating_a_claim_of_a_tool_call_returns_the_same_claim(coordinator: Coordinator) -> None:
    await alive(coordinator, "w")
    assert await coordinator.calls.claim("call", "w") is True
    assert await coordinator.calls.claim("call", "w") is True


async def test_exactly_one_of_several_concurrent_claims_succeeds(meet: Meet) -> None:
    hubs = [await meet(), await meet()]
    workers = [f"w{number}" for number in range(20)]
    await alive(hubs[0], *workers)
    async with asyncio.TaskGroup() as group:
        claims = [group.create_task(hubs[n % 2].calls.claim("call", worker)) for n, worker in enumerate(workers)]
    assert sorted(claim.result() for claim in claims) == [False] * 19 + [True]


async def test_the_claim_of_a_lost_worker_goes_to_the_next_waiting_worker(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await one.work.renew("w", {}, ttl=SHORT)
    await alive(other, "v")
    assert await one.calls.claim("call", "w") is True
    assert await other.calls.claim("call", "v") is False
    await asyncio.sleep(1.2 * SHORT)
    await alive(other, "u")
    assert await other.calls.claim("call", "v") is True
    await one.calls.complete("call", "w", b"late", ttl=LONG)
    assert await other.calls.claim("call", "v") is True
    await other.calls.complete("call", "v", b"good", ttl=LONG)
    await one.calls.complete("call", "w", b"late", ttl=LONG)
    assert await one.calls.claim("call", "w") == b"good"


async def test_a_claim_lasts_as_long_as_its_worker_sends_heartbeats(coordinator: Coordinator) -> None:
    await coordinator.work.renew("w", {}, ttl=SHORT)
    assert await coordinator.calls.claim("call", "w") is True
    await alive(coordinator, "w")
    await asyncio.sleep(1.2 * SHORT)
    assert await coordinator.calls.claim("call", "v") is False


async def test_tool_calls_claimed_by_a_leaving_worker_are_released(coordinator: Coordinator) -> None:
    await alive(coordinator, "w", "v")
    await coordinator.calls.claim("call", "w")
    await coordinator.work.leave("w")
    assert await coordinator.calls.claim("call", "v") is True


async def test_a_released_tool_call_can_be_claimed_and_is_announced_as_an_update(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await alive(one, "w", "v", "u")
    after = await other.updates.position()
    await one.calls.claim("call", "w")
    await one.calls.complete("call", "v", None, ttl=LONG)
    assert await other.calls.claim("call", "u") is False
    await one.calls.complete("call", "w", None, ttl=LONG)
    await one.calls.complete("call", "w", None, ttl=LONG)
    assert (await other.updates.poll(after, wait=0)).completed_calls == ("call",)
    assert await other.calls.claim("call", "v") is True


async def test_a_tool_call_outcome_expires_after_its_time_to_live(coordinator: Coordinator) -> None:
    await alive(coordinator, "w", "v")
    await coordinator.calls.claim("short", "w")
    await coordinator.calls.claim("long", "w")
    await coordinator.calls.complete("short", "w", b"1", ttl=SHORT)
    await coordinator.calls.complete("long", "w", b"2", ttl=math.inf)
    await asyncio.sleep(1.2 * SHORT)
    assert await coordinator.calls.claim("short", "v") is True
    assert await coordinator.calls.claim("long", "v") == b"2"


async def test_a_tool_call_cannot_be_completed_without_a_claim(coordinator: Coordinator) -> None:
    after = await coordinator.updates.position()
    await coordinator.calls.complete("call", "w", b"1", ttl=LONG)
    assert await coordinator.calls.claim("call", "v") is True
    assert (await coordinator.updates.poll(after, wait=0)).completed_calls == ()


async def test_workers_together_have_no_more_permits_than_the_limit(meet: Meet) -> None:
    hubs = [await meet(), await meet()]
    workers = [f"w{number}" for number in range(8)]
    await alive(hubs[0], *workers)
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(hubs[n % 2].calls.acquire_permit("tool", worker, 3)) for n, worker in enumerate(workers)
        ]
    assert sorted(each.result() for each in asked) == [False] * 5 + [True] * 3
    assert await hubs[0].calls.acquire_permit("other", "w0", 1) is True


async def test_a_released_permit_is_announced_to_those_who_wait_and_granted_again(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await alive(one, "w", "v")
    after = await other.updates.position()
    assert [await one.calls.acquire_permit("tool", "w", 2) for _ in range(2)] == [True, True]
    await one.calls.release_permit("tool", "w")
    assert (await other.updates.poll(after, wait=0)).completed_calls == ()
    assert await other.calls.acquire_permit("tool", "v", 2) is True
    assert await other.calls.acquire_permit("tool", "v", 2) is False
    await one.calls.release_permit("tool", "w")
    await one.calls.release_permit("tool", "w")
    assert (await other.updates.poll(after, wait=60)).completed_calls == (permit_update("tool"),)
    assert [await other.calls.acquire_permit("tool", "v", 2) for _ in range(2)] == [True, False]


async def test_the_permits_of_a_lost_worker_and_of_one_that_left_are_free(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await one.work.renew("w", {}, ttl=SHORT)
    await alive(other, "u")
    assert [await one.calls.acquire_permit("tool", worker, 2) for worker in "wu"] == [True, True]
    assert await other.calls.acquire_permit("tool", "v", 2) is False
    await asyncio.sleep(1.2 * SHORT)
    await alive(other, "v")
    assert [await other.calls.acquire_permit("tool", "v", 2) for _ in range(2)] == [True, False]
    await one.work.leave("u")
    assert await other.calls.acquire_permit("tool", "v", 2) is True


async def test_rate_limited_tool_calls_are_an_interval_apart_after_the_burst(meet: Meet) -> None:
    hubs = [await meet(), await meet()]
    waits = [await hubs[number % 2].calls.reserve_rate("search", interval=1_000, ahead=2_000) for number in range(6)]
    assert waits[:3] == [0, 0, 0]
    assert [math.ceil(wait / 1_000) for wait in waits[3:]] == [1, 2, 3]
    assert await hubs[0].calls.reserve_rate("another", interval=1_000, ahead=0) == 0


async def test_concurrent_requests_get_different_times_in_the_rate_queue(meet: Meet) -> None:
    hubs = [await meet(), await meet()]
    async with asyncio.TaskGroup() as group:
        turns = [
            group.create_task(hubs[n % 2].calls.reserve_rate("search", interval=1_000, ahead=0)) for n in range(10)
        ]
    waits = [turn.result() / 1_000 - 1e-9 for turn in turns]  # a loop may not advance its clock between two calls
    assert sorted(map(math.ceil, waits)) == list(range(10))


async def test_an_empty_rate_queue_starts_with_a_full_burst(coordinator: Coordinator) -> None:
    assert await coordinator.calls.reserve_rate("search", interval=0.01, ahead=0) == 0
    await asyncio.sleep(0.03)
    assert await coordinator.calls.reserve_rate("search", interval=0.01, ahead=0) == 0
