"""Slots of a paced backend, in virtual time."""

import asyncio

from tests.support.event_list import EventList
from tests.support.virtual_time import virtual

from batch_agent.core.events import Notice
from batch_agent.core.protocols.backend import ServiceLimit
from batch_agent.core.requests import Usage
from batch_agent.engine.slots import HeldSlot, Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.pace import Pace
from batch_agent.schedule.slot_queue import Priority

NEW = Priority(is_fresh=True)


def now() -> float:
    return asyncio.get_running_loop().time()


def paced(rpm: int, inflight: int = 100, log: EventList | None = None) -> Slots:
    return Slots(InflightLimit(inflight, fixed=True), log, Pace({"requests": rpm}))


async def begin(slots: Slots, priority: Priority = NEW) -> "asyncio.Task[HeldSlot]":
    task = asyncio.create_task(slots.acquire(priority))
    await asyncio.sleep(0)
    return task


@virtual
async def test_requests_wait_for_their_time_without_a_slot() -> None:
    slots, began = paced(60), now()
    tasks = [await begin(slots) for _ in range(4)]
    assert (slots.in_use, slots.waiting) == (1, 3)
    for task in tasks:
        (await task).release()
    assert 2.9 < now() - began < 3.1


@virtual
async def test_the_pace_keeps_the_order_of_priorities() -> None:
    slots = paced(60)
    (await slots.acquire(NEW)).release()
    new, started = await begin(slots), await begin(slots, Priority(is_fresh=False))
    await started
    assert not new.done()
    await new


@virtual
async def test_a_cancelled_waiter_takes_nothing_from_the_pace() -> None:
    slots, began = paced(60), now()
    (await slots.acquire(NEW)).release()
    cancelled, other = await begin(slots), await begin(slots)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await other
    assert 0.9 < now() - began < 1.1


@virtual
async def test_a_slot_granted_to_a_cancelled_agent_gives_its_time_to_the_next() -> None:
    slots, began = paced(60, inflight=1), now()
    held = await slots.acquire(NEW)
    await asyncio.sleep(1.0)
    cancelled, other = await begin(slots), await begin(slots)
    held.release()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await other
    assert cancelled.cancelled()
    assert now() - began == 1.0


@virtual
async def test_a_pause_and_the_pace_both_hold() -> None:
    slots, began = paced(60), now()
    slots.pause(5.0, "rate limited")
    first, second = await begin(slots), await begin(slots)
    await first
    assert 4.9 < now() - began < 5.1
    await second
    assert 5.9 < now() - began < 6.1


@virtual
async def test_the_run_says_once_that_it_is_paced_and_only_if_a_request_had_to_wait() -> None:
    log = EventList()
    slots = paced(60, log=log)
    await slots.acquire(NEW)
    assert log.events == []
    for _ in range(3):
        await slots.acquire(NEW)
    assert log.events == [Notice("Requests are paced at 60 requests/min (as set).")]
    assert slots.pace is not None
    assert slots.pace.delayed == 3


@virtual
async def test_few_requests_are_sent_before_the_first_response_of_a_service_that_reports_limits() -> None:
    slots = Slots(InflightLimit(32, fixed=False), None, Pace(), awaits_limits=True)
    tasks = [await begin(slots) for _ in range(20)]
    assert slots.in_use == 8
    slots.on_service_limits({"requests": ServiceLimit(60, 52)})
    slots.on_success(1.0)
    assert slots.in_use == 9
    for task in tasks:
        await task
    assert now() > 10


@virtual
async def test_a_service_that_reports_nothing_is_not_paced() -> None:
    slots, began = Slots(InflightLimit(32, fixed=False), None, Pace(), awaits_limits=True), now()
    tasks = [await begin(slots) for _ in range(20)]
    slots.on_success(1.0)
    for task in tasks:
        await task
    assert now() == began


@virtual
async def test_tokens_are_reserved_by_estimate_and_corrected_by_usage() -> None:
    slots, began = Slots(InflightLimit(10, fixed=True), None, Pace({"tokens": 6000})), now()
    held = await slots.acquire(NEW, Usage(1000, 0, 0))
    held.settle(Usage(300, 0, 200))
    await slots.acquire(NEW, Usage(100, 0, 0))
    assert 4.9 < now() - began < 5.2
