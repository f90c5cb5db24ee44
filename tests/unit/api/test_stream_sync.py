"""Results one by one, without an event loop; and the blocking forms of the calls with a reduce."""

import asyncio
import signal
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Programs

from batch_agent import BatchAgent, RunStopped, SpecError
from batch_agent.core.requests import Request
from batch_agent.engine import sync
from batch_agent.testing import ScriptedBackend, say


def echo() -> ScriptedBackend:
    return ScriptedBackend(lambda request: say(request.messages[-1].text))  # type: ignore[union-attr]


def is_running() -> bool:
    return any(thread.name == "batch-agent-run" for thread in threading.enumerate())


def test_results_come_one_by_one() -> None:
    found = [result.output for result in BatchAgent.stream_sync(task="{n}", inputs=["a", "b", "c"], backend=echo())]
    assert sorted(found) == ["a", "b", "c"]
    assert not is_running()


@pytest.mark.parametrize("is_closed_by", ["break", "exception", "with", "close"])
def test_leaving_early_ends_the_run(tmp_path: Path, is_closed_by: str) -> None:
    backend = echo()
    options: Any = {"task": "{n}", "inputs": map(str, range(10**9)), "backend": backend, "max_inflight": 2}
    match is_closed_by:
        case "break":
            for _ in BatchAgent.stream_sync(**options):
                break
        case "exception":
            with pytest.raises(KeyboardInterrupt):
                interrupt(options)
        case "with":
            with BatchAgent.stream_sync(**options) as stream:
                next(stream)
        case _:
            stream = BatchAgent.stream_sync(**options)
            next(stream)
            stream.close()
            assert list(stream) == []
    assert not is_running()


def interrupt(options: Any) -> None:
    for _ in BatchAgent.stream_sync(**options):
        raise KeyboardInterrupt


def test_what_was_finished_before_a_break_is_in_the_checkpoint(tmp_path: Path) -> None:
    backend = echo()
    options: Any = {"task": "{n}", "inputs": list("abcdef"), "backend": backend, "checkpoint_dir": tmp_path}
    for _ in BatchAgent.stream_sync(**options, max_inflight=1):
        break
    asked = len(backend.requests)
    assert len(list(BatchAgent.stream_sync(**options))) == 6
    assert asked >= 1
    assert len(backend.requests) <= 6 + 1  # a request in flight at the break is sent again


def test_ctrl_c_while_a_result_is_awaited_ends_the_run(tmp_path: Path, programs: Programs) -> None:
    code = """
from batch_agent import BatchAgent
from batch_agent.sim import Script, SimConfig, SimServer
class Mark:
    def emit(self, event):
        if type(event).__name__ == "AgentStarted":
            open("started", "w").close()
with SimServer(SimConfig(step_base_ms=60_000), Script()) as sim:
    try:
        for result in BatchAgent.stream_sync(
            task="{n}", inputs=["a"], backend=sim.url, checkpoint_dir="runs", progress=False, events=Mark()
        ):
            print("too early")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    program = programs.start(code, cwd=tmp_path)
    for _ in range(6000):
        if (tmp_path / "started").exists():
            break
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    assert program.wait() == 0, program.stderr.read_text()
    assert program.stdout.read_text() == "interrupted\n"


@pytest.fixture
def ctrl_c_in_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while the thread of a run starts: `start` waits for it to be there."""
    start = threading.Thread.start
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "else the signal would end this process"

    def start_interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "batch-agent-run":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start_interrupted)


@pytest.mark.usefixtures("ctrl_c_in_start")
def test_ctrl_c_while_the_thread_of_a_stream_starts_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        next(BatchAgent.stream_sync(task="{n}", inputs=map(str, range(10**9)), backend=echo()))
    assert not is_running()


@pytest.mark.usefixtures("ctrl_c_in_start")
def test_ctrl_c_while_the_thread_of_a_run_starts_ends_the_run() -> None:
    async def notebook() -> None:
        BatchAgent.run_sync(task="{n}", inputs=map(str, range(10**9)), backend=echo())

    loop = asyncio.new_event_loop()  # as in a notebook: Ctrl-C raises, and does not cancel the task
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(notebook())
    finally:
        loop.close()
    assert not is_running()


def test_a_stream_without_an_event_loop_raises_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise OSError("Too many open files")

    monkeypatch.setattr(sync, "run_event_loop", fail)
    with pytest.raises(OSError, match="Too many"):
        list(BatchAgent.stream_sync(task="{n}", inputs=["a"], backend=echo()))
    assert not is_running()


def test_errors_are_those_of_a_run() -> None:
    with pytest.raises(SpecError, match="max_turns must be"):
        BatchAgent.stream_sync(task="{n}", inputs=["a"], max_turns=0)

    def broken() -> Any:
        yield "a"
        raise ConnectionError("gone")

    found: list[Any] = []
    with pytest.raises(RunStopped, match="gone"):
        found.extend(BatchAgent.stream_sync(task="{n}", inputs=broken(), backend=echo()))
    assert not is_running()


async def test_it_works_inside_of_a_running_loop() -> None:
    found = list(BatchAgent.stream_sync(task="{n}", inputs=["a", "b"], backend=echo()))
    assert len(found) == 2
    assert asyncio.get_running_loop().is_running()


def test_a_stream_that_was_never_read_opens_nothing() -> None:
    backend = echo()
    BatchAgent.stream_sync(task="{n}", inputs=["a"], backend=backend).close()
    assert backend.requests == []


def answer(request: Request) -> Any:
    text = request.messages[-1].text  # type: ignore[union-attr]
    return say('["x", "y"]' if text.startswith("Plan.") else "done")


def test_runs_with_a_reduce_have_a_blocking_form() -> None:
    results, summary = BatchAgent.run_with_reduce_sync(
        task="{n}", inputs=["a", "b"], reduce="Sum up {n}.", backend=ScriptedBackend(answer)
    )
    assert (len(results), summary) == (2, "done")
    results, summary = BatchAgent.run_with_map_reduce_sync(
        plan_prompt="Plan.",
        plan_output_schema=list[str],
        task="{item}",
        reduce="Sum up {n}.",
        backend=ScriptedBackend(answer),
    )
    assert (len(results), summary) == (2, "done")


def test_no_inputs_and_one() -> None:
    for inputs in ([], ["a"]):
        assert len(list(BatchAgent.stream_sync(task="{n}", inputs=inputs, backend=echo()))) == len(inputs)
        results, summary = BatchAgent.run_with_reduce_sync(
            task="{n}", inputs=inputs, reduce="Sum up {n}.", backend=echo()
        )
        assert (len(results), summary is None) == (len(inputs), not inputs)
