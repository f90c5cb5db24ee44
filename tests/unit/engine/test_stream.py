"""The channel between a run and its caller."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.core.results import AgentResult
from batch_agent.engine.stream import Outbox, ResultStream


def result(index: int) -> AgentResult:
    return AgentResult(index, str(index))


async def test_what_is_put_is_got_in_order() -> None:
    outbox = Outbox(10)
    for index in range(3):
        await outbox.put(result(index))
    outbox.close()
    got = [await outbox.get() for _ in range(4)]
    assert [item.index if item else None for item in got] == [0, 1, 2, None]


async def test_a_reader_waits_for_the_first_result_and_for_the_end() -> None:
    outbox = Outbox(10)
    reading = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    await outbox.put(result(1))
    assert await reading == result(1)
    reading = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.close()
    assert await reading is None


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    outbox = Outbox(10)
    reading = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    reading.cancel()
    await outbox.put(result(1))
    assert await outbox.get() == result(1)


async def test_a_writer_beyond_the_capacity_waits_for_a_read() -> None:
    outbox = Outbox(1)
    await outbox.put(result(0))
    writing = asyncio.create_task(outbox.put(result(1)))
    await asyncio.sleep(0)
    assert not writing.done()
    await outbox.get()
    await writing


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(0, 20), st.sets(st.integers(0, 19)))
def test_every_writer_is_let_go_however_many_there_are_and_whoever_is_cancelled(
    capacity: int, writers: int, cancelled: set[int]
) -> None:
    async def main() -> None:
        outbox = Outbox(capacity)
        writing = [asyncio.create_task(outbox.put(result(index))) for index in range(writers)]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in writing) == max(0, writers - capacity)
        for index in cancelled:
            if index < writers:
                writing[index].cancel()
        got = [await outbox.get() for _ in range(writers)]
        assert [item.index for item in got if item] == list(range(writers))
        async with asyncio.timeout(5):
            await asyncio.gather(*writing, return_exceptions=True)

    asyncio.run(main())


async def test_a_stream_that_is_never_read_never_starts() -> None:
    async def drive(outbox: Outbox) -> None:
        raise AssertionError

    ResultStream(drive)


async def test_a_stream_whose_run_was_cancelled_by_a_stranger_does_not_look_complete() -> None:
    async def drive(outbox: Outbox) -> None:
        await outbox.put(result(0))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    stream = ResultStream(drive)
    assert await anext(stream) == result(0)
    with pytest.raises(asyncio.CancelledError):
        await anext(stream)
