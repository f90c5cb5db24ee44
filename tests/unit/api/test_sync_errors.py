"""Errors of the blocking entry points: one exception, whose traceback shows the user's code."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.forked_programs import Programs

from batch_agent import BatchAgent, SpecError, Tool
from batch_agent.testing import ScriptedBackend, say

CALLS = {
    "unknown option": "BatchAgent.run_sync(task='{a}', inputs=[{'a': 1}], backend=B, max_inflght=3)",
    "bad value": "BatchAgent.run_sync(task='{a}', inputs=[{'a': 1}], backend=B, max_inflight=-3)",
    "spec and options": "BatchAgent.run_sync(BatchSpec.of(task='{a}', inputs=[]), task='x')",
    "unreachable": "BatchAgent.run_sync(task='{a}', inputs=[{'a': 1}], backend='vllm://127.0.0.1:9')",
    "unknown scheme": "BatchAgent.run_sync(task='{a}', inputs=[{'a': 1}], backend='vlm://127.0.0.1:9')",
    "missing field": "BatchAgent.run_sync(task='{a}', inputs=[{'b': 1}], backend=B)",
    "input of the wrong type": "BatchAgent.run_sync(task='{a}', inputs=5, backend=B)",
    "no such file": "BatchAgent.run_sync(task='{a}', inputs='none.jsonl', backend=B)",
    "invalid template": "BatchAgent.run_sync(task='{a.}', inputs=[{'a': 1}], backend=B)",
    "schema that is no type": "BatchAgent.run_sync(task='{a}', inputs=['x'], output_schema=len, backend=B)",
    "invalid JSON schema": "BatchAgent.run_sync(task='{a}', inputs=['x'], output_schema={'type': 'no'}, backend=B)",
    "tool that is no function": "BatchAgent.run_sync(task='{a}', inputs=[{'a': 1}], tools=[5], backend=B)",
    "sink that is none": "BatchAgent.run_sync(task='{a}', inputs=[{'a': 1}], events=5, backend=B)",
    "checkpoint that is a file": "BatchAgent.run_sync(task='{a}', inputs=['x'], checkpoint_dir=__file__, backend=B)",
    "results on a full disk": "BatchAgent.run_sync(task='{it}', inputs=['x'] * 3, out='full.jsonl', backend=B)",
    "field of a stage": "Flow([{'a': 1}], backend=B).map('x', '{b}').run_sync()",
    "unreachable for a flow": "Flow([{'a': 1}], backend='vllm://127.0.0.1:9').map('x', '{a}').run_sync()",
    "stopped flow": "Flow(['x'], backend=B, output_schema=int).map('x', '{it}', on_failure='stop').run_sync()",
}

PROGRAM = """
import asyncio, json, sys, threading, traceback
from batch_agent import BatchAgent, BatchSpec, Flow, SpecError
from batch_agent.testing import ScriptedBackend, say

B = ScriptedBackend(lambda request: say("x"))
__file__ = sys.argv[3]
shown = {}

def call_all():
    for name, code in json.loads(sys.argv[2]).items():
        try:
            exec(code, globals())
        except Exception:
            shown[name] = traceback.format_exc()

async def call_all_in_loop():
    call_all()

match sys.argv[1]:
    case "a script":
        call_all()
    case "a coroutine":
        asyncio.run(call_all_in_loop())
    case "a thread":
        thread = threading.Thread(target=call_all)
        thread.start()
        thread.join()
    case "a thread next to a loop":
        asyncio.run(asyncio.to_thread(call_all))
    case "a notebook":
        asyncio.new_event_loop().run_until_complete(call_all_in_loop())
print(json.dumps(shown))
"""


def tracebacks(programs: Programs, where: str, folder: Path, calls: Mapping[str, str]) -> dict[str, str]:
    (folder / "a_file").write_text("")
    (folder / "full.jsonl").symlink_to("/dev/full")
    program = programs.start(PROGRAM, where, json.dumps(calls), str(folder / "a_file"), cwd=folder)
    assert program.wait() == 0, program.stderr.read_text()
    shown: dict[str, str] = json.loads(program.stdout.read_text())
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("where", ["a script", "a coroutine", "a thread", "a thread next to a loop", "a notebook"])
def test_every_error_is_one_exception_with_the_frames_of_the_caller(
    programs: Programs, tmp_path: Path, where: str
) -> None:
    shown = tracebacks(programs, where, tmp_path, CALLS)
    assert shown.keys() == CALLS.keys()
    for name, text in shown.items():
        assert text.count("Traceback") == 1, f"{name}: {text}"
        assert "During handling" not in text
        assert "direct cause" not in text
        frames = [line for line in text.splitlines() if line.startswith('  File "')]
        assert len(frames) == 4, f"{name}: {text}"  # the program, the executed call, run_sync and run_blocking
        assert text.splitlines()[-1].startswith("batch_agent.core."), text


def test_the_exception_of_the_users_inputs_is_shown_as_the_cause(programs: Programs, tmp_path: Path) -> None:
    inputs = "def rows():\n    yield {'a': 1}\n    raise LookupError('no row')\n"
    calls = {
        "run": f"{inputs}BatchAgent.run_sync(task='{{a}}', inputs=rows(), backend=B)",
        "flow": f"{inputs}Flow(rows(), backend=B).map('x', '{{a}}').run_sync()",
    }
    for text in tracebacks(programs, "a script", tmp_path, calls).values():
        cause, own = text.split("\nThe above exception was the direct cause of the following exception:\n\n")
        assert cause.splitlines()[-1] == "LookupError: no row"
        assert "in rows" in cause
        assert "/batch_agent/" not in cause  # no frame of ours; Python 3.13 shows a line of what forked the program
        assert own.splitlines()[-1].endswith("RunStopped: Reading the inputs failed after 1: LookupError: no row")
        assert "During handling" not in text


def test_what_the_caller_handles_and_frames_of_the_callers_code_stay(programs: Programs, tmp_path: Path) -> None:
    rows = "def rows():\n    raise SpecError('the table is empty')\n    yield\n"
    calls = {
        "handling": "try:\n    {}['key']\nexcept KeyError:\n    BatchAgent.run_sync(tsk='')",
        "own code": f"{rows}BatchAgent.run_sync(task='{{it}}', inputs=rows(), backend=B)",
    }
    shown = tracebacks(programs, "a script", tmp_path, calls)
    assert "KeyError: 'key'" in shown["handling"]
    assert "no running event loop" not in shown["handling"]
    assert shown["own code"].count("Traceback") == 1
    assert "in rows" in shown["own code"]
    assert "job_source" not in shown["own code"]


def test_a_script_ends_with_the_message(tmp_path: Path) -> None:
    script = "from batch_agent import BatchAgent\nBatchAgent.run_sync(task='{a}', inputs=[], backnd='local://')\n"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert ended.returncode == 1
    assert ended.stderr.count("  File ") <= 3
    assert ended.stderr.splitlines()[-1].endswith("SpecError: Unknown option 'backnd'. Did you mean 'backend'?")


async def test_an_error_about_an_input_is_not_repeated_as_its_cause() -> None:
    backend = ScriptedBackend(lambda request: say("x"))
    with pytest.raises(SpecError, match="Input 0: The task names the field") as caught:
        await BatchAgent.run(task="{a}", inputs=[{"b": 1}], backend=backend)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_error_in_the_definition_of_a_tool_is_one_exception() -> None:
    def look(key: "Unknown") -> str:  # type: ignore[name-defined]  # noqa: F821
        """Look up."""
        return str(key)

    with pytest.raises(SpecError, match="its type hint 'Unknown' is not defined") as caught:
        Tool.define(look)
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
