"""What every coordinator keeps to: facts behind tokens, and the news of endings."""

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
    assert await coordinator.facts.read("nobody") == ()


async def test_facts_come_back_in_order_and_equal(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b")
    assert (
        await one.facts.write("w", 1, [*told(leases["a"], STARTED), *told(leases["b"], STARTED, ASKED)]) == frozenset()
    )
    assert await one.facts.write("w", 2, told(leases["a"], ASKED, RETURNED, ANSWERED)) == frozenset()
    assert await other.facts.read("a") == STORY
    assert await other.facts.read("b") == (STARTED, ASKED)


async def test_facts_of_several_agents_come_in_the_requested_order(meet: Meet) -> None:
    coordinator, other = await meet(), await meet()
    leases = await leased(coordinator, "w", *map(str, range(70)))
    writes = [write for key, lease in leases.items() if key != "3" for write in told(lease, STARTED, ASKED)]
    assert await coordinator.facts.write("w", 1, writes) == frozenset()
    assert await other.facts.read_many(["2", "3", "1", "nobody"]) == [(STARTED, ASKED), (), (STARTED, ASKED), ()]
    assert await other.facts.read_many([str(number) for number in range(70)]) == [
        () if number == 3 else (STARTED, ASKED) for number in range(70)
    ]
    assert await other.facts.read_many([]) == []


async def test_many_and_large_facts_are_written_in_order(meet: Meet) -> None:
    one, other = await meet(), await meet()
    lease = (await leased(one, "w", "a"))["a"]
    large = [Returned((ToolResult(CALL, letter * 1_500_000, False),)) for letter in "abcd"]
    small = [Replied(Reply(f"{number}", "stop", NO_USAGE)) for number in range(1_200)]
    assert await one.facts.write("w", 1, told(lease, *large, *small)) == frozenset()
    assert await other.facts.read("a") == (*large, *small)


async def test_facts_that_came_in_few_and_in_many_messages_are_read_together(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b", "c")
    replies = [Replied(Reply(f"{number}", "stop", NO_USAGE)) for number in range(9)]
    for number, reply in enumerate(replies):
        few = told(leases["b"], reply) if number < 3 else []
        assert await one.facts.write("w", number + 1, [*told(leases["a"], reply), *few]) == frozenset()
    assert await one.facts.write("w", 10, told(leases["c"], STARTED)) == frozenset()
    found = await other.facts.read_many(["b", "a", "nobody", "c"])
    assert found == [tuple(replies[:3]), tuple(replies), (), (STARTED,)]


async def test_facts_of_chunks_belong_to_the_lease_of_their_agent(coordinator: Coordinator) -> None:
    lease = (await leased(coordinator, "w", "a"))["a"]
    writes = [*told(lease, STARTED, part=".part1"), *told(lease, ASKED, part=".merge1.2"), *told(lease, RETURNED)]
    assert await coordinator.facts.write("w", 1, writes) == frozenset()
    assert await coordinator.facts.read("a.part1") == (STARTED,)
    assert await coordinator.facts.read("a.merge1.2") == (ASKED,)
    assert await coordinator.facts.read("a") == (RETURNED,)
    assert await coordinator.facts.write("w", 2, [Append("a.part1", lease.token - 1, ASKED)]) == {"a.part1"}
    assert await coordinator.facts.read("a.part1") == (STARTED,)


async def test_replacing_facts_restarts_the_history_of_an_agent(coordinator: Coordinator) -> None:
    lease = (await leased(coordinator, "w", "a"))["a"]
    await coordinator.facts.write("w", 1, told(lease, STARTED, ASKED))
    anew = [Replace("a", lease.token, (STARTED,)), *told(lease, ANSWERED)]
    assert await coordinator.facts.write("w", 2, [*told(lease, RETURNED), *anew]) == frozenset()
    assert await coordinator.facts.read("a") == (STARTED, ANSWERED)
    await coordinator.facts.write("w", 3, [Replace("a", lease.token, ())])
    assert await coordinator.facts.read("a") == ()


async def test_writes_with_a_stale_lease_change_nothing(meet: Meet) -> None:
    one, other = await meet(), await meet()
    old = (await leased(one, "w", "a", ttl=SHORT))["a"]
    await one.facts.write("w", 1, told(old, STARTED))
    new = (await taken_over(other, "v", "a"))["a"]
    assert new.facts == (STARTED,)
    late = [*told(old, ASKED), *told(old, ASKED, part=".part1"), Replace("a", old.token, ()), ends(old)]
    assert await one.facts.write("w", 2, late) == {"a", "a.part1"}
    assert await one.facts.read("a") == (STARTED,)
    assert await one.facts.read("a.part1") == ()
    assert await one.work.pending_count() == 1
    assert await other.facts.write("v", 1, [*told(new, ANSWERED), ends(new)]) == frozenset()
    assert await one.facts.read("a") == (STARTED, ANSWERED)


async def test_a_fencing_token_of_one_agent_is_refused_for_another(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    writes = [Append("b", leases["a"].token, STARTED), Append("c", leases["a"].token, STARTED)]
    assert await coordinator.facts.write("w", 1, writes) == {"b", "c"}
    assert await coordinator.facts.read("b") == ()


async def test_the_valid_writes_of_a_partly_refused_batch_are_written(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    writes = [*told(leases["a"], STARTED), Append("b", leases["b"].token - 7, STARTED), *told(leases["a"], ASKED)]
    assert await coordinator.facts.write("w", 1, writes) == {"b"}
    assert await coordinator.facts.read("a") == (STARTED, ASKED)
    assert await coordinator.facts.read("b") == ()


async def test_a_worker_that_leases_an_agent_again_needs_the_new_token(coordinator: Coordinator) -> None:
    old = (await leased(coordinator, "w", "a", ttl=SHORT))["a"]
    new = (await taken_over(coordinator, "w", "a"))["a"]
    assert await coordinator.facts.write("w", 1, told(old, STARTED)) == {"a"}
    assert await coordinator.facts.write("w", 2, told(new, STARTED)) == frozenset()
    assert await coordinator.facts.read("a") == (STARTED,)


async def test_a_repeated_batch_of_facts_is_written_once(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    batch = [*told(leases["a"], STARTED, ANSWERED), Append("b", leases["b"].token - 7, STARTED), ends(leases["a"])]
    after = await coordinator.updates.position()
    assert await coordinator.facts.write("w", 1, batch) == {"b"}
    assert await coordinator.facts.write("w", 1, batch) == {"b"}
    assert await coordinator.facts.read("a") == (STARTED, ANSWERED)
    assert (await coordinator.updates.poll(after, wait=0)).completions == (Completion("a"),)
    assert await coordinator.facts.spent() == ANSWERED.reply.usage
    assert await coordinator.facts.write("w", 2, told(leases["b"], STARTED)) == frozenset()


async def test_batch_numbers_are_counted_per_worker(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a") | await leased(coordinator, "v", "b")
    for number, fact in enumerate(STORY, 1):
        assert await coordinator.facts.write("w", number, told(leases["a"], fact)) == frozenset()
        assert await coordinator.facts.write("v", number, told(leases["b"], fact)) == frozenset()
    assert await coordinator.facts.read("a") == await coordinator.facts.read("b") == STORY


async def test_the_completion_of_an_agent_ends_its_lease(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    late = told(leases["a"], RETURNED)
    assert await coordinator.facts.write("w", 1, [*told(leases["a"], STARTED), ends(leases["a"]), *late]) == {"a"}
    assert await coordinator.facts.write("w", 2, late) == {"a"}
    assert await coordinator.facts.read("a") == (STARTED,)
    assert await coordinator.work.pending_count() == 1
    await coordinator.work.leave("w")
    assert [lease.job.key for lease in await coordinator.work.lease("v", 9, ttl=LONG, wait=0)] == ["b"]


async def test_all_replies_are_counted_including_refused_and_removed_ones(meet: Meet) -> None:
    one, other = await meet(), await meet()
    assert await one.facts.spent() == NO_USAGE
    leases = await leased(one, "w", "a", "b")
    await one.facts.write("w", 1, [*told(leases["a"], STARTED, ASKED), *told(leases["b"], ASKED, part=".part1")])
    await one.facts.write("w", 2, [Replace("a", leases["a"].token, (STARTED,))])
    await one.facts.write("w", 3, [Append("b", leases["b"].token - 7, ANSWERED)])
    assert await other.facts.spent() == ASKED.reply.usage + ASKED.reply.usage + ANSWERED.reply.usage
    assert isinstance(await other.facts.spent(), Usage)


# News


async def test_completions_are_in_the_updates_of_every_connection(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b", "c")
    await one.facts.write("w", 1, [ends(leases["a"])])
    after = await one.updates.position()
    good = Completion("b", None, 2.5, "w")
    bad = Completion("c", AgentError(ErrorKind.REFUSED, "\0 ä", retryable=False), 0.5, "w")
    await one.facts.write("w", 2, [ends(leases["b"], good), ends(leases["c"], bad)])
    for reader in (one, other):
        assert sorted((await reader.updates.poll(after, wait=0)).completions, key=str) == sorted([good, bad], key=str)


async def test_a_poll_without_updates_is_empty_and_a_published_message_wakes_it(meet: Meet) -> None:
    one, other = await meet(), await meet()
    empty = await one.updates.poll(await one.updates.position(), wait=0.02)
    assert (empty.completions, empty.completed_calls, empty.published) == ((), (), ())
    await other.updates.publish(b"\0 now \xff")
    assert (await one.updates.poll(empty.after, wait=60)).published == (b"\0 now \xff",)
    assert (await other.updates.poll(empty.after, wait=0)).published == (b"\0 now \xff",)


async def test_a_waiting_poll_is_woken_by_updates(meet: Meet) -> None:
    one, other = await meet(), await meet()
    lease = (await leased(one, "w", "a"))["a"]
    after = await other.updates.position()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.updates.poll(after, wait=60))
        await asyncio.sleep(0.05)
        await one.facts.write("w", 1, [ends(lease)])
    assert waiting.result().completions == (Completion("a"),)


async def test_no_update_is_missed_or_read_twice_during_concurrent_writes(meet: Meet) -> None:
    caller = await meet()
    keys = [f"agent-{number}" for number in range(120)]
    leases = [*(await leased(caller, "w0", *keys[:60])).values(), *(await leased(caller, "w1", *keys[60:])).values()]
    after = await caller.updates.position()

    async def end(coordinator: Coordinator, worker: str, mine: list[Lease]) -> None:
        for number, lease in enumerate(mine, 1):
            await coordinator.facts.write(worker, number, [ends(lease)])
            await coordinator.updates.publish(lease.job.key.encode())

    ended: list[str] = []
    heard: list[bytes] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(end(await meet(), "w0", leases[:60]))
        group.create_task(end(await meet(), "w1", leases[60:]))
        while len(ended) < 120 or len(heard) < 120:
            news = await caller.updates.poll(after, wait=60)
            after = news.after
            ended += [ending.key for ending in news.completions]
            heard += news.published
    assert sorted(ended) == sorted(keys)
    assert sorted(heard) == sorted(key.encode() for key in keys)
    assert (await caller.updates.poll(after, wait=0)).completions == ()


async def test_a_failure_is_a_fact_and_comes_with_the_next_lease(meet: Meet) -> None:
    one, other = await meet(), await meet()
    failed = Failed(AgentError(ErrorKind.SERVER, "down: ä", retryable=True), 0.5)
    lease = (await leased(one, "w", "a"))["a"]
    ended = ends(lease, Completion("a", failed.error, 0.5, "w"))
    assert await one.facts.write("w", 1, [*told(lease, STARTED, ASKED, failed), ended]) == frozenset()
    assert await other.facts.read("a") == (STARTED, ASKED, failed)
    assert (await other.work.submit([lease.job], retry_failed=True)) == {}
    [again] = await other.work.lease("v", 1, ttl=LONG, wait=0)
    assert again.facts == (STARTED, ASKED, failed)
