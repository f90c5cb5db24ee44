"""Ctrl-C during a run from Python: one line says what is kept and how to resume. Real programs and signals."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.support.forked_programs import Programs
from tests.support.redis_server import RedisServer, redis_server

from batch_agent.sim import SimServer

__all__ = ["redis_server"]

PROGRAM = """
import asyncio, json, sys
from batch_agent import BatchAgent, Flow

STALLS = 'stall [[sim: {"fault": "stall", "stall_s": 60}]]'
given = json.loads(sys.argv[2])
inputs = ["one", "two", "three", *[STALLS] * 4]
done = 0

def on_result(result):
    global done
    done += 1
    if done == 3:
        print("three", flush=True)

class Sink:
    def emit(self, event):
        pass

common = {"backend": sys.argv[1], "tool_mode": "action"}
match given.pop("call", "run"):
    case "run":
        BatchAgent.run_sync(task="{it}", inputs=inputs, on_result=on_result, **common, **given)
    case "iterator":
        BatchAgent.run_sync(task="{it}", inputs=iter(inputs), on_result=on_result, **common, **given)
    case "with a sink":
        BatchAgent.run_sync(task="{it}", inputs=inputs, on_result=on_result, events=Sink(), **common, **given)
    case "asyncio.run":
        asyncio.run(BatchAgent.run(task="{it}", inputs=inputs, on_result=on_result, **common, **given))
    case "caught":
        try:
            asyncio.run(BatchAgent.run(task="{it}", inputs=inputs, on_result=on_result, **common, **given))
        except KeyboardInterrupt as stopped:
            sys.exit(str(stopped.__context__))
    case "task group":
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    BatchAgent.run(task="{it}", inputs=inputs, on_result=on_result, **common, **given)
                )

        asyncio.run(main())
    case "flow":
        stage, progress = {"out": given.pop("out", None)}, given.pop("progress", None)
        Flow(inputs, **common, **given).map("a", "{it}", on_result=on_result, **stage).run_sync(progress=progress)
"""
ALL_KEPT = "everything so far is kept in 'ck'. To resume: run the same code again."
RESULTS_KEPT = "their results are in 'out.jsonl', but the next run starts over. With checkpoint_dir=, it would resume."
NOTHING_KEPT = "nothing is kept. With checkpoint_dir=, the next run would resume."


def interrupted(
    programs: Programs, folder: Path, url: str, given: dict[str, object], status: int = -signal.SIGINT
) -> str:
    """What a program says that is interrupted when 3 of its 7 agents are done."""
    os.mkfifo(folder / "stdout")
    program = programs.start(PROGRAM, url, json.dumps(given), cwd=folder, stdout=folder / "stdout")
    with (folder / "stdout").open() as lines:
        assert lines.readline() == "three\n", program.stderr.read_text()
        program.send_signal(signal.SIGINT)
        assert program.wait() == status
    return program.stderr.read_text()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"checkpoint_dir": "ck"}, f"Stopped. 3 of 7 agents are done; {ALL_KEPT}"),
        ({"checkpoint_dir": "ck", "out": "out.jsonl"}, f"Stopped. 3 of 7 agents are done; {ALL_KEPT}"),
        ({"out": "out.jsonl"}, f"Stopped. 3 of 7 agents are done; {RESULTS_KEPT}"),
        ({}, f"Stopped. 3 of 7 agents are done; {NOTHING_KEPT}"),
        ({"call": "iterator"}, f"Stopped. 3 agents are done; {NOTHING_KEPT}"),
        ({"call": "with a sink", "progress": False}, f"Stopped. 3 of 7 agents are done; {NOTHING_KEPT}"),
        ({"call": "flow", "checkpoint_dir": "ck"}, f"Stopped. The flow is not finished; {ALL_KEPT}"),
        ({"call": "flow"}, f"Stopped. The flow is not finished; {NOTHING_KEPT}"),
    ],
    ids=str,
)
def test_the_exception_says_what_is_kept(
    sim: SimServer, programs: Programs, tmp_path: Path, given: dict[str, object], line: str
) -> None:
    said = interrupted(programs, tmp_path, sim.url, given)
    assert said.splitlines()[-1] == f"KeyboardInterrupt: {line}"
    assert said.count("Traceback") == 1
    assert "During handling" not in said
    assert "CancelledError" not in said
    if "out" in given:
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


def test_under_asyncio_run_the_message_is_that_of_the_cancellation(
    sim: SimServer, programs: Programs, tmp_path: Path
) -> None:
    """asyncio raises a KeyboardInterrupt of its own, without a message, while it handles the cancellation."""
    said = interrupted(programs, tmp_path, sim.url, {"call": "asyncio.run", "checkpoint_dir": "ck"})
    line = f"asyncio.exceptions.CancelledError: Stopped. 3 of 7 agents are done; {ALL_KEPT}"
    assert said.splitlines().count(line) == 1
    assert said.count("Stopped.") == 1
    assert said.count("Traceback") == 2
    assert said.splitlines()[-1] == "KeyboardInterrupt"


def test_a_program_that_catches_the_interrupt_prints_one_line(
    sim: SimServer, programs: Programs, tmp_path: Path
) -> None:
    said = interrupted(programs, tmp_path, sim.url, {"call": "caught", "checkpoint_dir": "ck"}, status=1)
    assert said == f"Stopped. 3 of 7 agents are done; {ALL_KEPT}\n"


def test_progress_says_what_is_kept_also_where_a_task_group_drops_the_message(
    sim: SimServer, programs: Programs, tmp_path: Path
) -> None:
    given: dict[str, object] = {"call": "task group", "progress": True, "checkpoint_dir": "ck"}
    shown, _, trace = interrupted(programs, tmp_path, sim.url, given).partition("Traceback")
    assert shown.endswith(f"\nReport: ck/report.html\nStopped. 3 of 7 agents are done; {ALL_KEPT}\n")
    assert "Stopped." not in trace


def test_progress_of_a_shared_run_is_kept_in_its_store(
    sim: SimServer, programs: Programs, tmp_path: Path, redis_server: RedisServer
) -> None:
    given: dict[str, object] = {"store": redis_server.url, "run_id": tmp_path.name}
    said = interrupted(programs, tmp_path, sim.url, given)
    kept = (
        f"everything so far is kept on {redis_server.url} as run {tmp_path.name!r}. To resume: run the same code again."
    )
    assert re.search(f"KeyboardInterrupt: Stopped. [0-3] of 7 agents are done; {re.escape(kept)}$", said.rstrip())


@pytest.mark.parametrize("call", ["run", "with a sink", "flow"])
def test_where_progress_is_shown_the_summary_stays(
    sim: SimServer, programs: Programs, tmp_path: Path, call: str
) -> None:
    """Also next to a sink of the caller, if progress=True."""
    given: dict[str, object] = {"call": call, "progress": True, "checkpoint_dir": "ck", "out": "out.jsonl"}
    shown, trace = interrupted(programs, tmp_path, sim.url, given).split("Traceback")
    counts = "a: 3 of 7 agents answered " if call == "flow" else "3 of 7 agents answered, 4 not finished after "
    done = "3 agents are done" if call == "flow" else "3 of 7 agents are done"
    assert f"\n{counts}" in f"\n{shown}"
    assert shown.endswith(f"Results: out.jsonl\nReport: ck/report.html\nStopped. {done}; {ALL_KEPT}\n")
    assert trace.rstrip().endswith("KeyboardInterrupt")


def test_a_run_that_ends_leaves_its_summary(sim: SimServer, programs: Programs, tmp_path: Path) -> None:
    code = (
        "import sys; from batch_agent import BatchAgent\n"
        "BatchAgent.run_sync(task='{it}', inputs=['a', 'b'], backend=sys.argv[1], checkpoint_dir='ck', progress=True)"
    )
    program = programs.start(code, sim.url, cwd=tmp_path)
    assert program.wait() == 0
    said = program.stderr.read_text()
    assert "\n2 of 2 agents answered in " in said
    assert said.endswith("\nReport: ck/report.html\n")
    assert "Stopped" not in said
