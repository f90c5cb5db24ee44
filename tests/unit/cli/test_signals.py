"""Commands and signals: whatever comes in whatever order, a command ends, and says nothing of Python."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Program, Programs

from batch_agent.cli import signals
from batch_agent.cli.signals import Interrupted, interruptible
from batch_agent.sim import Script, SimConfig, SimServer

INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture(scope="module")
def slow_url() -> Iterator[str]:
    with SimServer(SimConfig(step_base_ms=50), Script(answer_tokens=400)) as sim:
        yield sim.url


def begun(folder: Path, url: str, programs: Programs) -> Program:
    """A run with requests under way."""
    (folder / "in.jsonl").write_text("".join(f'{{"name": "{n}"}}\n' for n in range(40)))
    asks = ("--task", "Who is {name}?", "--inputs", "in.jsonl", "--backend", url)
    program = programs.start_command("run", *asks, cwd=folder)
    facts = folder / "results.jsonl.checkpoint" / "run.sqlite3-wal"
    for _ in range(6000):
        if facts.exists() and "sim on sim" in program.stderr.read_text():
            return program
        time.sleep(0.01)
    raise AssertionError(program.stderr.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("order", [(INT, TERM, INT), (INT, INT, INT), (TERM, INT, TERM), (TERM, TERM, INT)], ids=str)
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.3])
def test_a_run_ends_without_a_traceback_whatever_signals_come(
    tmp_path: Path, slow_url: str, programs: Programs, order: tuple[signal.Signals, ...], pause: float
) -> None:
    program = begun(tmp_path, slow_url, programs)
    for number in order:
        try:
            os.kill(program.pid, number)
        except ProcessLookupError:
            break
        time.sleep(pause)
    status = program.wait()
    assert status in (130, 143, -INT, -TERM)
    said = program.stderr.read_text()
    for word in ("Traceback", "Exception ignored", "KeyboardInterrupt", "never awaited", "was destroyed"):
        assert word not in said


def told(*numbers: signal.Signals) -> int:
    """The status of work that is told so, at one moment."""

    async def work() -> None:
        for number in numbers:
            signal.raise_signal(number)
        await asyncio.sleep(3600)

    with pytest.raises(Interrupted) as caught:
        interruptible(work())
    return caught.value.status


def test_simultaneous_signals_count_as_one_and_sigterm_wins() -> None:
    before = [signal.getsignal(number) for number in (INT, TERM)]
    assert [told(INT), told(TERM), told(INT, INT), told(INT, TERM), told(TERM, INT)] == [130, 143, 130, 143, 143]
    assert [signal.getsignal(number) for number in (INT, TERM)] == before


def test_work_that_ends_before_a_signal_is_not_interrupted() -> None:
    async def work() -> str:
        return "done"

    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert interruptible(work()) == "done"
    with pytest.raises(asyncio.CancelledError):
        interruptible(cancelled())


def test_a_second_signal_ends_the_process_during_shutdown(programs: Programs, tmp_path: Path) -> None:
    code = (
        "import asyncio, signal, time\n"
        "from batch_agent.cli import signals\n"
        "signals._SAME_SIGNAL_SECONDS = -1.0\n"
        "async def work():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "        await asyncio.sleep(3600)\n"
        "    finally:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "        time.sleep(3600)\n"
        "signals.interruptible(work())\n"
    )
    program = programs.start(code, cwd=tmp_path)
    assert program.wait() == -TERM
    assert program.stderr.read_text() == ""
    assert signals._SAME_SIGNAL_SECONDS > 0
