"""Writes on their way to a hub."""

import asyncio

from batch_agent.cluster.shared_store import FLUSH_INTERVAL, LAZY_FLUSH_INTERVAL, MAX_WAITING, WriteBuffer
from batch_agent.core.coordinator import Append, Write
from batch_agent.core.facts import Claimed, Replied, Started
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import Reply, Usage

REPLIED = Replied(Reply("yes", "stop", Usage()))
CLAIMED = Claimed(ToolCall("1", "order", "{}"))


def sent(outgoing: WriteBuffer, now: float, most: int = 100) -> list[list[Write]]:
    return [[write for parcel in load for write in parcel.writes] for load in outgoing.take(now, most)]


def waiter() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def test_facts_without_a_waiter_are_sent_in_a_batch_after_a_delay() -> None:
    outgoing = WriteBuffer()
    first, second = Append("a", 1, REPLIED), Append("b", 2, REPLIED)
    outgoing.add(first, 0.01)
    outgoing.add(second, 0.15)
    assert outgoing.next_due == 2 * LAZY_FLUSH_INTERVAL
    assert sent(outgoing, LAZY_FLUSH_INTERVAL) == []
    assert sent(outgoing, 2 * LAZY_FLUSH_INTERVAL) == [[first, second]]
    assert outgoing.next_due is None


async def test_awaited_facts_are_sent_soon_with_earlier_facts_of_their_agent() -> None:
    outgoing = WriteBuffer()
    first, other, second = Append("a", 1, REPLIED), Append("b", 2, REPLIED), Append("a.part1", 1, REPLIED)
    for write in (first, other, second):
        outgoing.add(write, 0.0)
    outgoing.request_flush("a", waiter(), 0.0)
    assert outgoing.next_due == FLUSH_INTERVAL
    assert sent(outgoing, FLUSH_INTERVAL) == [[first, second]]
    assert outgoing.next_due == 2 * LAZY_FLUSH_INTERVAL


async def test_the_start_fact_is_sent_with_the_next_fact_of_its_agent() -> None:
    outgoing = WriteBuffer()
    begun, replied = Append("a", 1, Started(0, "x", "x")), Append("a", 1, REPLIED)
    outgoing.add(begun, 0.0, is_due=False)
    assert outgoing.next_due is None
    outgoing.add(replied, 1.0)
    assert sent(outgoing, 10.0) == [[begun, replied]]


async def test_a_write_claim_is_sent_with_the_next_message() -> None:
    outgoing = WriteBuffer()
    outgoing.add(Append("a", 1, CLAIMED), 0.01)
    outgoing.request_flush("a", waiter(), 0.01, immediately=True)
    assert sent(outgoing, 0.01) == [[Append("a", 1, CLAIMED)]]


async def test_many_facts_are_sent_in_several_messages() -> None:
    outgoing = WriteBuffer()
    for number in range(10):
        outgoing.add(Append(str(number), number, REPLIED), 0.0)
    assert [len(load) for load in sent(outgoing, 10.0, most=4)] == [4, 4, 2]


async def test_when_many_callers_wait_their_writes_are_sent_at_once() -> None:
    outgoing = WriteBuffer()
    for number in range(MAX_WAITING):
        outgoing.add(Append(str(number), number, REPLIED), 1.01)
        assert outgoing.next_due is not None
        assert outgoing.next_due > 1.01
        outgoing.request_flush(str(number), waiter(), 1.01)
    outgoing.add(Append("nobody waits", 99, REPLIED), 1.01)
    assert outgoing.next_due == 1.01
    [load] = sent(outgoing, 1.01)
    assert [write.key for write in load] == [str(number) for number in range(MAX_WAITING)]

    outgoing.request_flush("one", waiter(), 1.03)
    assert sent(outgoing, 1.03) == []
    assert outgoing.next_due is not None
    assert outgoing.next_due > 1.03


async def test_workers_send_at_moments_of_their_own() -> None:
    phase = FLUSH_INTERVAL / 4
    outgoing = WriteBuffer(phase)
    outgoing.add(Append("a", 1, REPLIED), 10.0)
    outgoing.request_flush("a", waiter(), 10.0)
    assert outgoing.next_due is not None
    assert 10.0 < outgoing.next_due <= 10.0 + FLUSH_INTERVAL
    assert abs(outgoing.next_due - 10.0 - phase) < 1e-9
