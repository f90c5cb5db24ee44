"""streaming_tool_dispatch: a tool starts while the model still speaks, if a call that comes to nothing does no harm."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support.engine_harness import now, run

from batch_agent import BackendError, ErrorKind, Tool
from batch_agent.core.messages import ToolCall
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, TextDelta, Usage
from batch_agent.testing import ScriptedBackend, say


class SlowSpeaker(ScriptedBackend):
    """Streams the calls of its first turn, a second apart, and goes on talking for `rest` seconds after the last."""

    def __init__(self, *wanted: ToolCall, rest: float = 5.0, fails: int = 0) -> None:
        super().__init__(lambda request: say("done"))
        self._wanted = wanted
        self._rest = rest
        self._fails = fails

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        if len(request.messages) > 1:
            async for delta in super()._deltas(request):
                yield delta
            return
        for wanted in self._wanted:
            await asyncio.sleep(1.0)
            yield CallDelta(wanted)
        await asyncio.sleep(self._rest)
        if len(self.requests) <= self._fails:
            raise BackendError(ErrorKind.CONNECTION, "reset")
        yield TextDelta("...")
        yield Finished("calls", Usage())


def call(name: str, arguments: str = "{}", call_id: str = "") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def tool(effect: Any, log: list[tuple[str, float]], seconds: float = 4.0) -> Tool:
    @Tool.define(name="look", effect=effect)
    async def look(at: int = 0) -> str:
        log.append(("start", now()))
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            log.append(("cancelled", now()))
            raise
        log.append(("end", now()))
        return f"seen {at}"

    return look


async def test_a_tool_starts_when_its_call_is_complete_before_the_answer_is() -> None:
    log: list[tuple[str, float]] = []
    backend = SlowSpeaker(call("look"))
    [result] = await run(backend, ["a"], tools=[tool("read", log)], streaming_tool_dispatch=True)
    assert result.ok
    assert log == [("start", 1.0), ("end", 5.0)]
    assert now() == pytest.approx(6.0)
    assert [record.ok for record in result.tool_calls] == [True]


@pytest.mark.parametrize("effect", ["write", "stateful"])
async def test_a_tool_with_side_effects_waits_for_the_whole_answer(effect: str) -> None:
    log: list[tuple[str, float]] = []
    await run(SlowSpeaker(call("look")), ["a"], tools=[tool(effect, log)], streaming_tool_dispatch=True)
    assert log == [("start", 6.0), ("end", 10.0)]


async def test_without_the_option_no_tool_starts_early_and_nothing_is_streamed() -> None:
    log: list[tuple[str, float]] = []
    backend = SlowSpeaker(call("look"))
    await run(backend, ["a"], tools=[tool("pure", log)])
    assert log[0] == ("start", 6.0)
    assert not backend.requests[0].stream


async def test_without_a_tool_that_may_start_early_nothing_is_streamed() -> None:
    backend = SlowSpeaker(call("look"))
    await run(backend, ["a"], tools=[tool("write", [])], streaming_tool_dispatch=True)
    assert not backend.requests[0].stream


async def test_each_of_several_calls_gets_its_own_result() -> None:
    log: list[tuple[str, float]] = []
    backend = SlowSpeaker(call("look", '{"at": 1}'), call("look", '{"at": 2}'), call("nobody"))
    [result] = await run(backend, ["a"], tools=[tool("read", log)], streaming_tool_dispatch=True)
    told = backend.requests[-1].messages[-1]
    assert [r.content.split(".")[0] for r in told.results] == ["seen 1", "seen 2", "There is no tool 'nobody'"]  # type: ignore[union-attr]
    assert [entry for entry in log if entry[0] == "start"] == [("start", 1.0), ("start", 2.0)]
    assert len({r.call.id for r in told.results}) == 3  # type: ignore[union-attr]
    assert result.ok


async def test_a_broken_stream_cancels_the_tools_it_started() -> None:
    log: list[tuple[str, float]] = []
    backend = SlowSpeaker(call("look"), rest=2.0, fails=1)
    [result] = await run(backend, ["a"], tools=[tool("read", log, seconds=30.0)], streaming_tool_dispatch=True)
    assert result.ok
    assert [what for what, _ in log] == ["start", "cancelled", "start", "end"]
    assert log[1][1] < log[2][1]


async def test_an_agent_that_runs_out_of_time_leaves_no_started_tool_behind() -> None:
    log: list[tuple[str, float]] = []
    backend = SlowSpeaker(call("look"), rest=50.0)
    [result] = await run(
        backend,
        ["a"],
        tools=[tool("read", log, seconds=60.0)],
        streaming_tool_dispatch=True,
        timeout_per_agent=10,
    )
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT
    assert log == [("start", 1.0), ("cancelled", 10.0)]
