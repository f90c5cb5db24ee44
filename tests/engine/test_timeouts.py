"""Three clocks: a turn's, a tool's and an agent's. Each says its own name, and stops nobody else."""

import asyncio
import threading

from tests.support.engine_harness import asked, now, run, waiting_tool

from batch_agent import ErrorKind, Tool
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Reply, Request
from batch_agent.testing import ScriptedBackend, by_turn, call, say


async def never(request: Request) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_turn_timeout_is_reported_as_such() -> None:
    backend = ScriptedBackend(never)
    [result] = await run(backend, ["a"], timeout_per_turn=20.0, max_retries=0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.TURN_TIMEOUT
    assert "timeout_per_turn=20 s" in result.error.message
    assert now() == 20.0
    assert backend.in_flight == 0


async def test_a_turn_that_timed_out_is_retried() -> None:
    async def answer(request: Request) -> Reply:
        return await never(request) if len(backend.requests) == 1 else say("done")

    backend = ScriptedBackend(answer)
    [result] = await run(backend, ["a"], timeout_per_turn=20.0)
    assert result.ok


async def test_an_agent_timeout_is_reported_as_such() -> None:
    backend = ScriptedBackend(by_turn(call("wait")), seconds=1)
    [result] = await run(backend, ["a"], tools=[waiting_tool(1)], max_turns=1000, timeout_per_agent=30.5)
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT
    assert result.error.retryable
    assert "timeout_per_agent=30.5 s" in result.error.message
    assert now() == 30.5
    assert result.turns == 15


async def test_the_agent_timeout_does_not_include_the_wait_for_the_first_slot() -> None:
    backend = ScriptedBackend(lambda request: say("done"), seconds=10)
    results = await run(backend, list("abcdef"), max_inflight=1, timeout_per_agent=15.0)
    assert all(result.ok for result in results)


async def test_the_agent_timeout_includes_waits_for_retries() -> None:
    backend = ScriptedBackend(never)
    [result] = await run(backend, ["a"], timeout_per_turn=20.0, timeout_per_agent=50.0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT
    assert now() == 50.0


async def test_simultaneous_turn_and_agent_timeouts_end_the_agent() -> None:
    [result] = await run(ScriptedBackend(never), ["a"], timeout_per_turn=20.0, timeout_per_agent=20.0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT


async def test_a_tool_timeout_is_reported_to_the_model_and_the_agent_continues() -> None:
    backend = ScriptedBackend(by_turn(call("wait"), say("done")))
    [result] = await run(backend, ["a"], tools=[waiting_tool(1e6)], timeout_per_tool=12.0)
    assert result.text == "done"
    assert now() == 12.0
    assert not result.tool_calls[0].ok
    told = backend.requests[1].messages[-1]
    assert isinstance(told, ToolResults)
    assert "12 s (timeout_per_tool)" in told.results[0].content


async def test_a_hung_async_tool_does_not_affect_other_agents() -> None:
    @Tool.define
    async def look(name: str) -> str:
        if name == "a":
            await asyncio.Event().wait()
        return "found"

    times: dict[str, float] = {}

    def answer(request: Request) -> Reply:
        if len(request.messages) == 1:
            return call("look", name=asked(request))
        times[asked(request)] = now()
        return say("done")

    results = await run(ScriptedBackend(answer), list("abcd"), tools=[look], max_inflight=1)
    assert all(result.ok for result in results)
    assert times == {"a": 60.0, "b": 0.0, "c": 0.0, "d": 0.0}


async def test_hung_tools_in_threads_do_not_affect_other_agents() -> None:
    hang = threading.Event()

    @Tool.define
    def hung() -> str:
        hang.wait()
        return "too late"

    @Tool.define
    async def look() -> str:
        return "found"

    times: dict[str, float] = {}

    def answer(request: Request) -> Reply:
        if len(request.messages) == 1:
            return call("hung" if asked(request) in "ab" else "look")
        times[asked(request)] = now()
        return say("done")

    try:
        results = await run(ScriptedBackend(answer), list("abcd"), tools=[hung, look], timeout_per_tool=5.0)
    finally:
        hang.set()
    assert all(result.ok for result in results)
    assert times == {"a": 5.0, "b": 5.0, "c": 0.0, "d": 0.0}


async def test_a_timeout_error_raised_by_a_tool_is_not_reported_as_a_tool_timeout() -> None:
    @Tool.define
    async def fetch() -> str:
        raise TimeoutError("the site did not answer")

    backend = ScriptedBackend(by_turn(call("fetch"), say("done")))
    await run(backend, ["a"], tools=[fetch])
    told = backend.requests[1].messages[-1]
    assert isinstance(told, ToolResults)
    assert told.results[0].content == "TimeoutError: the site did not answer"
