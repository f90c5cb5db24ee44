"""Claude Code is a guest: whatever it does, the call ends, and nothing of it stays. With executables that stand in."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.process_table import gone, written

from batch_agent.core.messages import ToolCall
from batch_agent.tools import Tool, ToolExecutor
from batch_agent.tools.builtin.claude_code import ClaudeCodeError, claude_code_tool

_DONE = json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "It is done."})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def stand_in(folder: Path, script: str, **options: float) -> Tool:
    """A tool whose claude is a shell script; it works in `folder`."""
    command = folder / "claude"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return claude_code_tool(str(command), cwd=folder, args=("--max-turns", "3"), **options)  # type: ignore[arg-type]


async def test_the_result_of_the_json_answer_is_the_result(folder: Path) -> None:
    assert await stand_in(folder, f"echo '{_DONE}'")(task="Do it.") == "It is done."


async def test_claude_code_runs_in_its_folder_with_its_options_and_the_task_on_stdin(folder: Path) -> None:
    tool = stand_in(folder, f"""echo "$@" > args; cat > task; pwd > here; echo '{_DONE}'""")
    await tool(task="--dangerous 'quoted'\nö")
    assert (folder / "args").read_text() == "-p --output-format json --max-turns 3\n"
    assert (folder / "task").read_text() == "--dangerous 'quoted'\nö"
    assert (folder / "here").read_text().strip() == str(folder.resolve())


async def test_an_unread_stdin_of_claude_code_is_no_error(folder: Path) -> None:
    assert await stand_in(folder, f"echo '{_DONE}'")(task="x" * 1_000_000) == "It is done."


async def test_a_missing_command_says_how_to_install_it() -> None:
    with pytest.raises(ClaudeCodeError, match=r"'no-such-claude' is not installed here.*npm install"):
        await claude_code_tool("no-such-claude")(task="Do it.")


async def test_a_folder_that_does_not_exist_is_an_error(folder: Path) -> None:
    stand_in(folder, "true")
    with pytest.raises(ClaudeCodeError, match="cannot be started"):
        await claude_code_tool(str(folder / "claude"), cwd=folder / "missing")(task="Do it.")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Invalid API key' >&2; exit 1", "exit status 1 .*Invalid API key"),
        ("exit 3", "exit status 3 .*it wrote nothing"),
        ('echo \'{"result": "half\'', "without a JSON result.*half"),
        ("echo '[1]'", "without a JSON result"),
        ("printf '\\377\\376'", "without a JSON result"),
        ('echo \'{"is_error": true, "subtype": "success", "result": "no credit"}\'', r"gave up \(success\): no credit"),
        ('echo \'{"is_error": false, "subtype": "error_max_turns"}\'', r"gave up \(error_max_turns\)"),
        (f"echo '{_DONE}'; exit 1", "gave up"),
        ("kill -9 $$", "exit status -9"),
    ],
)
async def test_errors_of_claude_code_are_reported_in_its_words(folder: Path, script: str, says: str) -> None:
    with pytest.raises(ClaudeCodeError, match=says):
        await stand_in(folder, script)(task="Do it.")


async def test_a_flood_on_stdout_is_stopped(folder: Path) -> None:
    with pytest.raises(ClaudeCodeError, match="more than 4000000 bytes"):
        await stand_in(folder, "yes")(task="Do it.")


async def test_a_flood_on_stderr_neither_blocks_nor_fills_the_memory(folder: Path) -> None:
    noisy = f"head -c 3000000 /dev/zero | tr '\\0' x >&2; echo '{_DONE}'"
    assert await stand_in(folder, noisy)(task="Do it.") == "It is done."


async def test_a_child_that_it_leaves_behind_is_killed_and_not_waited_for(folder: Path) -> None:
    tool = stand_in(folder, f"sleep 600 & echo $! > child; echo '{_DONE}'")
    assert await tool(task="Do it.") == "It is done."
    await gone(int((folder / "child").read_text()))


async def test_cancelling_the_call_kills_it_and_its_children(folder: Path) -> None:
    tool = stand_in(folder, "sleep 600 & echo $! $$ > both; wait")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(tool(task="Do it."))
        child, parent = (await written(folder / "both")).split()
        call.cancel()
    await gone(int(child))
    await gone(int(parent))


@pytest.mark.slow
async def test_a_call_that_hangs_ends_at_its_timeout_and_leaves_nothing(folder: Path) -> None:
    tool = stand_in(folder, "trap '' TERM INT; echo $$ > me; while true; do sleep 600; done", timeout=1.5)
    executor = ToolExecutor([tool], timeout=30.0, max_tokens=1000)
    [result] = await executor.session("a").results([ToolCall("c", "claude_code", '{"task": "Do it."}')])
    await executor.aclose()
    assert result.is_error
    assert "1.5 s" in result.content
    if (said := (folder / "me")).exists() and said.read_text().strip():  # a slow machine may not have come so far
        await gone(int(said.read_text()))


def test_claude_code_calls_are_never_shared() -> None:
    tool = claude_code_tool()
    assert (tool.sharing.effect, tool.limits.max_concurrent) == ("write", 4)


async def test_claude_code_gets_its_own_keys_and_no_other_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "api_key"):
        monkeypatch.setenv(name, f"value of {name}")
    script = f"env > got; echo '{_DONE}'"
    await stand_in(folder, script)(task="Do it.")
    got = (folder / "got").read_text()
    assert "value of ANTHROPIC_API_KEY" in got
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "api_key"):
        assert f"value of {name}" not in got
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    await claude_code_tool(str(folder / "claude"), cwd=folder, env={"HF_TOKEN": "given"})(task="Do it.")
    got = (folder / "got").read_text()
    assert "value of AWS_SECRET_ACCESS_KEY" in got
    assert "HF_TOKEN=given" in got
