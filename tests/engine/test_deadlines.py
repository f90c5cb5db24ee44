"""One timer for many: each stay still ends at its own time, and nobody else's cancellation is taken for a timeout."""

import asyncio
from typing import Any

import pytest

from batch_agent import BackendError
from batch_agent.aio import Deadlines, RunDeadline


def now() -> float:
    return asyncio.get_running_loop().time()


def this_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def stay(deadlines: Deadlines, seconds: float) -> tuple[str, float]:
    try:
        with deadlines.watch(this_task()):
            await asyncio.sleep(seconds)
    except TimeoutError:
        return "late", now()
    return "in time", now()


async def test_each_deadline_scope_ends_at_its_own_deadline() -> None:
    deadlines = Deadlines(10)
    start = now()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for wait in (100, 3, 100, 9.5, 100):
            tasks.append(group.create_task(stay(deadlines, wait)))
            await asyncio.sleep(1)
    assert [(how, end - start) for how, end in (task.result() for task in tasks)] == [
        ("late", 10),
        ("in time", 4),
        ("late", 12),
        ("in time", 12.5),
        ("late", 14),
    ]


async def test_a_scope_without_a_deadline_has_no_timeout() -> None:
    assert await stay(Deadlines(None), 1e6) == ("in time", 1e6)


async def test_a_cancellation_from_outside_is_not_turned_into_a_timeout() -> None:
    deadlines = Deadlines(10)
    task = asyncio.create_task(stay(deadlines, 100))
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_very_moment_of_the_deadline_is_not_swallowed() -> None:
    deadlines = Deadlines(10)
    task = asyncio.create_task(stay(deadlines, 100))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_in_nested_deadlines_only_the_expired_one_ends() -> None:
    outer, inner = Deadlines(10), Deadlines(3)
    with outer.watch(this_task()):
        assert await stay(inner, 5) == ("late", 3)
        assert await stay(inner, 2) == ("in time", 5)
        await asyncio.sleep(1)


async def test_deadlines_leave_no_timer_behind() -> None:
    deadlines = Deadlines(10)
    await stay(deadlines, 1)
    assert deadlines._open == {}
    assert deadlines._timer is None


async def test_a_clock_that_is_held_leaves_open_scopes_the_time_that_they_had() -> None:
    deadlines, start = Deadlines(10), now()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(stay(deadlines, 1_000))
        await asyncio.sleep(4)
        second = group.create_task(stay(deadlines, 1_000))
        await asyncio.sleep(1)
        deadlines.hold()
        await asyncio.sleep(500)
        deadlines.go_on()
    assert (first.result(), second.result()) == (("late", start + 510), ("late", start + 514))


@pytest.mark.parametrize("limit", [None, 100.0])
async def test_an_end_that_is_set_later_ends_open_scopes_too_even_if_the_clock_is_held(limit: float | None) -> None:
    deadlines, start = Deadlines(limit), now()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stay(deadlines, 50))
        await asyncio.sleep(1)
        deadlines.hold()
        deadlines.set_until(start + 5)
        deadlines.set_until(start + 7)
    assert task.result() == ("late", start + 7)


async def test_an_end_that_is_moved_away_leaves_the_limit() -> None:
    deadlines, start = Deadlines(30, now() + 5), now()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stay(deadlines, 100))
        await asyncio.sleep(1)
        deadlines.set_until(None)
    assert task.result() == ("late", start + 30)


async def test_a_deadline_that_is_moved_moves_what_it_limits() -> None:
    deadline, start = RunDeadline(5), now()

    async def limited() -> float:
        with pytest.raises(BackendError, match="deadline of 9 s"):
            async with deadline.limit():
                await asyncio.sleep(100)
        return now()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(limited())
        await asyncio.sleep(1)
        deadline.set(9)
    assert task.result() == start + 9
