"""What a run did, from its checkpoint, as the command shows it."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Programs, typed

from batch_agent import BackendError, BatchAgent, ErrorKind, SpecError, StoreError, Tool, Usage
from batch_agent.cli.commands.inspect import inspect
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, say


@Tool.define(effect="read")
async def look(name: str) -> str:
    """Look up."""
    return f"about {name}"


def answer(request: Request) -> Answer:
    number = int(request.messages[0].text.split()[-1])  # type: ignore[union-attr]
    if number % 100 == 7:
        return say("no number")
    if number % 100 == 8:
        return BackendError(ErrorKind.BAD_REQUEST, "down")
    if number % 100 == 9:
        return by_turn(call("look", name="x"), say("9"))(request)  # type: ignore[return-value]
    return say(str(number), Usage(100, 50, 10))


async def run(folder: Path, inputs: Any, **options: Any) -> None:
    options = {"output_schema": int, "tools": [look], **options}
    await BatchAgent.run(
        task="Zähle: {it}", inputs=inputs, backend=ScriptedBackend(answer), checkpoint_dir=folder, **options
    )


@pytest.mark.slow
async def test_the_summary_counts_every_state_of_two_thousand_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(tmp_path, map(str, range(2000)))
    inspect(tmp_path)
    said = capsys.readouterr().out
    assert "task      Zähle: {it}" in said
    assert "model     scripted, max 10 turns, answers: JSON with a schema" in said
    assert "tools     look (native tool calls)" in said
    assert "agents    2,000: 1,960 answered, 40 failed\n" in said
    assert "20 invalid_output, 20 bad_request" in said
    assert "usage     194,000 tokens in (50% cached), 19,400 out" in said
    assert "calls     20: " in said
    assert said.count("\nslowest ") == 5
    assert [line.split()[1] for line in said.splitlines() if line.startswith("failed ")] == [
        "7", "8", "107", "108", "207",
    ]  # fmt: skip


async def test_inspect_shows_an_agent_by_index_or_key_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(tmp_path, ["1", "9"])
    inspect(tmp_path, agent="1")
    by_index = capsys.readouterr().out
    assert by_index.startswith("Agent 1 ")
    assert by_index.endswith("answered  9\n")
    key = by_index.split()[3]
    inspect(tmp_path, agent=key[:10])
    assert capsys.readouterr().out == by_index


async def test_inspect_shows_a_run_in_action_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(lambda request: say('{"final": "yes"}'), native_tools=False)
    await BatchAgent.run(task="{it}", inputs=["a"], backend=backend, checkpoint_dir=tmp_path, tools=[look])
    inspect(tmp_path)
    said = capsys.readouterr().out
    assert "answers: text" in said
    assert "tools     look (one JSON action per turn)" in said
    assert "system    You use tools." in said
    assert "1 answered" in said


@pytest.mark.slow
async def test_inspect_output_in_a_pipe_is_not_wrapped_and_has_no_color(tmp_path: Path) -> None:
    await run(tmp_path, ["[bold]" + "ü" * 150 + " 1"])
    done = typed("inspect", str(tmp_path), "--agent", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"task      Zähle: [bold]{'ü' * 150} 1\n" in done.stdout
    assert "\x1b" not in done.stdout


async def test_an_unknown_agent_is_an_error_that_lists_known_agents(tmp_path: Path) -> None:
    await run(tmp_path, ["1"])
    with pytest.raises(SpecError, match="There is no agent 'nobody'"):
        inspect(tmp_path, agent="nobody")


def test_inspecting_a_folder_without_a_checkpoint_is_a_one_line_error(tmp_path: Path, programs: Programs) -> None:
    with pytest.raises(StoreError, match="There is no checkpoint"):
        inspect(tmp_path)
    done = programs.call("inspect", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
