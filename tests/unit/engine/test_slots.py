"""Slots under cancellation, refusal and change of their limit."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.support.event_list import EventList
from tests.support.virtual_time import virtual

from batch_agent.core.events import LimitChanged, Resumed
from batch_agent.engine.slots import HeldSlot, Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.health import Health
from batch_agent.schedule.slot_queue import Priority


def refuse(granting: Slots, retry_after: Sequence[float | None], *, sent: Health | None = None, gap: int = 0) -> None:
    """Requests that are sent, and refused one after the other; others between them are taken."""
    health = sent or Health(max_outage=15.0)
    for each in retry_after:
        for _ in range(gap):
            health.sent(0.0)
        number = health.sent(0.0)
        granting.on_rate_limited(each, number, health)
        health.abandoned(number)


FRESH, RETURNING = Priority(is_fresh=True), Priority(is_fresh=False)


def slots(limit: int, *, fixed: bool = True) -> Slots:
    return Slots(InflightLimit(limit, fixed=fixed))


async def begin(granting: Slots, rank: Priority = FRESH) -> "asyncio.Task[HeldSlot]":
    task = asyncio.create_task(granting.acquire(rank))
    await asyncio.sleep(0)
    return task


async def test_a_free_slot_is_had_at_once_and_a_taken_one_is_waited_for() -> None:
    granting = slots(1)
    held = await granting.acquire(FRESH)
    waiting = await begin(granting)
    assert not waiting.done()
    held.release()
    await waiting


async def test_returning_agents_get_slots_before_new_agents() -> None:
    granting = slots(1)
    held = await granting.acquire(FRESH)
    fresh, returning = await begin(granting, FRESH), await begin(granting, RETURNING)
    held.release()
    await returning
    assert not fresh.done()
    returning.result().release()
    await fresh


async def test_releasing_twice_gives_one_slot_back() -> None:
    granting = slots(1)
    held = await granting.acquire(FRESH)
    held.release()
    held.release()
    await granting.acquire(FRESH)
    waiting = await begin(granting)
    assert not waiting.done()
    waiting.cancel()


async def test_an_agent_that_stops_waiting_gets_no_slot() -> None:
    granting = slots(1)
    held = await granting.acquire(FRESH)
    first, second = await begin(granting), await begin(granting)
    first.cancel()
    await asyncio.sleep(0)
    held.release()
    await second


async def test_a_slot_granted_to_a_cancelled_agent_is_not_lost() -> None:
    granting = slots(1)
    held = await granting.acquire(FRESH)
    first, second = await begin(granting), await begin(granting)
    held.release()
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_slot_granted_to_an_agent_whose_cancellation_is_on_its_way_is_not_lost() -> None:
    granting = slots(1)
    held = await granting.acquire(FRESH)
    first, second = await begin(granting), await begin(granting)
    first.cancel()
    held.release()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_many_agents_may_be_cancelled_while_slots_are_granted() -> None:
    granting = slots(3)
    held = [await granting.acquire(FRESH) for _ in range(3)]
    waiting = [await begin(granting) for _ in range(20)]
    for number, slot in enumerate(held):
        waiting[number].cancel()
        slot.release()
        waiting[number + 10].cancel()
    async with asyncio.timeout(5):
        for task in waiting:
            with suppress(asyncio.CancelledError):
                (await task).release()
    assert all([await granting.acquire(FRESH) for _ in range(3)])


async def test_a_binding_limit_grows_and_wakes_waiting_agents() -> None:
    granting = slots(1, fixed=False)
    await granting.acquire(FRESH)
    waiting = await begin(granting)
    granting.on_success(1.0)
    await waiting
    assert granting.limit == 2


@virtual
async def test_refusals_of_most_requests_halve_the_limit_and_pause_all_agents() -> None:
    seen = EventList()
    granting = Slots(InflightLimit(4, fixed=False), seen)
    held = [await granting.acquire(FRESH) for _ in range(4)]
    refuse(granting, [0.02] * 10)
    for slot in held:
        slot.release()
    waiting = [await begin(granting) for _ in range(4)]
    assert not any(task.done() for task in waiting)
    await asyncio.sleep(0.03)
    assert [task.done() for task in waiting] == [True, True, False, False]
    assert seen.events == [LimitChanged(2, "rate limited"), Resumed()]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


@virtual
async def test_a_second_refusal_makes_the_pause_longer_never_shorter() -> None:
    granting = slots(4)
    health = Health(max_outage=15.0)
    refuse(granting, [0.0] * 9 + [0.04], sent=health)
    refuse(granting, [0.0] * 4, sent=health)
    waiting = await begin(granting)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    async with asyncio.timeout(5):
        await waiting


@pytest.mark.parametrize("retry_after", [None, 0.0, 1.0, 60.0])
async def test_refusals_of_a_fifth_of_the_requests_pause_no_other_agent(retry_after: float | None) -> None:
    granting = slots(8)
    refuse(granting, [retry_after] * 1000, gap=4)
    await granting.acquire(FRESH)
    assert granting.limit == 8


async def test_a_retry_after_of_most_requests_pauses_all_agents() -> None:
    granting = slots(8)
    refuse(granting, [30.0] * 10)
    waiting = await begin(granting)
    assert not waiting.done()
    assert granting.limit == 4
    waiting.cancel()


async def test_a_server_that_answers_nothing_is_waited_for_and_the_limit_is_cut_once() -> None:
    granting, health = slots(64), Health(max_outage=15.0)
    refuse(granting, [None] * 100, sent=health)
    assert granting.limit == 32
    granting.on_success(0.0)  # sent after the cut
    refuse(granting, [None] * 100, sent=health)
    assert granting.limit < 32


@pytest.mark.parametrize("retry_after", [None, 30.0])
async def test_a_cut_below_what_is_in_service_needs_no_pause(retry_after: float | None) -> None:
    granting, health = slots(8), Health(max_outage=15.0)
    held = [await granting.acquire(FRESH) for _ in range(6)]
    for _ in held:
        health.sent(0.0)
    refuse(granting, [retry_after] * 10, sent=health)
    assert granting.limit == 6
    held.pop().release()
    await granting.acquire(FRESH)


@pytest.mark.parametrize("retry_after", [None, 30.0])
async def test_the_limit_follows_what_is_in_service_while_it_becomes_less(retry_after: float | None) -> None:
    """A rate limit whose burst is used up: further cuts need no answer to a request that was sent after the last."""
    granting, health = slots(16), Health(max_outage=15.0)
    sent = [health.sent(0.0) for _ in range(14)]
    refuse(granting, [retry_after] * 10, sent=health)
    assert granting.limit == 14
    for number in sent[:3]:
        health.succeeded(number)
    refuse(granting, [retry_after] * 4, sent=health)
    assert granting.limit == 11
    assert not granting.is_paused


async def test_a_retry_after_counts_for_all_where_few_requests_are_in_service() -> None:
    granting, health = slots(4), Health(max_outage=15.0)
    for _ in range(3):
        health.sent(0.0)
    refuse(granting, [30.0] * 10, sent=health)
    assert granting.limit == 3
    assert granting.is_paused


async def test_a_bound_holds_whatever_the_limit_and_goes_when_it_is_taken_back() -> None:
    granting = slots(4)
    granting.set_memory_cap(2)
    held = [await granting.acquire(FRESH) for _ in range(2)]
    waiting = [await begin(granting) for _ in range(3)]
    assert granting.is_full
    granting.set_memory_cap(3)
    await waiting[0]
    assert [task.done() for task in waiting] == [True, False, False]
    granting.set_memory_cap(None)
    await waiting[1]
    assert not waiting[2].done()
    assert granting.limit == 4
    held[0].release()
    await waiting[2]


async def test_a_lower_bound_takes_effect_as_slots_come_back() -> None:
    granting = slots(4)
    held = [await granting.acquire(FRESH) for _ in range(3)]
    granting.set_memory_cap(1)
    waiting = await begin(granting)
    held[0].release()
    held[1].release()
    await asyncio.sleep(0)
    assert not waiting.done()
    held[2].release()
    await waiting


async def test_a_bound_above_the_limit_changes_nothing() -> None:
    granting = slots(1)
    granting.set_memory_cap(5)
    await granting.acquire(FRESH)
    waiting = await begin(granting)
    assert not waiting.done()
    waiting.cancel()


async def test_a_bound_does_not_end_a_pause_and_holds_after_it() -> None:
    granting = slots(4)
    granting.pause(0.01, "overloaded")
    granting.set_memory_cap(1)
    waiting = [await begin(granting) for _ in range(2)]
    assert not any(task.done() for task in waiting)
    async with asyncio.timeout(5):
        await waiting[0]
    assert not waiting[1].done()
    waiting[1].cancel()


async def test_a_limit_that_grows_does_not_lift_the_bound() -> None:
    granting = slots(1, fixed=False)
    granting.set_memory_cap(1)
    await granting.acquire(FRESH)
    waiting = await begin(granting)
    granting.on_success(1.0)
    await asyncio.sleep(0)
    assert granting.limit == 2
    assert not waiting.done()
    waiting.cancel()


async def test_held_slots_are_granted_to_nobody_and_to_all_waiters_when_they_are_free_again() -> None:
    granting = slots(2)
    first = await granting.acquire(FRESH)
    granting.hold(is_held=True)
    waiting = [await begin(granting), await begin(granting)]
    first.release()
    granting.on_success(1.0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    granting.hold(is_held=False)
    assert [isinstance(await task, HeldSlot) for task in waiting] == [True, True]
