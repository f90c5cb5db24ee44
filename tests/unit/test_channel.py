"""A bounded channel between tasks."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.channel import Channel


async def test_values_are_read_from_a_channel_in_order() -> None:
    channel = Channel[int](10)
    for index in range(3):
        await channel.send(index)
    channel.close()
    assert [value async for value in channel] == [0, 1, 2]


async def test_a_reader_waits_for_the_first_value_and_for_the_end() -> None:
    channel = Channel[int](10)
    reading = asyncio.create_task(anext(channel))
    await asyncio.sleep(0)
    await channel.send(1)
    assert await reading == 1
    reading = asyncio.create_task(anext(channel))
    await asyncio.sleep(0)
    channel.close()
    with pytest.raises(StopAsyncIteration):
        await reading


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    channel = Channel[int](10)
    reading = asyncio.create_task(anext(channel))
    await asyncio.sleep(0)
    reading.cancel()
    await channel.send(1)
    assert await anext(channel) == 1


async def test_a_writer_beyond_the_capacity_waits_for_a_read() -> None:
    channel = Channel[int](1)
    await channel.send(0)
    writing = asyncio.create_task(channel.send(1))
    await asyncio.sleep(0)
    assert not writing.done()
    await anext(channel)
    await writing


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(0, 20), st.sets(st.integers(0, 19)))
def test_every_writer_is_released_however_many_there_are_and_whichever_is_cancelled(
    capacity: int, writers: int, cancelled: set[int]
) -> None:
    async def main() -> None:
        channel = Channel[int](capacity)
        writing = [asyncio.create_task(channel.send(index)) for index in range(writers)]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in writing) == max(0, writers - capacity)
        for index in cancelled:
            if index < writers:
                writing[index].cancel()
        got = [await anext(channel) for _ in range(writers)]
        assert got == list(range(writers))
        async with asyncio.timeout(5):
            await asyncio.gather(*writing, return_exceptions=True)

    asyncio.run(main())


async def test_values_are_read_in_order_until_the_channel_is_closed() -> None:
    channel = Channel[Any](10)
    channel.put(1)
    channel.put(None)
    channel.close()
    assert [value async for value in channel] == [1, None]
    with pytest.raises(StopAsyncIteration):
        await anext(channel)


async def test_a_reader_waits_for_the_next_value() -> None:
    channel = Channel[Any](10)
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(anext(channel))
        await asyncio.sleep(0.001)
        assert not reader.done()
        channel.put("here")
    assert reader.result() == "here"


async def test_a_channel_has_room_until_it_is_full_and_after_a_read() -> None:
    channel = Channel[Any](2)
    await channel.wait_for_room()
    channel.put(1)
    await channel.wait_for_room()
    channel.put(2)
    channel.put(3)  # it never refuses
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(channel.wait_for_room())
        await anext(channel)
        await asyncio.sleep(0.001)
        assert not waiting.done()
        await anext(channel)
    assert waiting.done()
