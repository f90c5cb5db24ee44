"""run_sync: in a script, inside a running loop, and under Ctrl-C."""

import contextvars
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Programs

from batch_agent import BatchAgent, SpecError
from batch_agent.sim import SimServer
from batch_agent.testing import ScriptedBackend, say


def run_sync(**options: Any) -> list[str]:
    options.setdefault("backend", ScriptedBackend(lambda request: say("done")))
    return [result.text for result in BatchAgent.run_sync(task="{it}", inputs=["a", "b"], **options)]


def test_run_sync_works_in_a_script() -> None:
    assert run_sync() == ["done", "done"]
    assert run_sync() == ["done", "done"]


async def test_run_sync_works_inside_a_running_event_loop() -> None:
    assert run_sync() == ["done", "done"]
    assert not [thread for thread in threading.enumerate() if thread.name == "batch-agent-run"]


async def test_run_sync_raises_errors_also_inside_a_running_event_loop() -> None:
    with pytest.raises(SpecError, match="Unknown option"):
        run_sync(max_turnz=3)
    with pytest.raises(SpecError, match="Input 0"):
        BatchAgent.run_sync(task="{it}", inputs=[{"that": 1}], backend=ScriptedBackend(lambda request: say("done")))


async def test_run_sync_keeps_context_variables() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("me")
    seen: list[str] = []
    run_sync(on_result=lambda result: seen.append(who.get()))
    assert seen == ["me", "me"]


SCRIPT = """
import asyncio, os, sys, threading
from batch_agent import BatchAgent, Tool

@Tool.define
def hang(key: str) -> str:
    sys.stdout.write("hangs\\n")
    sys.stdout.flush()
    threading.Event().wait()

def main():
    BatchAgent.run_sync(
        task="{it}",
        inputs=["use the tool", 'stall [[sim: {"fault": "stall", "stall_s": 60}]]'] * 3,
        tools=[hang],
        backend=sys.argv[1],
        checkpoint_dir=sys.argv[2],
        timeout_per_tool=None,
    )

async def beside():
    main()

os.setsid()
match sys.argv[3]:
    case "a script":
        main()
    case "a coroutine":
        asyncio.run(beside())
    case "a notebook":
        asyncio.new_event_loop().run_until_complete(beside())
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["a script", "a coroutine", "a notebook"])
def test_a_keyboard_interrupt_ends_run_sync_promptly(
    sim: SimServer, tmp_path: Path, where: str, programs: Programs
) -> None:
    os.mkfifo(tmp_path / "stdout")
    program = programs.start(SCRIPT, sim.url, str(tmp_path / "checkpoint"), where, stdout=tmp_path / "stdout")
    with (tmp_path / "stdout").open() as lines:
        assert lines.readline().startswith("hangs")
        program.send_signal(signal.SIGINT)
        assert program.wait() == -signal.SIGINT
    said = program.stderr.read_text()
    assert said.rstrip().endswith("KeyboardInterrupt")
    for noise in ("never retrieved", "was destroyed", "Exception ignored", "Exception in thread", "never awaited"):
        assert noise not in said
    with pytest.raises(ProcessLookupError):  # nobody of its session is left
        os.killpg(program.pid, 0)
