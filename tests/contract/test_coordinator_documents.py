"""What every coordinator keeps to: documents, the record of inputs, and the end of a run."""

import asyncio

import orjson
import pytest
from tests.contract.coordinator_contract import (
    LONG,
    Meet,
    by_key,
    coordinator,
    ends,
    jobs,
    leased,
    meet,
)
from tests.support.redis_server import redis_server

from batch_agent.core.coordinator import Coordinator, RejectedInput
from batch_agent.core.errors import ErrorKind
from batch_agent.core.results import AgentError

__all__ = ["coordinator", "meet", "redis_server"]

FAILED = AgentError(ErrorKind.SERVER, "no answer\0", retryable=True)


async def test_closing_a_coordinator_twice_or_without_opening_it_is_harmless(meet: Meet) -> None:
    coordinator = await meet()
    await coordinator.aclose()
    await coordinator.aclose()


async def test_inputs_and_rejections_for_readers_are_accepted_again_and_again(coordinator: Coordinator) -> None:
    rejected = [RejectedInput(1, b"", FAILED), RejectedInput(0, b'{"it":"a"}', FAILED)]
    for _ in range(2):
        await coordinator.inputs.save([b'{"it":"a"}', b""], (1.0, 0.5, 2.0))
        await coordinator.inputs.reject(rejected)
        await coordinator.inputs.reject([])
        await coordinator.inputs.save([], None)
    assert await coordinator.work.pending_count() == 0


async def test_an_unwritten_document_is_absent(coordinator: Coordinator) -> None:
    assert (await coordinator.documents.read("limits")).data is None


@pytest.mark.parametrize("data", [b"", b"\0\xff\n", b"x" * 2_000_000], ids=["empty", "any", "large"])
async def test_a_document_is_read_as_it_was_written(meet: Meet, data: bytes) -> None:
    one, other = await meet(), await meet()
    assert await one.documents.compare_and_set("für \U0001f600", None, data)
    assert (await other.documents.read("für \U0001f600")).data == data


async def test_a_document_changed_by_another_writer_is_not_overwritten(coordinator: Coordinator) -> None:
    assert await coordinator.documents.compare_and_set("limits", None, b"1")
    assert not await coordinator.documents.compare_and_set("limits", None, b"2")
    assert not await coordinator.documents.compare_and_set("limits", b"0", b"2")
    assert not await coordinator.documents.compare_and_set("limits", b"0", None)
    assert (await coordinator.documents.read("limits")).data == b"1"
    assert await coordinator.documents.compare_and_set("limits", b"1", None)
    assert not await coordinator.documents.compare_and_set("limits", b"1", b"2")
    assert (await coordinator.documents.read("limits")).data is None


async def test_twenty_concurrent_increments_of_a_document_add_twenty(meet: Meet) -> None:
    async def add_one(coordinator: Coordinator) -> None:
        while True:
            old = (await coordinator.documents.read("sum")).data
            if await coordinator.documents.compare_and_set("sum", old, orjson.dumps(orjson.loads(old or b"0") + 1)):
                return

    hubs = [await meet(), await meet()]
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(add_one(hubs[number % 2]))
    assert (await hubs[0].documents.read("sum")).data == b"20"


async def test_the_clock_of_the_coordinator_moves_forward(meet: Meet) -> None:
    one, other = await meet(), await meet()
    first = (await one.documents.read("x")).now
    await asyncio.sleep(0.02)
    assert (await other.documents.read("x")).now > first


async def test_a_removed_run_leaves_no_jobs_facts_or_documents(meet: Meet) -> None:
    one, other = await meet(), await meet()
    leases = await leased(one, "w", "a", "b")
    await one.documents.compare_and_set("limits", None, b"1")
    await one.calls.claim("call", "w")
    await one.calls.complete("call", "w", b"outcome", ttl=LONG)
    await one.facts.write("w", 1, [ends(leases["a"])])
    await one.delete_run()
    assert await other.work.pending_count() == 0
    assert (await other.documents.read("limits")).data is None
    assert await other.calls.claim("call", "v") is True
    assert await other.work.submit(jobs("a", "b"), retry_failed=False) == {}
    assert sorted(by_key(await other.work.lease("v", 9, ttl=LONG, wait=0))) == ["a", "b"]
