"""`batch-agent resume`: the command that made a checkpoint, again, from anywhere."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call, Programs, typed
from tests.support.stalls import write_inputs
from tests.support.waits import wait_for_rows

from batch_agent import BatchAgent
from batch_agent.cli.saved_command import read_command
from batch_agent.cli.signature import is_own, secret_file, sign
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, say


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(step_base_ms=2), Script(answer_tokens=6)) as sim:
        yield sim.url


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def prepared(place: Path, url: str, inputs: int = 4) -> list[str]:
    place.mkdir()
    (place / "mine.py").write_text("def look(name: str) -> str:\n    '''Look up.'''\n    return name + ' ✓'\n")
    (place / "schema.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    (place / "in.jsonl").write_text("".join(f'{{"name": "Zoë {i}"}}\n' for i in range(inputs)))
    return [
        "run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--out", "runs/out.jsonl", "--schema", "schema.json",
        "--tools", "mine:look", "--backend", url, "--max-inflight", "2", "--max-retries", "1", "--temperature", "0.5",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_is_resumed_from_any_folder(tmp_path: Path, sim_url: str, programs: Programs) -> None:
    words = prepared(tmp_path / "here", sim_url)
    write_inputs(tmp_path / "here" / "in.jsonl", "name", [f"Zoë {i}" for i in range(30)], stalled=(4, 5))
    checkpoint = tmp_path / "here" / "runs" / "out.jsonl.checkpoint"
    program = programs.start_command(*words, cwd=tmp_path / "here")
    wait_for_rows(tmp_path / "here" / "runs" / "out.jsonl", 4)
    program.send_signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    done = len(rows(tmp_path / "here" / "runs" / "out.jsonl"))
    assert done < 30
    away = tmp_path / "away"
    away.mkdir()
    moved = checkpoint.rename(away / "moved")
    again = typed("resume", "moved", cwd=away)
    assert again.returncode == 0, again.stderr
    assert "30 of 30 agents answered" in again.stderr
    assert "answers restored from the checkpoint" in again.stderr
    assert [path.name for path in away.iterdir()] == ["moved"]
    found = rows(tmp_path / "here" / "runs" / "out.jsonl")
    assert sorted(row["index"] for row in found) == list(range(30))
    assert all(row["tool_calls"] for row in found)
    assert not list(moved.glob(".command*"))


def test_a_rejected_command_does_not_replace_the_recorded_command(tmp_path: Path, sim_url: str, call: Call) -> None:
    words = prepared(tmp_path / "here", sim_url)
    assert call(*words, cwd=tmp_path / "here").returncode == 0
    refused = call(*words, "--model", "another", cwd=tmp_path / "here")
    assert refused.returncode == 2
    place, options = read_command(tmp_path / "here" / "runs" / "out.jsonl.checkpoint")
    assert place == tmp_path / "here"
    assert options["model"] is None
    assert options["inputs"] == tmp_path / "here" / "in.jsonl"
    assert options["schema"] == str(tmp_path / "here" / "schema.json")
    assert (options["max_retries"], options["temperature"]) == (1, 0.5)


def test_a_password_is_not_recorded_and_must_be_given_again(tmp_path: Path, sim_url: str, call: Call) -> None:
    words = prepared(tmp_path / "here", sim_url.replace("://", "://me:s3cret@"))
    first = call(*words, cwd=tmp_path / "here")
    assert first.returncode == 0, first.stderr
    checkpoint = tmp_path / "here" / "runs" / "out.jsonl.checkpoint"
    assert "s3cret" not in (checkpoint / "command.json").read_text()
    refused = call("resume", str(checkpoint), cwd=tmp_path)
    assert refused.returncode == 2
    assert "--backend URL" in refused.stderr
    again = call("resume", str(checkpoint), "--backend", sim_url, cwd=tmp_path)
    assert again.returncode == 0, again.stderr


async def test_resuming_a_checkpoint_of_python_code_says_how_to_resume(tmp_path: Path, call: Call) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    await BatchAgent.run(task="{it}", inputs=["a"], backend=backend, checkpoint_dir=tmp_path)
    done = call("resume", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "run the same code again" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_invalid_resume_command_is_a_one_line_error(tmp_path: Path, sim_url: str, call: Call) -> None:
    assert "There is no checkpoint" in call("resume", "nothing", cwd=tmp_path).stderr
    words = prepared(tmp_path / "here", sim_url)
    assert call(*words, "--checkpoint", str(tmp_path / "kept"), cwd=tmp_path / "here").returncode == 0
    (tmp_path / "here").rename(tmp_path / "gone")
    assert "cannot be entered" in call("resume", "kept", cwd=tmp_path).stderr
    (tmp_path / "kept" / "command.json").write_text('{"format": 99}')
    assert "newer version" in call("resume", "kept", cwd=tmp_path).stderr
    (tmp_path / "kept" / "command.json").write_text("{")
    assert "cannot be read" in call("resume", "kept", cwd=tmp_path).stderr
    for odd in ("[]", "{}", '{"format": "x"}', '{"format": 3, "working_directory": 1, "options": [], "paths": {}}'):
        (tmp_path / "kept" / "command.json").write_text(odd)
        done = call("resume", "kept", cwd=tmp_path)
        assert (done.returncode, "cannot be read" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_a_checkpoint_of_another_user_is_not_resumed_without_confirmation(
    tmp_path: Path, sim_url: str, call: Call
) -> None:
    """Nothing is imported, sent or written; with --trust it is, and it is one's own from then on."""
    theirs, checkpoint = (
        {"XDG_CONFIG_HOME": str(tmp_path / "theirs")},
        tmp_path / "here" / "runs" / "out.jsonl.checkpoint",
    )
    words = prepared(tmp_path / "here", sim_url)
    (tmp_path / "here" / "mine.py").write_text(
        "from pathlib import Path\nPath('ran').touch()\ndef look(name: str) -> str:\n    return name\n"
    )
    assert call(*words, cwd=tmp_path / "here", **theirs).returncode == 0
    for file in (tmp_path / "here" / "ran", tmp_path / "here" / "runs" / "out.jsonl"):
        file.unlink()
    mine = {"XDG_CONFIG_HOME": str(tmp_path / "mine"), "OPENAI_API_KEY": "sk-mine"}
    refused = call("resume", str(checkpoint), cwd=tmp_path, **mine)
    assert refused.returncode == 2
    said = refused.stderr
    for word in ("run the code of mine", "use your OPENAI_API_KEY for http", "in.jsonl'", "out.jsonl'", "add --trust"):
        assert word in said
    assert not (tmp_path / "here" / "ran").exists()
    assert not (tmp_path / "here" / "runs" / "out.jsonl").exists()
    assert call("resume", str(checkpoint), "--trust", cwd=tmp_path, **mine).returncode == 0
    assert (tmp_path / "here" / "ran").exists()
    again = call("resume", str(checkpoint), cwd=tmp_path, **mine)
    assert again.returncode == 0, again.stderr


def test_a_changed_recorded_command_has_no_valid_signature(tmp_path: Path, sim_url: str, call: Call) -> None:
    words = prepared(tmp_path / "here", sim_url)
    assert call(*words, cwd=tmp_path / "here").returncode == 0
    checkpoint = tmp_path / "here" / "runs" / "out.jsonl.checkpoint"
    file = checkpoint / "command.json"
    kept = file.read_text()
    for old, new in ((sim_url, "openai://attacker.example"), ("out.jsonl", "other.jsonl"), ("mine:look", "mine:evil")):
        assert old in kept
        file.write_text(kept.replace(old, new))
        refused = call("resume", str(checkpoint), cwd=tmp_path)
        assert (refused.returncode, "add --trust" in refused.stderr) == (2, True)
    file.write_text(kept)
    assert call("resume", str(checkpoint), cwd=tmp_path).returncode == 0


def test_a_run_works_without_a_folder_for_the_signing_secret(tmp_path: Path, sim_url: str, call: Call) -> None:
    words = prepared(tmp_path / "here", sim_url)
    (tmp_path / "file").touch()
    nowhere = {"XDG_CONFIG_HOME": str(tmp_path / "file")}
    assert call(*words, cwd=tmp_path / "here", **nowhere).returncode == 0
    checkpoint = tmp_path / "here" / "runs" / "out.jsonl.checkpoint"
    refused = call("resume", str(checkpoint), cwd=tmp_path, **nowhere)
    assert (refused.returncode, "add --trust" in refused.stderr) == (2, True)


def test_the_signing_secret_is_private_and_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = sign(b"it")
    assert first is not None
    assert sign(b"it") == first
    assert is_own(b"it", first)
    for data, signature in ((b"that", first), (b"it", None), (b"it", ""), (b"it", "é"), (b"it", 3)):
        assert not is_own(data, signature)
    assert secret_file().stat().st_mode & 0o777 == 0o600
    assert secret_file().parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in secret_file().parent.iterdir()] == ["checkpoint.key"]
    secret_file().write_bytes(b"short")
    assert sign(b"it") is None
    assert not is_own(b"it", first)
