"""The fakes that users get: a clock that jumps, and a backend that answers from a script."""

import asyncio
import threading

import pytest
from tests.support.engine_harness import now, run, waiting_tool

from batch_agent import BackendError, BatchAgent, ErrorKind, virtual_time
from batch_agent.testing import ScriptedBackend, by_turn, call, run_virtual, say


async def test_a_day_of_virtual_time_passes_at_once_and_in_order() -> None:
    seen: list[tuple[float, float]] = []

    async def wait(hours: float) -> None:
        await asyncio.sleep(hours * 3600)
        seen.append((hours, now()))

    async with asyncio.TaskGroup() as group:
        for hours in (24, 1, 12):
            group.create_task(wait(hours))
    assert seen == [(1, 3600), (12, 12 * 3600), (24, 24 * 3600)]


async def test_a_thread_wakes_the_loop_in_virtual_time() -> None:
    assert await asyncio.to_thread(lambda: threading.current_thread() is not threading.main_thread())


def test_a_deadlock_of_all_tasks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "_MAX_REAL_WAIT", 0.01)

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run_virtual(main())


def test_a_script_that_returns_text_is_told_to_use_say() -> None:
    backend = ScriptedBackend(lambda request: "36")  # type: ignore[arg-type, return-value]
    error = BatchAgent.run_sync(task="How old is {name}?", inputs=["Ada"], backend=backend)[0].error
    assert error is not None
    assert "what say(), call() or calls() makes" in error.message


def test_a_run_on_a_scripted_backend_needs_no_fixtures() -> None:
    backend = ScriptedBackend(by_turn(call("wait"), say("42")), seconds=30)
    [result] = run_virtual(BatchAgent.run(task="{it}", inputs=["a"], tools=[waiting_tool(10)], backend=backend))
    assert result.text == "42"
    assert result.timing.total == 70


async def test_a_script_may_return_or_raise_an_error() -> None:
    def raises(request: object) -> None:
        raise BackendError(ErrorKind.AUTH, "who are you")

    for script in (by_turn(BackendError(ErrorKind.AUTH, "who are you")), raises):
        [result] = await run(ScriptedBackend(script), ["a"])  # type: ignore[arg-type]
        assert str(result.error) == "auth: who are you"


async def test_a_backend_object_stays_open_for_the_next_run() -> None:
    backend = ScriptedBackend(by_turn(say("42")), inflight=2, model="mine")
    await run(backend, ["a"])
    await run(backend, ["b"])
    assert not backend.is_closed
    assert [request.model for request in backend.requests] == ["mine", "mine"]
