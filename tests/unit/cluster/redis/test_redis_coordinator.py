"""The hub in Redis: what it costs, what it leaves behind, and what it makes of a server that has lost something."""

import asyncio
import importlib
import logging
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.contract.coordinator_contract import (
    ANSWERED,
    ASKED,
    LONG,
    RETURNED,
    SHORT,
    STARTED,
    ends,
    jobs,
    leased,
    told,
)
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own, redis_server

from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator, runs_known
from batch_agent.core.coordinator import Append
from batch_agent.core.errors import SpecError, StoreError

__all__ = ["redis_server"]

AGENTS = 32
MOST_COMMANDS = 10


@pytest.fixture
async def coordinator(redis_server: RedisServer) -> AsyncIterator[RedisCoordinator]:
    coordinator = RedisCoordinator(redis_server.url, uuid.uuid4().hex, retry_seconds=20)
    await coordinator.open()
    yield coordinator
    await coordinator.aclose()


@pytest.fixture
async def client(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url) as client:
        yield client


@pytest.mark.parametrize(("agents", "at_once"), [(10, 10), (AGENTS, 8)])
async def test_a_two_turn_agent_with_a_tool_call_takes_few_commands(agents: int, at_once: int) -> None:
    """Some agents at once, each of whose facts travels on its own; each makes a call that no other makes, and the
    caller reads what it did. Commands inside scripts count."""
    with redis_of_its_own() as server:
        caller, worker = RedisCoordinator(server.url, "run"), RedisCoordinator(server.url, "run")
        await caller.open()
        await worker.open()
        async with Redis.from_url(server.url) as client:
            before = await _commands(client)
            after = await caller.updates.position()
            await caller.work.submit(jobs(*map(str, range(agents))), retry_failed=False)
            number = 0
            while leases := await worker.work.lease("w", at_once, ttl=LONG, wait=0):
                keys = [lease.job.key for lease in leases]
                for fact in (ASKED, RETURNED, ANSWERED):
                    number += 1
                    await worker.facts.write("w", number, [write for lease in leases for write in told(lease, fact)])
                    if fact is ASKED:
                        assert all(await asyncio.gather(*(worker.calls.claim(key, "w") for key in keys)))
                        await asyncio.gather(*(worker.calls.complete(key, "w", b"found", ttl=LONG) for key in keys))
                number += 1
                await worker.facts.write("w", number, [ends(lease) for lease in leases])
                news = await caller.updates.poll(after, wait=5)
                after = news.after
                assert {each.key for each in news.completions} == set(keys)
                assert await caller.facts.read_many(keys) == [(ASKED, RETURNED, ANSWERED)] * len(keys)
            assert await caller.work.pending_count() == 0
            each = (await _commands(client) - before) / agents
        await caller.aclose()
        await worker.aclose()
    assert each <= MOST_COMMANDS


async def test_a_fact_history_with_a_gap_is_refused(coordinator: RedisCoordinator) -> None:
    """The server was set back: what was written after that point is not there, and nobody may go on from it."""
    leases = await leased(coordinator, "w", "a", "b", "c")
    assert await coordinator.facts.write("w", 1, told(leases["a"], STARTED)) == frozenset()
    assert await coordinator.facts.write("w", 3, told(leases["a"], ASKED)) == {"a"}
    assert await coordinator.facts.write("w", 4, told(leases["b"], STARTED)) == {"b"}
    assert await coordinator.facts.read("a") == (STARTED,)
    fresh = await leased(coordinator, "w", "d")
    assert await coordinator.facts.write("w", 5, told(fresh["d"], STARTED)) == frozenset()
    assert await coordinator.facts.spent() == ASKED.reply.usage


async def test_a_worker_cannot_use_the_token_of_another(coordinator: RedisCoordinator) -> None:
    lease = (await leased(coordinator, "w", "a"))["a"]
    assert await coordinator.facts.write("v", 1, told(lease, STARTED)) == {"a"}
    assert await coordinator.work.renew("v", {"a": lease.token}, ttl=LONG) == {"a"}
    assert await coordinator.facts.write("w", 1, told(lease, STARTED)) == frozenset()


async def test_a_large_batch_that_is_repeated_is_written_once(coordinator: RedisCoordinator) -> None:
    leases = await leased(coordinator, "w", "a", "b")
    batch = [*told(leases["a"], *[STARTED] * 1_100), Append("b", leases["b"].token + 1, STARTED)]
    assert await coordinator.facts.write("w", 1, [batch[-1], *batch]) == {"b"}
    assert await coordinator.facts.write("w", 1, [batch[-1], *batch]) == {"b"}
    assert len(await coordinator.facts.read("a")) == 1_100
    assert await coordinator.facts.write("w", 2, told(leases["b"], STARTED)) == frozenset()


async def test_all_updates_arrive_when_there_are_more_than_one_poll_returns(coordinator: RedisCoordinator) -> None:
    after = await coordinator.updates.position()
    told = [str(number).encode() for number in range(1_005)]
    async with asyncio.TaskGroup() as group:
        for data in told:
            group.create_task(coordinator.updates.publish(data))
    news = await coordinator.updates.poll(after, wait=0)
    assert sorted(news.published) == sorted(told)
    assert (await coordinator.updates.poll(news.after, wait=0)).published == ()


async def test_a_removed_run_leaves_no_redis_keys(redis_server: RedisServer, client: Redis) -> None:
    mark = uuid.uuid4().hex
    coordinator, other = (
        RedisCoordinator(redis_server.url, f"{mark}-[a]*"),
        RedisCoordinator(redis_server.url, f"{mark}-a"),
    )
    for each in (coordinator, other):
        lease = (await leased(each, "w", "k"))["k"]
        await each.facts.write("w", 1, told(lease, STARTED))
        await each.documents.compare_and_set("x", None, b"1")
        await each.updates.publish(b"x")
        await each.calls.reserve_rate("t", interval=LONG, ahead=0)
    await coordinator.delete_run()
    keys = [key async for key in client.scan_iter(f"*{mark}*")]
    assert keys
    assert all(key.startswith(f"batch-agent:{{{mark}-a}}:".encode()) for key in keys)
    assert await other.facts.read("k") == (STARTED,)
    assert [run for run in await runs_known(redis_server.url) if mark in run] == [f"{mark}-a"]
    await coordinator.aclose()
    await other.aclose()


async def test_reading_an_unknown_run_does_not_create_it(redis_server: RedisServer) -> None:
    run = uuid.uuid4().hex
    coordinator = RedisCoordinator(redis_server.url, run)
    await coordinator.open()
    assert (await coordinator.documents.read("plan")).data is None
    assert await coordinator.work.lease("w", 1, ttl=SHORT, wait=SHORT) == []
    assert run not in await runs_known(redis_server.url)
    await coordinator.work.submit(jobs("a"), retry_failed=False)
    assert run in await runs_known(redis_server.url)
    await coordinator.aclose()


async def test_a_waiting_poll_reports_that_the_run_was_removed(
    coordinator: RedisCoordinator, redis_server: RedisServer, client: Redis
) -> None:
    await coordinator.work.submit(jobs("a"), retry_failed=False)
    assert len(await coordinator.work.lease("w", 1, ttl=LONG, wait=0)) == 1
    await client.delete(*[key async for key in client.scan_iter(f"batch-agent:{{{coordinator._keyspace.name}}}:*")])
    for waiting in (
        coordinator.updates.poll(await coordinator.updates.position(), wait=SHORT),
        coordinator.work.lease("w", 1, ttl=LONG, wait=SHORT),
    ):
        with pytest.raises(StoreError, match=f"has lost run '{coordinator._keyspace.name}'.*appendonly yes"):
            await waiting


async def test_cancelled_waiting_calls_leave_no_trace(coordinator: RedisCoordinator) -> None:
    for millis in range(12):
        waiting = [
            asyncio.create_task(coordinator.work.lease("w", 1, ttl=LONG, wait=60)),
            asyncio.create_task(coordinator.updates.poll(await coordinator.updates.position(), wait=60)),
            asyncio.create_task(coordinator.documents.compare_and_set("x", None, b"x" * 1_000_000)),
        ]
        await asyncio.sleep(millis / 1_000)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        document = await coordinator.documents.read("x")
        assert document.data in (None, b"x" * 1_000_000)
    await coordinator.work.submit(jobs("a"), retry_failed=False)
    assert [lease.job.key for lease in await coordinator.work.lease("w", 1, ttl=LONG, wait=5)] == ["a"]


async def test_a_queue_lost_by_the_server_is_reported(coordinator: RedisCoordinator, client: Redis) -> None:
    await coordinator.work.submit(jobs("a"), retry_failed=False)
    await client.delete(f"batch-agent:{{{coordinator._keyspace.name}}}:queue")
    with pytest.raises(StoreError, match="has lost run"):
        await coordinator.work.lease("w", 1, ttl=LONG, wait=SHORT)


async def test_messages_for_submitters_do_not_wake_workers(coordinator: RedisCoordinator) -> None:
    worker, submitter = await coordinator.updates.position(completions=False), await coordinator.updates.position()
    await coordinator.updates.publish(b"for submitters", to_workers=False)
    await coordinator.updates.publish(b"for all")
    assert (await coordinator.updates.poll(worker, wait=5)).published == (b"for all",)
    assert set((await coordinator.updates.poll(submitter, wait=5)).published) == {b"for submitters", b"for all"}


@pytest.mark.parametrize("outcome", [b"small", b"x" * 5_000])
async def test_an_expired_outcome_is_claimed_again_whatever_its_size(
    coordinator: RedisCoordinator, outcome: bytes
) -> None:
    assert await coordinator.calls.claim("call", "w") is True
    await coordinator.calls.complete("call", "w", outcome, ttl=SHORT)
    while (found := await coordinator.calls.claim("call", "v")) == outcome:
        await asyncio.sleep(0.02)
    assert found is True


async def test_a_claim_after_a_release_in_the_same_message_is_kept(coordinator: RedisCoordinator) -> None:
    assert await coordinator.calls.claim("call", "w") is True
    released, claimed = await asyncio.gather(
        coordinator.calls.complete("call", "w", None, ttl=0), coordinator.calls.claim("call", "w")
    )
    assert (released, claimed) == (None, True)
    await coordinator.work.renew("w", {}, ttl=LONG)
    assert await coordinator.calls.claim("call", "v") is False


async def test_concurrent_calls_share_one_connection(coordinator: RedisCoordinator) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(coordinator.calls.claim(f"call-{number}", "w"))
    assert await coordinator.work.pending_count() == 0


async def test_a_redis_that_may_lose_facts_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        redis_of_its_own("--maxmemory-policy", "allkeys-lru") as server,
        caplog.at_level(logging.WARNING, "batch_agent"),
    ):
        for _ in range(2):
            coordinator = RedisCoordinator(server.url, "run")
            await coordinator.open()
            await coordinator.aclose()
    assert len(caplog.messages) == 2
    assert all("facts may be lost" in message for message in caplog.messages)


async def test_a_durable_redis_or_one_that_hides_its_config_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "batch_agent")
    with redis_of_its_own(*AOF) as server:
        await _opened(server.url)
    with redis_of_its_own("--rename-command", "CONFIG", "") as server:
        await _opened(server.url)
    assert caplog.messages == []


@pytest.mark.parametrize("run", ["", "a{b", "a}b"])
async def test_a_run_name_must_be_valid_in_a_redis_key(run: str) -> None:
    with pytest.raises(SpecError, match=r"run_id=.* is invalid"):
        RedisCoordinator("redis://localhost", run)


@pytest.mark.parametrize(
    "url", ["http://me:secret@localhost", "me:secret@localhost:6379", "redis://:secret/x@localhost"]
)
async def test_an_invalid_redis_url_is_rejected(url: str) -> None:
    with pytest.raises(SpecError, match=r"localhost.*' is not a Redis URL") as caught:
        RedisCoordinator(url, "run")
    assert "secret" not in str(caught.value)


def test_a_missing_redis_package_is_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("batch_agent.cluster.redis.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("redis", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, name, None)
    module = importlib.import_module("batch_agent.cluster.redis.redis_coordinator")
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[redis\]'"):
        module.RedisCoordinator("redis://localhost", "run")


async def _opened(url: str) -> None:
    coordinator = RedisCoordinator(url, "run")
    await coordinator.open()
    await coordinator.aclose()


async def _commands(client: Redis) -> int:
    """How many were executed, those inside scripts too."""
    stats: dict[str, Any] = await client.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if name not in ("cmdstat_info", "cmdstat_client|setinfo"))
