"""What waits between two stages."""

import asyncio

import pytest

from batch_agent.flows.feed import Feed


async def test_values_come_out_in_order_until_it_is_closed() -> None:
    feed = Feed()
    feed.put(1)
    feed.put(None)
    feed.close()
    assert [value async for value in feed] == [1, None]
    with pytest.raises(StopAsyncIteration):
        await anext(feed)


async def test_who_reads_waits_for_the_next_value() -> None:
    feed = Feed()
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(anext(feed))
        await asyncio.sleep(0.001)
        assert not reader.done()
        feed.put("here")
    assert reader.result() == "here"


async def test_there_is_room_until_it_is_full_and_again_when_one_has_left() -> None:
    feed = Feed(capacity=2)
    await feed.room()
    feed.put(1)
    await feed.room()
    feed.put(2)
    feed.put(3)  # it never refuses
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(feed.room())
        await anext(feed)
        await asyncio.sleep(0.001)
        assert not waiting.done()
        await anext(feed)
    assert waiting.done()
