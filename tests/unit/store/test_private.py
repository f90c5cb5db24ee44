"""Checkpoints, logs, reports and caches hold what agents read and said: others do not see it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call

from batch_agent import BatchAgent, Flow, SpecError, Tool
from batch_agent.atomic_file import atomic_write, make_private_dir
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, by_turn, call, say


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder.parent)): path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


def check_private(folder: Path, *expected: str) -> None:
    found = modes(folder)
    assert {Path(name).name for name in found} >= set(expected)
    assert [f"{name} {mode:o}" for name, mode in found.items() if mode & 0o077] == []


@Tool.define(effect="pure")
def look(name: str) -> str:
    """Look up."""
    return name


async def test_files_of_a_run_are_private_to_their_owner(tmp_path: Path) -> None:
    backend = ScriptedBackend(by_turn(call("look", name="a"), say("done")))
    folder, cache = tmp_path / "deep" / "checkpoint", tmp_path / "tools"
    seen: dict[str, int] = {}

    async for _ in BatchAgent.stream(
        task="{it}", inputs=["a"], backend=backend, tools=[look], checkpoint_dir=folder, tool_cache_dir=cache
    ):
        seen = modes(folder)  # with what SQLite has there only while it is open
    assert any(name.endswith("-wal") for name in seen)
    assert [name for name, mode in seen.items() if mode & 0o077] == []
    check_private(folder, "run.sqlite3", "run.lock", "events.jsonl", "report.html")
    check_private(cache)
    assert any(cache.iterdir())


async def test_files_of_a_flow_are_private_to_their_owner(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    folder = tmp_path / "flow"
    await Flow(["a"], backend=backend, checkpoint_dir=folder).map("one", "{it}").map("two", "{one}").run()
    check_private(folder, "one", "two", "run.sqlite3")


@pytest.mark.slow
def test_files_of_the_command_line_are_private_to_their_owner(tmp_path: Path, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "a"}\n')
    asks = ("--task", "Who is {name}?", "--inputs", "in.jsonl")
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        assert call("plan", *asks, "--backend", sim.url, cwd=tmp_path).returncode == 0
        assert call("run", *asks, "--backend", sim.url, cwd=tmp_path).returncode == 0
    check_private(tmp_path / "results.jsonl.checkpoint", "run.sqlite3", "command.json", "report.html", "forecast.json")
    assert (tmp_path / "results.jsonl").stat().st_mode & 0o777 == 0o644  # what the user asked for is as usual
    (tmp_path / "results.jsonl.checkpoint" / "report.html").chmod(0o644)
    assert call("report", "results.jsonl.checkpoint", cwd=tmp_path).returncode == 0
    assert (tmp_path / "results.jsonl.checkpoint" / "report.html").stat().st_mode & 0o777 == 0o644
    assert call("report", "results.jsonl.checkpoint", "--out", "open.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "open.html").stat().st_mode & 0o777 == 0o644


async def test_a_folder_that_is_there_stays_as_its_owner_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    backend = ScriptedBackend(lambda request: say("done"))
    await BatchAgent.run(task="{it}", inputs=["a"], backend=backend, checkpoint_dir=folder)
    found = modes(folder)
    assert found.pop("mine") == 0o755
    assert [name for name, mode in found.items() if mode & 0o077] == []


def test_a_temporary_file_is_not_written_through_another_users_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    monkeypatch.setattr("os.urandom", lambda size: b"seen")
    (tmp_path / f".out.{os.getpid()}.{b'seen'.hex()}.batch-agent-draft").symlink_to(target)
    with pytest.raises(SpecError, match="cannot be written"), atomic_write(tmp_path / "out"):
        pass
    assert target.read_text() == "precious"


def test_folders_are_made_private_up_to_one_that_is_there(tmp_path: Path) -> None:
    make_private_dir(tmp_path / "a" / "b")
    make_private_dir(tmp_path / "a" / "b")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
