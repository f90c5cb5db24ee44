"""Results on their way from a run to its caller."""

import asyncio

import pytest

from batch_agent.core.results import AgentResult
from batch_agent.engine.result_stream import ResultChannel, ResultStream


def result(index: int) -> AgentResult:
    return AgentResult(index, str(index))


async def test_a_stream_that_is_never_read_never_starts() -> None:
    async def drive(outbox: ResultChannel) -> None:
        raise AssertionError

    ResultStream(drive)


async def test_a_stream_whose_run_was_cancelled_from_outside_raises() -> None:
    async def drive(outbox: ResultChannel) -> None:
        await outbox.put(result(0))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    stream = ResultStream(drive)
    assert await anext(stream) == result(0)
    with pytest.raises(asyncio.CancelledError):
        await anext(stream)
