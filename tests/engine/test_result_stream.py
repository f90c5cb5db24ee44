"""Results reach the caller as they come, once each, also when the caller is slow or its callback raises."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from tests.support.engine_harness import now, run, stream
from tests.support.event_list import EventList

from batch_agent import AgentResult, ErrorKind, Tool
from batch_agent.core.events import AgentFinished, AgentStarted, CallbackFailed
from batch_agent.core.requests import Reply, Request
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.text.summary import summary_lines
from batch_agent.testing import ScriptedBackend, by_turn, call, say


async def test_a_result_is_yielded_as_soon_as_its_agent_is_done() -> None:
    times = []
    async for _ in stream(ScriptedBackend(lambda request: say("done"), seconds=1), list("abc"), max_inflight=1):
        times.append(now())
    assert times == [1, 2, 3]


async def test_a_slow_reader_of_a_stream_slows_the_run_down() -> None:
    read = 0

    def inputs() -> Iterator[str]:
        nonlocal read
        for read in range(1, 20_001):
            yield str(read)

    results = stream(ScriptedBackend(lambda request: say("done")), inputs(), max_dispatched=100)
    await anext(results)
    await asyncio.sleep(1000)
    assert read < 1500
    await results.aclose()


async def test_a_slow_reader_of_a_stream_gets_every_result() -> None:
    results = stream(ScriptedBackend(lambda request: say("done")), map(str, range(2500)))
    got = {(await anext(results)).index}
    await asyncio.sleep(1000)
    async for result in results:
        got.add(result.index)
    assert got == set(range(2500))


async def test_two_tasks_may_share_one_stream() -> None:
    results = stream(ScriptedBackend(lambda request: say("done"), seconds=1), map(str, range(20)), max_inflight=2)

    async def read() -> list[int]:
        return [result.index async for result in results]

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read()) for _ in range(2)]
    assert sorted(index for reader in readers for index in reader.result()) == list(range(20))


async def test_on_result_is_called_with_each_result() -> None:
    seen: list[int] = []
    results = await run(
        ScriptedBackend(lambda request: say("done")), list("abc"), on_result=lambda result: seen.append(result.index)
    )
    assert sorted(seen) == [result.index for result in results] == [0, 1, 2]


async def test_on_result_may_be_async_and_slow() -> None:
    seen: list[int] = []

    async def on_result(result: AgentResult) -> None:
        await asyncio.sleep(5)
        seen.append(result.index)

    results = await run(ScriptedBackend(lambda request: say("done")), list("abc"), on_result=on_result)
    assert sorted(seen) == [result.index for result in results] == [0, 1, 2]
    assert now() == 5


@pytest.mark.parametrize("error", [ValueError("not my day"), asyncio.CancelledError()])
async def test_an_on_result_that_raises_is_reported_once_and_no_result_is_lost(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def on_result(result: AgentResult) -> None:
        raise error

    results = await run(ScriptedBackend(lambda request: say("done")), list("abc"), on_result=on_result)
    assert [result.text for result in results] == ["done"] * 3
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "on_result raised" in record.getMessage()


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), TimeoutError("bug"), asyncio.CancelledError("leak")])
async def test_an_unexpected_backend_exception_becomes_an_internal_error_result(error: BaseException) -> None:
    async def answer(request: Request) -> Reply:
        if len(backend.requests) == 2:
            raise error
        return say("done")

    backend = ScriptedBackend(answer)
    results = await run(backend, list("abc"))
    assert [result.ok for result in results] == [True, False, True]
    assert results[1].error is not None
    assert results[1].error.kind is ErrorKind.INTERNAL
    assert str(error) in results[1].error.message
    assert results[1].input == "b"


async def test_a_tool_that_raises_cancelled_error_itself_fails_no_agent() -> None:
    @Tool.define
    async def look() -> str:
        lost = asyncio.create_task(asyncio.sleep(10))
        lost.cancel()
        await lost
        return "never"

    backend = ScriptedBackend(by_turn(call("look"), say("done")))
    results = await run(backend, list("abc"), tools=[look])
    assert [result.text for result in results] == ["done"] * 3
    assert not results[0].tool_calls[0].ok


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_calls_exit_ends_neither_the_run_nor_its_agent(is_async: bool) -> None:
    @Tool.define(name="leave")
    async def leave_async() -> str:
        raise SystemExit(3)

    @Tool.define(name="leave")
    def leave() -> str:
        raise SystemExit(3)

    backend = ScriptedBackend(by_turn(call("leave"), say("done")))
    [result] = await run(backend, ["a"], tools=[leave_async if is_async else leave])
    assert result.text == "done"
    assert not result.tool_calls[0].ok


async def test_an_observer_sees_every_agent_start_and_finish() -> None:
    log = EventList()
    await run(ScriptedBackend(lambda request: say("done")), list("abc"), events=log)
    assert sorted(event.index for event in log.events if isinstance(event, AgentStarted)) == [0, 1, 2]
    finished = [event for event in log.events if isinstance(event, AgentFinished)]
    assert sorted(event.result.index for event in finished) == [0, 1, 2]
    assert not any(event.resumed for event in finished)


async def test_every_failure_of_on_result_is_an_event_and_is_counted_in_the_summary() -> None:
    def raising(result: AgentResult) -> None:
        if result.index:
            raise KeyError(result.index)

    log, state = EventList(), LiveState()
    results = await run(ScriptedBackend(lambda request: say("done")), list("abc"), on_result=raising, events=log)
    assert all(result.ok for result in results)
    failed = [event for event in log.events if isinstance(event, CallbackFailed)]
    assert sorted((event.where, event.item, event.message) for event in failed) == [
        ("on_result", "1", "KeyError: 1"),
        ("on_result", "2", "KeyError: 2"),
    ]
    for event in log.events:
        state.emit(event)
    assert "on_result raised for 2 items. Example: KeyError: 1" in summary_lines(state, 1.0)
