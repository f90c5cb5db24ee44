"""What every hub keeps to: facts behind tokens, and the news of endings."""

import asyncio

from tests.contract.coordinator_contract import (
    ANSWERED,
    ASKED,
    CALL,
    LONG,
    RETURNED,
    SHORT,
    STARTED,
    STORY,
    Meet,
    coordinator,
    ends,
    leased,
    meet,
    taken_over,
    told,
)
from tests.support.redis_server import redis_server

from batch_agent.core.coordinator import Append, Completion, Coordinator, Lease, Replace
from batch_agent.core.errors import ErrorKind
from batch_agent.core.facts import Failed, Replied, Returned
from batch_agent.core.messages import ToolResult
from batch_agent.core.requests import NO_USAGE, Reply, Usage
from batch_agent.core.results import AgentError

__all__ = ["coordinator", "meet", "redis_server"]


async def test_an_unknown_agent_has_no_facts(coordinator: Coordinator) -> None:
    assert await coordinator.facts("nobody") == ()


async def test_facts_come_back_in_order_and_equal(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b")
    assert await one.write("w", 1, [*told(leases["a"], STARTED), *told(leases["b"], STARTED, ASKED)]) == frozenset()
    assert await one.write("w", 2, told(leases["a"], ASKED, RETURNED, ANSWERED)) == frozenset()
    assert await other.facts("a") == STORY
    assert await other.facts("b") == (STARTED, ASKED)


async def test_facts_of_several_agents_come_in_the_requested_order(meet: Meet) -> None:
    coordinator, other = await meet(), await meet()
    leases = await leased(coordinator, "w", *map(str, range(70)))
    writes = [write for key, lease in leases.items() if key != "3" for write in told(lease, STARTED, ASKED)]
    assert await coordinator.write("w", 1, writes) == frozenset()
    assert await other.fact_lists(["2", "3", "1", "nobody"]) == [(STARTED, ASKED), (), (STARTED, ASKED), ()]
    assert await other.fact_lists([str(number) for number in range(70)]) == [
        () if number == 3 else (STARTED, ASKED) for number in range(70)
    ]
    assert await other.fact_lists([]) == []


async def test_many_and_large_facts_are_written_in_order(meet: Meet) -> None:
    one, other = await meet(), await meet()
    lease = (await leased(one, "w", "a"))["a"]
    large = [Returned((ToolResult(CALL, letter * 1_500_000, False),)) for letter in "abcd"]
    small = [Replied(Reply(f"{number}", "stop", NO_USAGE)) for number in range(1_200)]
    assert await one.write("w", 1, told(lease, *large, *small)) == frozenset()
    assert await other.facts("a") == (*large, *small)


async def test_facts_of_chunks_belong_to_the_lease_of_their_agent(coordinator: Coordinator) -> None:
    lease = (await leased(coordinator, "w", "a"))["a"]
    writes = [*told(lease, STARTED, part=".part1"), *told(lease, ASKED, part=".merge1.2"), *told(lease, RETURNED)]
    assert await coordinator.write("w", 1, writes) == frozenset()
    assert await coordinator.facts("a.part1") == (STARTED,)
    assert await coordinator.facts("a.merge1.2") == (ASKED,)
    assert await coordinator.facts("a") == (RETURNED,)
    assert await coordinator.write("w", 2, [Append("a.part1", lease.token - 1, ASKED)]) == {"a.part1"}
    assert await coordinator.facts("a.part1") == (STARTED,)


async def test_replacing_facts_restarts_the_history_of_an_agent(coordinator: Coordinator) -> None:
    lease = (await leased(coordinator, "w", "a"))["a"]
    await coordinator.write("w", 1, told(lease, STARTED, ASKED))
    anew = [Replace("a", lease.token, (STARTED,)), *told(lease, ANSWERED)]
    assert await coordinator.write("w", 2, [*told(lease, RETURNED), *anew]) == frozenset()
    assert await coordinator.facts("a") == (STARTED, ANSWERED)
    await coordinator.write("w", 3, [Replace("a", lease.token, ())])
    assert await coordinator.facts("a") == ()


async def test_writes_with_a_stale_lease_change_nothing(meet: Meet) -> None:
    one, other = await meet(), await meet()
    old = (await leased(one, "w", "a", ttl=SHORT))["a"]
    await one.write("w", 1, told(old, STARTED))
    new = (await taken_over(other, "v", "a"))["a"]
    assert new.facts == (STARTED,)
    late = [*told(old, ASKED), *told(old, ASKED, part=".part1"), Replace("a", old.token, ()), ends(old)]
    assert await one.write("w", 2, late) == {"a", "a.part1"}
    assert await one.facts("a") == (STARTED,)
    assert await one.facts("a.part1") == ()
    assert await one.pending_count() == 1
    assert await other.write("v", 1, [*told(new, ANSWERED), ends(new)]) == frozenset()
    assert await one.facts("a") == (STARTED, ANSWERED)


async def test_a_fencing_token_of_one_agent_is_refused_for_another(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    writes = [Append("b", leases["a"].token, STARTED), Append("c", leases["a"].token, STARTED)]
    assert await coordinator.write("w", 1, writes) == {"b", "c"}
    assert await coordinator.facts("b") == ()


async def test_the_valid_writes_of_a_partly_refused_batch_are_written(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    writes = [*told(leases["a"], STARTED), Append("b", leases["b"].token - 7, STARTED), *told(leases["a"], ASKED)]
    assert await coordinator.write("w", 1, writes) == {"b"}
    assert await coordinator.facts("a") == (STARTED, ASKED)
    assert await coordinator.facts("b") == ()


async def test_a_worker_that_leases_an_agent_again_needs_the_new_token(coordinator: Coordinator) -> None:
    old = (await leased(coordinator, "w", "a", ttl=SHORT))["a"]
    new = (await taken_over(coordinator, "w", "a"))["a"]
    assert await coordinator.write("w", 1, told(old, STARTED)) == {"a"}
    assert await coordinator.write("w", 2, told(new, STARTED)) == frozenset()
    assert await coordinator.facts("a") == (STARTED,)


async def test_a_repeated_batch_of_facts_is_written_once(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    batch = [*told(leases["a"], STARTED, ANSWERED), Append("b", leases["b"].token - 7, STARTED), ends(leases["a"])]
    after = await coordinator.position()
    assert await coordinator.write("w", 1, batch) == {"b"}
    assert await coordinator.write("w", 1, batch) == {"b"}
    assert await coordinator.facts("a") == (STARTED, ANSWERED)
    assert (await coordinator.poll(after, wait=0)).completions == (Completion("a"),)
    assert await coordinator.spent() == ANSWERED.reply.usage
    assert await coordinator.write("w", 2, told(leases["b"], STARTED)) == frozenset()


async def test_batch_numbers_are_counted_per_worker(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a") | await leased(coordinator, "v", "b")
    for number, fact in enumerate(STORY, 1):
        assert await coordinator.write("w", number, told(leases["a"], fact)) == frozenset()
        assert await coordinator.write("v", number, told(leases["b"], fact)) == frozenset()
    assert await coordinator.facts("a") == await coordinator.facts("b") == STORY


async def test_the_completion_of_an_agent_ends_its_lease(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    late = told(leases["a"], RETURNED)
    assert await coordinator.write("w", 1, [*told(leases["a"], STARTED), ends(leases["a"]), *late]) == {"a"}
    assert await coordinator.write("w", 2, late) == {"a"}
    assert await coordinator.facts("a") == (STARTED,)
    assert await coordinator.pending_count() == 1
    await coordinator.leave("w")
    assert [lease.job.key for lease in await coordinator.lease("v", 9, ttl=LONG, wait=0)] == ["b"]


async def test_all_replies_are_counted_including_refused_and_removed_ones(meet: Meet) -> None:
    one, other = await meet(), await meet()
    assert await one.spent() == NO_USAGE
    leases = await leased(one, "w", "a", "b")
    await one.write("w", 1, [*told(leases["a"], STARTED, ASKED), *told(leases["b"], ASKED, part=".part1")])
    await one.write("w", 2, [Replace("a", leases["a"].token, (STARTED,))])
    await one.write("w", 3, [Append("b", leases["b"].token - 7, ANSWERED)])
    assert await other.spent() == ASKED.reply.usage + ASKED.reply.usage + ANSWERED.reply.usage
    assert isinstance(await other.spent(), Usage)


# News


async def test_completions_are_in_the_updates_of_every_connection(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b", "c")
    await one.write("w", 1, [ends(leases["a"])])
    after = await one.position()
    good = Completion("b", None, 2.5, "w")
    bad = Completion("c", AgentError(ErrorKind.REFUSED, "\0 ä", retryable=False), 0.5, "w")
    await one.write("w", 2, [ends(leases["b"], good), ends(leases["c"], bad)])
    for reader in (one, other):
        assert sorted((await reader.poll(after, wait=0)).completions, key=str) == sorted([good, bad], key=str)


async def test_a_poll_without_updates_is_empty_and_a_published_message_wakes_it(meet: Meet) -> None:
    one, other = await meet(), await meet()
    empty = await one.poll(await one.position(), wait=0.02)
    assert (empty.completions, empty.completed_calls, empty.published) == ((), (), ())
    await other.publish(b"\0 now \xff")
    assert (await one.poll(empty.after, wait=60)).published == (b"\0 now \xff",)
    assert (await other.poll(empty.after, wait=0)).published == (b"\0 now \xff",)


async def test_a_waiting_poll_is_woken_by_updates(meet: Meet) -> None:
    one, other = await meet(), await meet()
    lease = (await leased(one, "w", "a"))["a"]
    after = await other.position()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.poll(after, wait=60))
        await asyncio.sleep(0.05)
        await one.write("w", 1, [ends(lease)])
    assert waiting.result().completions == (Completion("a"),)


async def test_no_update_is_missed_or_read_twice_during_concurrent_writes(meet: Meet) -> None:
    caller = await meet()
    keys = [f"agent-{number}" for number in range(120)]
    leases = [*(await leased(caller, "w0", *keys[:60])).values(), *(await leased(caller, "w1", *keys[60:])).values()]
    after = await caller.position()

    async def end(coordinator: Coordinator, worker: str, mine: list[Lease]) -> None:
        for number, lease in enumerate(mine, 1):
            await coordinator.write(worker, number, [ends(lease)])
            await coordinator.publish(lease.job.key.encode())

    ended: list[str] = []
    heard: list[bytes] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(end(await meet(), "w0", leases[:60]))
        group.create_task(end(await meet(), "w1", leases[60:]))
        while len(ended) < 120 or len(heard) < 120:
            news = await caller.poll(after, wait=60)
            after = news.after
            ended += [ending.key for ending in news.completions]
            heard += news.published
    assert sorted(ended) == sorted(keys)
    assert sorted(heard) == sorted(key.encode() for key in keys)
    assert (await caller.poll(after, wait=0)).completions == ()


async def test_a_failure_is_a_fact_and_comes_with_the_next_lease(meet: Meet) -> None:
    one, other = await meet(), await meet()
    failed = Failed(AgentError(ErrorKind.SERVER, "down: ä", retryable=True), 0.5)
    lease = (await leased(one, "w", "a"))["a"]
    ended = ends(lease, Completion("a", failed.error, 0.5, "w"))
    assert await one.write("w", 1, [*told(lease, STARTED, ASKED, failed), ended]) == frozenset()
    assert await other.facts("a") == (STARTED, ASKED, failed)
    assert (await other.submit([lease.job], retry_failed=True)) == {}
    [again] = await other.lease("v", 1, ttl=LONG, wait=0)
    assert again.facts == (STARTED, ASKED, failed)
