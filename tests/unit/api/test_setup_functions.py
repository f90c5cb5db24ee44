"""What the set-up of a plain run touches, and what it leaves alone."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent
from batch_agent.plan.lint import find_prefix_breaks
from batch_agent.testing import ScriptedBackend, by_turn, call, say

ROOT = Path(__file__).parents[3]
_UNUSED = (
    "engine/long_inputs/chunking_executor",
    "engine/long_inputs/input_chunker",
    "engine/recorded_backend",
    "plan/lint",
    "plan/prefix_report",
    "run/complete_checkpoint",
    "run/plan_check",
    "run/replay",
    "tools/executor",
)


@pytest.fixture(scope="module")
def counted() -> subprocess.CompletedProcess[str]:
    """In a process of its own, where nothing is cached."""
    command = [sys.executable, "-m", "scripts.setup_functions"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_setup_of_a_plain_run_touches_few_files(counted: subprocess.CompletedProcess[str]) -> None:
    assert counted.returncode == 0, counted.stdout + counted.stderr


@pytest.mark.parametrize("file", _UNUSED)
def test_a_plain_run_does_not_pay_for_what_it_does_not_use(
    counted: subprocess.CompletedProcess[str], file: str
) -> None:
    assert list((ROOT / "src/batch_agent").glob(f"{file}*")), f"{file} was renamed: name it here as it is now"
    assert "run/runner" in counted.stdout
    assert f"  {file}" not in counted.stdout


def _linted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def recorded(system: str, *args: Any, **options: Any) -> Any:
        seen.append(system)
        return find_prefix_breaks(system, *args, **options)

    monkeypatch.setattr("batch_agent.plan.prefix_report.find_prefix_breaks", recorded)
    return seen


async def test_prompts_of_one_agent_are_linted_once_and_only_when_the_report_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linted = _linted(monkeypatch)
    backend = ScriptedBackend(by_turn(say("yes")))
    options: dict[str, Any] = {"backend": backend, "progress": False, "system_prompt": "It is 2024-05-01 10:11:12."}
    results = await BatchAgent.run(task="{it}", inputs=[{"it": "one"}], **options)
    assert not linted
    assert results.prefix is not None
    assert [found.kind for found in results.prefix.findings] == ["timestamp"]
    assert results.failed.prefix == results.prefix
    assert len(linted) == 1


async def test_without_a_sink_lint_findings_are_printed_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = ScriptedBackend(by_turn(say("yes")))
    options: dict[str, Any] = {"backend": backend, "progress": False, "system_prompt": "It is 2024-05-01 10:11:12."}
    await BatchAgent.run(task="{it}", inputs=["one", "two"], **options)
    assert "2024-05-01" in capsys.readouterr().err


async def test_results_whose_report_was_not_read_can_be_pickled() -> None:
    results = await BatchAgent.run(
        task="{it}", inputs=["one"], backend=ScriptedBackend(by_turn(say("yes"))), progress=False
    )
    again = pickle.loads(pickle.dumps(results))
    assert (again.outputs, again.prefix) == (["yes"], results.prefix)


async def test_a_model_that_calls_a_tool_of_a_run_without_tools_reads_that_there_is_none() -> None:
    backend = ScriptedBackend(by_turn(call("look", at="it"), say("sorry")))
    [result] = await BatchAgent.run(task="{it}", inputs=["one"], backend=backend, progress=False)
    assert result.output == "sorry"
    assert "look" in str(backend.requests[-1].messages[-1])


async def _run(**options: Any) -> None:
    await BatchAgent.run(**options)


async def _stream(**options: Any) -> None:
    assert [result.output async for result in BatchAgent.stream(**options)] == ["x"]


@pytest.mark.parametrize("way", [_run, _stream])
async def test_a_task_without_fields_is_warned_about_at_the_line_of_the_caller(way: Any) -> None:
    backend = ScriptedBackend(by_turn(say("x")))
    with pytest.warns(UserWarning, match=r"names no \{field\}") as warned:
        await way(task="Say.", inputs=["a"], backend=backend, progress=False)
    assert warned[0].filename == __file__
