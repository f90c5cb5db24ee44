"""The temporary folder of a coding run goes when the run does, or with the next one; nothing else is ever touched."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.support.process_table import written

from batch_agent import BatchAgent, ProcessRuntime
from batch_agent.programs import scratch_dir as scratch
from batch_agent.programs.scratch_dir import remove_abandoned, scratch_folder
from batch_agent.testing import ScriptedBackend, say

_HOLDS = """
import os, pathlib, signal, sys
from batch_agent.programs.scratch_dir import scratch_folder

with scratch_folder() as folder:
    inner = folder / "copy" / "read-only"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (inner / "link").symlink_to(sys.argv[1])
    inner.chmod(0o500)
    if sys.argv[2] == "forks":
        if os.fork() == 0:
            signal.pause()
    print(folder, flush=True)
    signal.pause()
"""
_RUNS = """
import asyncio, sys
from batch_agent import BatchAgent, ProcessRuntime
from batch_agent.testing import ScriptedBackend, say

asyncio.run(BatchAgent.run(task="Do {it}", inputs=["a", "b"], backend=ScriptedBackend(lambda _: say("x")),
                           runtime=ProcessRuntime(["sh", "-c", sys.argv[1]], workdir=sys.argv[2])))
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the one that all others use."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder.resolve()


def holder(precious: Path, how: str = "waits") -> tuple["subprocess.Popen[str]", Path]:
    """A process that has a folder, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(precious), how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(precious: Path) -> Path:
    process, folder = holder(precious)
    process.kill()
    process.communicate()
    assert (folder / "copy" / "read-only" / "file").exists()
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "work").write_text("mine")
    return folder


def test_the_scratch_dir_of_a_killed_run_is_removed_without_following_links(precious: Path, temporary: Path) -> None:
    folders = {killed(precious) for _ in range(2)}
    assert set(temporary.iterdir()) == folders
    remove_abandoned()
    assert list(temporary.iterdir()) == []
    assert (precious / "work").read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGSTOP, None])
def test_the_scratch_dir_of_a_running_run_is_kept(precious: Path, number: signal.Signals | None) -> None:
    process, folder = holder(precious)
    try:
        if number is not None:
            process.send_signal(number)
        remove_abandoned()
        assert (folder / "copy" / "read-only" / "file").exists()
    finally:
        process.kill()
        process.communicate()


def test_the_scratch_dir_of_another_run_in_this_process_is_kept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch_folder() as one, scratch_folder() as other:
        remove_abandoned()
        assert {*temporary.iterdir()} == {one, other}
        monkeypatch.setattr(scratch, "_in_use", set())  # the lock alone keeps it, too
        remove_abandoned()
        assert {*temporary.iterdir()} == {one, other}
    assert list(temporary.iterdir()) == []


def test_a_forked_child_that_is_still_running_keeps_the_scratch_dir(precious: Path) -> None:
    process, folder = holder(precious, "forks")
    try:
        process.kill()
        process.wait()
        remove_abandoned()
        assert folder.exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    "change", ["no marker", "linked marker", "other words", "other machine", "open to others", "marker with two names"]
)
def test_a_scratch_dir_with_a_doubtful_owner_is_kept(change: str, precious: Path, tmp_path: Path) -> None:
    folder = killed(precious)
    marker = folder / "owner.lock"
    magic, host, boot = marker.read_text().splitlines()
    match change:
        case "no marker":
            marker.unlink()
        case "linked marker":
            marker.rename(tmp_path / "marker")
            marker.symlink_to(tmp_path / "marker")
        case "other words":
            marker.write_text(f"something else\n{host}\n{boot}\n")
        case "other machine":
            marker.write_text(f"{magic}\nelsewhere\n0000\n")
        case "open to others":
            folder.chmod(0o755)
        case "marker with two names":
            (tmp_path / "marker").hardlink_to(marker)
    remove_abandoned()
    assert (folder / "copy" / "read-only" / "file").exists()


def test_other_files_with_similar_names_are_kept(precious: Path, temporary: Path) -> None:
    (temporary / "batch-agent-run-link").symlink_to(precious)
    (temporary / "batch-agent-run-file").write_text("x")
    (temporary / "batch-agent-run-folder").mkdir(mode=0o700)
    (temporary / "batch-agent-copies-kept").mkdir(mode=0o700)
    before = set(temporary.iterdir())
    remove_abandoned()
    assert set(temporary.iterdir()) == before
    assert (precious / "work").exists()


def test_a_scratch_dir_that_cannot_be_removed_is_removed_by_a_later_run(
    precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed(precious)
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "erase", lambda path: False)
        remove_abandoned()
        assert (folder / "owner.lock").exists()
    remove_abandoned()
    assert not folder.exists()


def test_a_temporary_directory_that_cannot_be_listed_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    remove_abandoned()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_removes_the_scratch_dir_of_a_killed_run(
    number: signal.Signals, temporary: Path, precious: Path, tmp_path: Path
) -> None:
    script = f"echo there > {tmp_path}/note; exec sleep 600"
    first = await asyncio.create_subprocess_exec(sys.executable, "-c", _RUNS, script, str(precious))
    await written(tmp_path / "note")
    first.send_signal(number)
    await first.wait()
    [left] = temporary.glob("batch-agent-run-*")
    assert list(left.rglob("work"))
    program = ProcessRuntime(["sh", "-c", "ls $TMPDIR; cat work"], workdir=precious)
    [result] = await BatchAgent.run(
        task="Do {it}", inputs=["a"], backend=ScriptedBackend(lambda _: say("x")), runtime=program
    )
    assert result.output.splitlines()[-1] == "mine"
    assert left.name not in result.output
    assert list(temporary.glob("batch-agent-*")) == []
