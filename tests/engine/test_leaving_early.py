"""Who leaves a run early leaves nothing behind: no task, no request, no slot, no thread."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.engine_harness import asked, now, run, stream

from batch_agent import BackendError, ErrorKind, Tool
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, say


def slow() -> ScriptedBackend:
    """The first agent is done after a second, the others after an hour."""

    async def answer(request: Request) -> Answer:
        await asyncio.sleep(1 if asked(request) == "a" else 3600)
        return say("done")

    return ScriptedBackend(answer)


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_leaving_the_stream_block_by_break_ends_the_run() -> None:
    backend = slow()
    async with stream(backend, list("abcd")) as results:
        async for _ in results:
            break
    assert now() == 1
    assert backend.in_flight == 0
    assert not others()


async def test_leaving_the_stream_block_by_an_exception_ends_the_run() -> None:
    backend = slow()
    with pytest.raises(KeyError):  # noqa: PT012
        async with stream(backend, list("abcd")) as results:
            async for _ in results:
                raise KeyError
    assert now() == 1
    assert backend.in_flight == 0
    assert not others()


async def test_leaving_an_async_for_without_a_block_ends_the_run() -> None:
    backend = slow()
    async for _ in stream(backend, list("abcd")):
        break
    await asyncio.sleep(0.001)
    assert now() < 1.1
    assert backend.in_flight == 0
    assert not others()


async def test_an_exception_in_an_async_for_without_a_block_ends_the_run() -> None:
    backend = slow()
    with pytest.raises(KeyError):  # noqa: PT012
        async for _ in stream(backend, list("abcd")):
            raise KeyError
    await asyncio.sleep(0.001)
    assert backend.in_flight == 0
    assert not others()


async def test_aclose_ends_the_run_and_the_iteration() -> None:
    backend = slow()
    results = stream(backend, list("abcd"))
    assert (await anext(results)).index == 0
    await results.aclose()
    assert backend.in_flight == 0
    assert not others()
    with pytest.raises(StopAsyncIteration):
        await anext(results)
    await results.aclose()


async def test_a_stream_that_is_closed_before_its_first_read_never_starts() -> None:
    backend = slow()
    results = stream(backend, list("abcd"))
    await results.aclose()
    assert [result async for result in results] == []
    assert backend.requests == []


async def test_a_reader_in_another_task_stops_quietly_when_the_stream_is_closed() -> None:
    results = stream(slow(), list("bcd"))

    async def read() -> list[int]:
        return [result.index async for result in results]

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await asyncio.sleep(1)
        await results.aclose()
    assert reader.result() == []


async def test_cancelling_run_from_outside_leaves_no_task_behind() -> None:
    backend = slow()
    running = asyncio.create_task(run(backend, list("abcd"), max_inflight=2))
    await asyncio.sleep(5)
    assert backend.in_flight == 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert now() == 5
    assert backend.in_flight == 0
    assert not others()


async def test_a_timeout_around_run_raises_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await run(slow(), list("abcd"))
    assert now() == 5


async def test_leaving_a_stream_early_cancels_running_tools() -> None:
    ended: list[str] = []

    @Tool.define
    async def wait(name: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
        return "never"

    def answer(request: Request) -> Answer:
        return say("done") if asked(request) == "a" else call("wait", name=asked(request))

    async with stream(ScriptedBackend(answer, seconds=1), list("abc"), tools=[wait]) as results:
        async for _ in results:
            await asyncio.sleep(1)
            break
    assert sorted(ended) == ["b", "c"]


async def test_leaving_a_stream_early_ends_agents_that_wait_for_a_retry_or_a_slot() -> None:
    def answer(request: Request) -> Answer:
        return say("done") if asked(request) == "a" else BackendError(ErrorKind.SERVER, "no", retry_after=200.0)

    async with stream(ScriptedBackend(answer, seconds=1), list("abcdef"), max_inflight=1) as results:
        async for _ in results:
            break
    assert now() == 1
    assert not others()


async def test_leaving_a_stream_early_ends_a_run_that_waits_for_inputs() -> None:
    async def inputs() -> AsyncIterator[str]:
        yield "a"
        await asyncio.Event().wait()

    async with stream(slow(), inputs()) as results:
        async for _ in results:
            break
    assert not others()


async def test_leaving_a_stream_early_ends_agents_that_wait_for_a_slow_reader() -> None:
    backend = ScriptedBackend(by_turn(say("done")))
    async with stream(backend, map(str, range(1500))) as results:
        await anext(results)
        await asyncio.sleep(10)
    assert not others()


async def test_an_unread_failure_of_a_run_is_raised_when_its_block_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def inputs() -> AsyncIterator[str]:
        yield "a"
        raise OSError("the file is gone")

    async with stream(slow(), inputs()) as results:
        await anext(results)
        await asyncio.sleep(10)
    assert ["the file is gone" in record.getMessage() for record in caplog.records] == [True]
