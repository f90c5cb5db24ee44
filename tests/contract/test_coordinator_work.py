"""What every coordinator keeps to: work on lease."""

import asyncio

import pytest
from tests.contract.coordinator_contract import (
    ANSWERED,
    LONG,
    SHORT,
    STARTED,
    STORY,
    Meet,
    by_key,
    coordinator,
    ends,
    jobs,
    leased,
    meet,
    taken_over,
    told,
)
from tests.support.redis_server import redis_server

from batch_agent.core.agent_config import Job
from batch_agent.core.coordinator import Completion, Coordinator
from batch_agent.core.errors import ErrorKind
from batch_agent.core.results import AgentError

__all__ = ["coordinator", "meet", "redis_server"]

FAILED = AgentError(ErrorKind.SERVER, "no answer\0", retryable=True)


# Posting


async def test_a_job_is_leased_as_it_was_posted(meet: Meet) -> None:
    caller, worker = await meet(), await meet()
    odd = Job(3, "a", {"text": "\0 ä \U0001f600", "n": [1, 2.5, None]}, "Do\0 it ä", shared=2, parts=("ä", "\0"))
    large = Job(4, "b", "x" * 2_000_000, "y" * 1_000_000)
    assert await caller.work.submit([odd, large], retry_failed=False) == {}
    leases = by_key(await worker.work.lease("w", 2, ttl=LONG, wait=5))
    assert [leases["a"].job, leases["b"].job] == [odd, large]
    assert (leases["a"].facts, leases["a"].attempts) == ((), 1)


async def test_posting_a_known_agent_again_changes_nothing(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await one.work.submit(jobs("a", "b", "a"), retry_failed=False)
    held = await one.work.lease("w", 1, ttl=LONG, wait=0)
    assert await other.work.submit(jobs("a", "b"), retry_failed=True) == {}
    rest = await other.work.lease("v", 9, ttl=LONG, wait=0)
    assert sorted(lease.job.key for lease in held + rest) == ["a", "b"]
    assert await one.work.pending_count() == 2


async def test_posting_returns_the_completions_of_finished_agents(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b", "c")
    good, bad = Completion("a", None, 1.5, "w"), Completion("b", FAILED, 0.25, "w")
    await one.facts.write("w", 1, [ends(leases["a"], good), ends(leases["b"], bad)])
    assert await other.work.submit(jobs("a", "b", "c", "d"), retry_failed=False) == {"a": good, "b": bad}
    assert await other.work.pending_count() == 2


async def test_failed_agents_are_run_again_only_if_requested(coordinator: Coordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    good, bad = Completion("a"), Completion("b", FAILED)
    writes = [*told(leases["b"], STARTED), ends(leases["a"], good), ends(leases["b"], bad)]
    await coordinator.facts.write("w", 1, writes)
    assert await coordinator.work.submit(jobs("a", "b"), retry_failed=True) == {"a": good}
    again = by_key(await coordinator.work.lease("v", 9, ttl=LONG, wait=0))
    assert list(again) == ["b"]
    assert (again["b"].facts, again["b"].attempts) == ((STARTED,), 1)
    assert again["b"].token > leases["b"].token
    await coordinator.facts.write("v", 1, [ends(again["b"])])
    assert await coordinator.work.submit(jobs("a", "b"), retry_failed=True) == {"a": good, "b": Completion("b")}


async def test_two_thousand_jobs_posted_at_once_are_each_leased_once(meet: Meet) -> None:
    caller, other = await meet(), await meet()
    keys = [f"agent-{number}" for number in range(2_000)]
    await caller.work.submit(jobs(*keys), retry_failed=False)
    assert await caller.work.pending_count() == 2_000

    async def take(coordinator: Coordinator, worker: str) -> list[str]:
        found: list[str] = []
        while leases := await coordinator.work.lease(worker, 37, ttl=LONG, wait=0):
            assert len(leases) <= 37
            found += [lease.job.key for lease in leases]
        return found

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(take(coordinator, f"w{number}"))
            for number, coordinator in enumerate((caller, other, other))
        ]
    assert sorted(key for task in tasks for key in task.result()) == sorted(keys)
    assert await other.work.pending_count() == 2_000


# Leases


async def test_no_more_agents_are_leased_than_requested(coordinator: Coordinator) -> None:
    await coordinator.work.submit(jobs("a", "b", "c"), retry_failed=False)
    assert len(await coordinator.work.lease("w", 2, ttl=LONG, wait=0)) == 2
    assert len(await coordinator.work.lease("w", 2, ttl=LONG, wait=0)) == 1
    assert await coordinator.work.lease("w", 2, ttl=LONG, wait=0.05) == []


async def test_a_lease_leaves_the_other_parts_of_the_agents_to_other_workers(coordinator: Coordinator) -> None:
    await coordinator.work.submit(jobs(*"abcdefghi"), retry_failed=False)
    assert len(await coordinator.work.lease("w", 9, ttl=LONG, wait=0, parts=4)) == 3
    assert len(await coordinator.work.lease("v", 2, ttl=LONG, wait=0, parts=4)) == 2
    assert len(await coordinator.work.lease("v", 9, ttl=LONG, wait=0, parts=100)) == 1


async def test_every_fencing_token_is_larger_than_earlier_ones(coordinator: Coordinator) -> None:
    tokens = [lease.token for lease in (await leased(coordinator, "w", "a", "b")).values()]
    tokens += [lease.token for lease in (await leased(coordinator, "v", "c", "d")).values()]
    await coordinator.work.release("w", {"a": tokens[0]})
    tokens += [lease.token for lease in await coordinator.work.lease("v", 9, ttl=LONG, wait=0)]
    assert len(tokens) == 5
    assert tokens == sorted(set(tokens))


async def test_a_waiting_worker_gets_newly_posted_jobs(meet: Meet) -> None:
    caller, worker = await meet(), await meet()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(worker.work.lease("w", 3, ttl=LONG, wait=60))
        await asyncio.sleep(0.05)
        await caller.work.submit(jobs("a"), retry_failed=False)
    assert [lease.job.key for lease in waiting.result()] == ["a"]


async def test_an_expired_lease_goes_to_a_waiting_worker(meet: Meet) -> None:
    one, other = await meet(), await meet()
    old = (await leased(one, "w", "a", ttl=SHORT))["a"]
    await one.facts.write("w", 1, told(old, *STORY))
    (new,) = await other.work.lease("v", 3, ttl=SHORT, wait=60)
    assert (new.job, new.facts, new.attempts) == (old.job, STORY, 2)
    assert new.token > old.token
    (last,) = await one.work.lease("u", 3, ttl=SHORT, wait=60)
    assert last.attempts == 3


async def test_each_lease_lasts_as_long_as_its_worker_requested(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await leased(one, "w", "a", ttl=LONG)
    await leased(one, "u", "b", ttl=SHORT)
    for worker in ("v", "x"):
        assert list(by_key(await other.work.lease(worker, 2, ttl=SHORT, wait=60))) == ["b"]


async def test_a_renewed_lease_does_not_go_to_another_worker(meet: Meet) -> None:
    one, other = await meet(), await meet()
    lease = (await leased(one, "w", "a", ttl=SHORT))["a"]
    assert await one.work.renew("w", {"a": lease.token}, ttl=LONG) == frozenset()
    assert await other.work.lease("v", 1, ttl=SHORT, wait=2 * SHORT) == []


@pytest.mark.slow
async def test_an_expired_lease_can_be_renewed_if_no_worker_took_it(coordinator: Coordinator) -> None:
    lease = (await leased(coordinator, "w", "a", ttl=SHORT))["a"]
    await asyncio.sleep(1.2 * SHORT)
    assert await coordinator.work.renew("w", {"a": lease.token}, ttl=LONG) == frozenset()
    assert await coordinator.facts.write("w", 1, told(lease, STARTED)) == frozenset()
    assert await coordinator.work.lease("v", 1, ttl=LONG, wait=2 * SHORT) == []


async def test_renewing_reports_agents_leased_to_another_worker_and_does_not_take_them_back(meet: Meet) -> None:
    one, other = await meet(), await meet()
    old = await leased(one, "w", "a", "b", ttl=SHORT)
    await one.work.renew("w", {"b": old["b"].token}, ttl=LONG)
    new = await taken_over(other, "v", "a")
    tokens = {key: lease.token for key, lease in old.items()}
    assert await one.work.renew("w", tokens, ttl=LONG) == {"a"}
    assert await other.work.renew("v", {"a": new["a"].token}, ttl=LONG) == frozenset()
    assert await one.facts.write("w", 1, told(old["a"], STARTED)) == {"a"}
    assert await other.facts.write("v", 1, told(new["a"], STARTED)) == frozenset()


async def test_renewing_the_lease_of_a_completed_agent_does_not_report_it_lost(coordinator: Coordinator) -> None:
    lease = (await leased(coordinator, "w", "a"))["a"]
    await coordinator.facts.write("w", 1, [ends(lease)])
    assert await coordinator.work.renew("w", {"a": lease.token}, ttl=LONG) == frozenset()


async def test_renewing_reports_an_agent_completed_by_another_worker_as_lost(coordinator: Coordinator) -> None:
    old = (await leased(coordinator, "w", "a", ttl=SHORT))["a"]
    new = (await taken_over(coordinator, "v", "a"))["a"]
    await coordinator.facts.write("v", 1, [ends(new)])
    assert await coordinator.work.renew("w", {"a": old.token}, ttl=LONG) == {"a"}


async def test_a_returned_job_can_be_leased_at_once(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b", "c")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.work.lease("v", 9, ttl=LONG, wait=60))
        await asyncio.sleep(0.05)
        await one.work.release("w", {"a": leases["a"].token, "c": leases["c"].token})
    found = by_key(waiting.result())
    assert sorted(found) == ["a", "c"]
    assert found["a"].attempts == 1  # nobody died of it
    assert await one.work.renew("w", {key: lease.token for key, lease in leases.items()}, ttl=LONG) == {"a", "c"}


async def test_a_worker_cannot_return_the_lease_of_another(coordinator: Coordinator) -> None:
    old = (await leased(coordinator, "w", "a", ttl=SHORT))["a"]
    new = (await taken_over(coordinator, "v", "a"))["a"]
    await coordinator.work.release("w", {"a": old.token})
    assert await coordinator.work.lease("u", 1, ttl=LONG, wait=0) == []
    assert await coordinator.facts.write("v", 1, told(new, ANSWERED)) == frozenset()


async def test_leases_of_a_leaving_worker_are_available_at_once(meet: Meet) -> None:
    one, other = await meet(), await meet()
    await leased(one, "w", "a", "b")
    await leased(one, "u", "c")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.work.lease("v", 9, ttl=LONG, wait=60))
        await asyncio.sleep(0.05)
        await one.work.leave("w")
    assert sorted(by_key(waiting.result())) == ["a", "b"]
    await one.work.leave("w")
    assert await other.work.lease("v", 9, ttl=LONG, wait=0) == []


async def test_a_worker_without_leases_may_leave(coordinator: Coordinator) -> None:
    await coordinator.work.leave("nobody knows")
    await coordinator.work.renew("w", {}, ttl=LONG)
    await coordinator.work.leave("w")
    assert await coordinator.work.pending_count() == 0
