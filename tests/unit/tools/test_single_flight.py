"""An execution that many wait for."""

import asyncio

import pytest

from batch_agent.tools.cache import ToolOutcome
from batch_agent.tools.single_flight import SingleFlight

OUTCOME = ToolOutcome("found", False, 1, 0.0)


async def test_waiting_callers_are_woken_gradually_in_order() -> None:
    flights, may_end, rounds = SingleFlight(), asyncio.Event(), 0
    woken: list[tuple[int, int]] = []

    async def execute() -> ToolOutcome:
        await may_end.wait()
        return OUTCOME

    async def wait(number: int) -> None:
        assert await flight.wait("shared") == (OUTCOME, "shared")
        woken.append((number, rounds))

    flight = flights.start("key", 1, None, lambda _: execute())
    waiting = [asyncio.ensure_future(wait(number)) for number in range(100)]
    await asyncio.sleep(0)
    may_end.set()
    while not all(task.done() for task in waiting):
        rounds += 1
        assert rounds < 1_000
        await asyncio.sleep(0)
    assert [number for number, _ in woken] == list(range(100))
    assert len({turn for _, turn in woken}) > 5  # the loop had other things to do in between


async def test_a_caller_that_leaves_after_the_end_affects_no_other_caller() -> None:
    flights, may_end = SingleFlight(), asyncio.Event()

    async def execute() -> ToolOutcome:
        await may_end.wait()
        return OUTCOME

    flight = flights.start("key", 1, None, lambda _: execute())
    waiting = [asyncio.ensure_future(flight.wait("shared")) for _ in range(30)]
    await asyncio.sleep(0)
    may_end.set()
    async with asyncio.timeout(10):
        await waiting[0]
        assert not waiting[-1].done()
        waiting[-1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[-1]
        assert await asyncio.gather(*waiting[:-1]) == [(OUTCOME, "shared")] * 29
    await flights.aclose()


async def test_only_the_last_caller_to_leave_cancels_the_execution() -> None:
    flights, ended = SingleFlight(), asyncio.Event()

    async def execute() -> ToolOutcome:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("unreachable")

    flight = flights.start("key", 1, None, lambda _: execute())
    first, last = (asyncio.ensure_future(flight.wait("shared")) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert flights.find("key") is flight
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert flights.find("key") is None
    async with asyncio.timeout(10):
        await ended.wait()
    await flights.aclose()


async def test_an_ended_execution_gives_its_result_to_later_callers() -> None:
    flights = SingleFlight()

    async def execute() -> ToolOutcome:
        return OUTCOME

    flight = flights.start("key", 1, None, lambda _: execute())
    assert await flight.wait("executed") == (OUTCOME, "executed")
    assert await flight.wait("shared") == (OUTCOME, "shared")
    assert flights.find("key") is None
