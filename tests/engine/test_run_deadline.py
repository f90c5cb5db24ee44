"""The deadline of a run ends whatever it waits for: what is done is returned, and the rest fails with the reason."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, run, waiting_tool
from tests.support.event_list import EventList
from tests.support.shared_run_workers import Link, calling, working

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Flow, RunStopped, SpecError, Tool
from batch_agent.core.requests import Reply, Request
from batch_agent.testing import Script, ScriptedBackend, by_turn, call, say


def assert_late(results: Sequence[AgentResult], *, seconds: float = 2.0) -> None:
    """All of them failed for the deadline, at the deadline."""
    assert results
    for result in results:
        assert result.error is not None
        assert (result.error.kind, result.error.retryable) == (ErrorKind.BUDGET, False)
        assert f"deadline of {seconds:g} s" in result.error.message
    assert now() == pytest.approx(seconds)


async def for_ever(request: Request) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


def one_of_ten(request: Request) -> Reply:
    return say("done") if asked(request) == "0" else call("wait")


TEN = [str(n) for n in range(10)]


async def test_an_async_tool_ends_at_the_deadline_and_finished_results_are_returned() -> None:
    results = await run(ScriptedBackend(one_of_ten), TEN, tools=[waiting_tool(50)], deadline=2)
    assert results[0].text == "done"
    assert_late(results[1:])
    assert {result.turns for result in results[1:]} == {1}


async def test_a_tool_in_a_thread_is_abandoned_at_the_deadline_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    hang, runs = threading.Event(), threading.Event()

    @Tool.define
    def hung() -> str:
        runs.set()
        hang.wait()
        return "too late"

    try:
        with caplog.at_level(logging.WARNING, "batch_agent"):
            results = await run(ScriptedBackend(by_turn(call("hung"))), ["a"], tools=[hung], deadline=2)
    finally:
        hang.set()
    assert_late(results)
    assert any("1 tool call is still running" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("error", [ErrorKind.RATE_LIMITED, ErrorKind.UNAVAILABLE])
async def test_a_retry_after_pause_ends_at_the_deadline(error: ErrorKind) -> None:
    refusal = BackendError(error, "later", retry_after=60, status=429)
    assert_late(await run(ScriptedBackend(lambda request: refusal), TEN, deadline=2, max_inflight=4))


async def test_a_backoff_ends_at_the_deadline() -> None:
    broken = ScriptedBackend(lambda request: BackendError(ErrorKind.SERVER, "no", status=500))
    assert_late(await run(broken, ["a"], deadline=2, backoff=50, backoff_max=60))


async def test_a_wait_for_a_slot_ends_at_the_deadline() -> None:
    backend = ScriptedBackend(for_ever)
    assert_late(await run(backend, TEN, deadline=2, max_inflight=1))
    assert len(backend.requests) == 1
    assert backend.in_flight == 0


async def test_a_wait_for_a_rate_limit_ends_at_the_deadline() -> None:
    @Tool.define(rate_limit=0.001)
    async def rare() -> str:
        return "found"

    backend = ScriptedBackend(by_turn(call("rare"), say("done")))
    results = await run(backend, TEN, tools=[rare], deadline=2)
    assert [result.ok for result in results].count(True) == 1
    assert_late([result for result in results if not result.ok])


async def test_a_wait_for_the_budget_ends_at_the_deadline() -> None:
    backend = ScriptedBackend(for_ever)
    assert_late(await run(backend, TEN, deadline=2, max_total_tokens=500, max_tokens=200, max_inflight=4))
    assert len(backend.requests) == 1


async def test_a_wait_for_residency_ends_at_the_deadline() -> None:
    backend = ScriptedBackend(by_turn(call("wait")))
    assert_late(await run(backend, TEN, tools=[waiting_tool(50)], deadline=2, max_dispatched=1))


class SlowTools:
    """A server of tools that takes its time to start."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sequence[Tool]]:
        await asyncio.sleep(100)
        yield []


async def test_the_start_of_a_tool_server_ends_at_the_deadline() -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    with pytest.raises(RunStopped, match="deadline of 2 s has passed") as stopped:
        await run(backend, TEN, tools=[SlowTools()], deadline=2)
    assert stopped.value.kind is ErrorKind.BUDGET
    assert now() == 2.0
    assert not backend.requests


async def test_waiting_for_the_first_input_ends_at_the_deadline() -> None:
    async def never() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "a"

    with pytest.raises(RunStopped, match="deadline of 2 s has passed"):
        await run(ScriptedBackend(lambda request: say("done")), never(), deadline=2)
    assert now() == 2.0


async def test_inputs_not_yet_read_at_the_deadline_are_not_read() -> None:
    async def some() -> AsyncIterator[str]:
        for name in "abc":
            yield name
        await asyncio.Event().wait()

    results = await run(ScriptedBackend(lambda request: say("done"), seconds=0.5), some(), deadline=2)
    assert [result.ok for result in results] == [True] * 3
    assert now() == 2.0


async def test_endless_inputs_are_read_until_the_deadline() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "a"

    backend = ScriptedBackend(lambda request: say("done"), seconds=0.5)
    results = await run(backend, endless(), deadline=1.75, max_inflight=2)
    assert [result.ok for result in results] == [True] * 6 + [False] * 3
    assert_late(results[6:], seconds=1.75)


async def test_chunks_of_a_long_input_end_at_the_deadline() -> None:
    text = "\n\n".join(f"Paragraph {n}. " + "It has some words. " * 12 for n in range(60))
    refusal = BackendError(ErrorKind.RATE_LIMITED, "later", retry_after=60, status=429)
    backend = ScriptedBackend(lambda request: refusal, context_tokens=1_000)
    assert_late(await run(backend, [text, text], deadline=2, oversized="chunk", max_inflight=1))


async def test_summaries_of_a_compaction_end_at_the_deadline() -> None:
    async def answer(request: Request) -> Reply:
        return await for_ever(request) if "Shorten" in asked(request) else call("wait")

    @Tool.define
    async def wait() -> str:
        return "word " * 600

    options: dict[str, Any] = {"compact_with": "summarize", "compact_at": 0.5, "max_turns": 20, "max_tool_tokens": 800}
    backend = ScriptedBackend(answer, context_tokens=2_000, seconds=0.1)
    assert_late(await run(backend, ["a"], tools=[wait], deadline=2, **options))


async def test_the_run_deadline_is_not_reported_as_an_agent_timeout() -> None:
    backend = ScriptedBackend(for_ever)
    results = await run(backend, ["a"], deadline=2, timeout_per_agent=2, timeout_per_turn=2)
    assert_late(results)


async def test_an_agent_timeout_is_not_reported_as_the_run_deadline() -> None:
    [result] = await run(ScriptedBackend(for_ever), ["a"], deadline=20, timeout_per_agent=2)
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT


@pytest.mark.parametrize("script", [for_ever, by_turn(call("wait"))], ids=["request", "tool"])
async def test_a_deadline_applies_without_any_other_timeout(script: Script) -> None:
    none = dict.fromkeys(["timeout_per_agent", "timeout_per_turn", "timeout_per_tool"])
    assert_late(await run(ScriptedBackend(script), TEN, tools=[waiting_tool(50)], deadline=2, **none))


@pytest.mark.parametrize("timeout", ["timeout_per_agent", "deadline"])
async def test_an_agent_timeout_ends_pauses_backoffs_and_tools(timeout: str) -> None:
    refusal = BackendError(ErrorKind.RATE_LIMITED, "later", retry_after=60, status=429)
    scripts: list[Script] = [by_turn(call("wait")), lambda request: refusal]
    for script in scripts:
        began = now()
        [result] = await run(ScriptedBackend(script), ["a"], tools=[waiting_tool(50)], **{timeout: 2.0})
        assert result.error is not None
        assert now() - began == 2.0


async def test_a_cancellation_at_the_deadline_is_still_a_cancellation() -> None:
    running = asyncio.create_task(run(ScriptedBackend(for_ever), TEN, deadline=2))
    asyncio.get_running_loop().call_at(2.0, running.cancel)
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_reduce_ends_at_the_deadline() -> None:
    async def answer(request: Request) -> Reply:
        return await for_ever(request) if asked(request).startswith("Join") else say("done")

    with pytest.raises(RunStopped, match="deadline of 2 s") as stopped:
        await BatchAgent.run_with_reduce(
            task="{it}", inputs=TEN, reduce="Join", backend=ScriptedBackend(answer), deadline=2
        )
    assert now() == 2.0
    assert sum(result.ok for result in stopped.value.results) == 10


async def test_every_stage_of_a_flow_ends_at_the_deadline() -> None:
    backend = ScriptedBackend(lambda request: say("done") if "0" in asked(request) else call("wait"))
    flow = Flow(inputs=TEN, backend=backend, deadline=2, tools=[waiting_tool(50)], max_inflight=2)
    result = await flow.map("first", "First {it}").map("second", "Second {first}", tools=[]).run()
    assert now() == 2.0
    stages = {name: [each.ok for each in report.results] for name, report in result.stages.items()}
    assert stages["first"] == [True] + [False] * 9


async def test_a_flow_that_waits_for_inputs_ends_at_the_deadline() -> None:
    async def some() -> AsyncIterator[str]:
        yield "a"
        await asyncio.Event().wait()

    flow = Flow(inputs=some(), backend=ScriptedBackend(lambda request: say("done")), deadline=2)
    result = await flow.filter(lambda item: True).map("first", "First {it}").run()
    assert now() == 2.0
    assert [each.ok for each in result.stages["first"].results] == [True]


async def test_a_flow_whose_start_exceeds_the_deadline_is_stopped() -> None:
    flow = Flow(inputs=TEN, backend=ScriptedBackend(lambda request: say("done")), deadline=2, tools=[SlowTools()])
    with pytest.raises(RunStopped, match="deadline of 2 s"):
        await flow.map("first", "First {it}").run()
    with pytest.raises(SpecError, match="deadline must be more than 0"):
        await Flow(inputs=TEN, backend=ScriptedBackend(by_turn(say("a"))), deadline=-1).map("first", "{it}").run()


async def test_a_shared_run_ends_at_the_deadline_of_its_submitter() -> None:
    link, log = Link(), EventList()
    backend = ScriptedBackend(lambda request: say("done") if asked(request) == "0" else call("wait"))
    options: dict[str, Any] = {"backend": backend, "tools": [waiting_tool(500)], "deadline": 2.0}
    results = [result async for result in calling(link, [{"it": name} for name in TEN], events=log, **options)]
    assert len(results) == 10
    assert sum(result.ok for result in results) == 1
    late = [result for result in results if not result.ok]
    assert all(result.error and "deadline of 2 s" in result.error.message for result in late)
    assert 2.0 <= now() <= 7.0  # a write that has begun has a moment to end


async def test_a_submitter_that_only_collects_does_not_wait_past_its_deadline() -> None:
    link = Link()
    backend = ScriptedBackend(lambda request: say("done"))
    options: dict[str, Any] = {"backend": backend, "deadline": 2.0}
    results = [result async for result in calling(link, [{"it": name} for name in TEN], works=False, **options)]
    assert len(results) == 10
    assert all(result.error and "deadline of 2 s" in result.error.message for result in results)
    assert 2.0 <= now() <= 4.0


async def test_a_worker_ends_at_its_own_deadline() -> None:
    link = Link()
    backend = ScriptedBackend(by_turn(call("wait"), say("done")))
    options: dict[str, Any] = {"backend": backend, "tools": [waiting_tool(500)]}
    asking = asyncio.create_task(
        _all(calling(link, [{"it": name} for name in TEN], works=False, deadline=9.0, **options))
    )
    await asyncio.sleep(1.0)
    await working(link.another(), deadline=2.0, **options)
    assert 3.0 <= now() <= 7.0  # a write that has begun has a moment to end
    results = await asking
    assert len(results) == 10


async def _all(results: AsyncIterator[AgentResult]) -> list[AgentResult]:
    return [result async for result in results]
