"""FOLDER of commands that read a run: a directory, a folder in an object store, or a Redis server."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent.cli.app import main
from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

Call = Callable[..., tuple[int, str, str]]
MEMORY: Any = fsspec.filesystem("memory")
CHECKPOINT = "memory://bucket/out.checkpoint/"


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        yield sim.url


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """A command line, in a directory with in.jsonl, and with an object store."""
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "note {number}"}}\n' for number in range(3)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    yield run
    MEMORY.store.clear()
    MEMORY.pseudo_dirs[:] = [""]


def words(url: str, *more: str) -> list[str]:
    return ["run", "in.jsonl", "--task", "Rate {text}", "--backend", url, "--out", "memory://bucket/out/", *more]


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on another machine: without the local copy of the checkpoint."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))


@pytest.mark.slow
def test_a_run_in_an_object_store_is_read_and_resumed_by_its_url(
    call: Call, sim_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, said = call(*words(sim_url))
    assert status == 0, said
    assert f"Report: {CHECKPOINT}report.html" in said
    assert call("ctl", CHECKPOINT, "--pause")[0] == 2
    elsewhere(monkeypatch, tmp_path)
    status, found, said = call("inspect", CHECKPOINT)
    assert status == 0, said
    assert found.startswith(CHECKPOINT)
    assert "agents    3: 3 answered" in found
    status, _, said = call("export", CHECKPOINT, "--out", "memory://bucket/table.csv")
    assert "Wrote 3 rows to memory://bucket/table.csv" in said
    assert len(MEMORY.cat_file("/bucket/table.csv").splitlines()) == 4
    MEMORY.rm_file("/bucket/out.checkpoint/report.html")
    assert call("report", CHECKPOINT) == (0, f"Report: {CHECKPOINT}report.html\n", "")
    assert b'"title":"out.checkpoint"' in MEMORY.cat_file("/bucket/out.checkpoint/report.html")
    status, _, said = call("resume", CHECKPOINT)
    assert status == 0, said
    assert "3 answers restored from the checkpoint" in said


@pytest.mark.slow
def test_a_stage_in_an_object_store_is_named_behind_the_url(
    call: Call, sim_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, said = call(*words(sim_url, "--reduce", "Sum up {n} notes"))
    assert status == 0, said
    elsewhere(monkeypatch, tmp_path)
    found = call("inspect", CHECKPOINT)[1]
    assert f"{CHECKPOINT}map\n" in found
    assert f"{CHECKPOINT}reduce\n" in found
    status, _, said = call("export", CHECKPOINT)
    assert (status, f"{CHECKPOINT}map or {CHECKPOINT}reduce" in said) == (2, True)
    for name, rows in (("map", 3), ("reduce", 1)):
        status, table, said = call("export", f"{CHECKPOINT}{name}")
        assert (status, len(table.splitlines())) == (0, rows), said
    assert "is not the checkpoint of a run" in call("inspect", f"{CHECKPOINT}none")[2]
    assert "is not the checkpoint of a run" in call("inspect", f"{CHECKPOINT}..")[2]


@pytest.mark.slow
@pytest.mark.parametrize("reduce", [False, True])
def test_a_distributed_run_with_its_directory_in_an_object_store_is_read_from_the_server(
    call: Call,
    sim_url: str,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    reduce: bool,
) -> None:
    name = f"run-{uuid4().hex}"
    more = ["--reduce", "Sum up {n} notes"] if reduce else []
    status, _, said = call(*words(sim_url, "--store", redis_server.url, "--run-id", name, *more))
    assert status == 0, said
    parts = MEMORY.glob("/bucket/out/part-*")
    rows = [json.loads(line) for part in parts for line in MEMORY.cat_file(part).splitlines()]
    assert sorted(row["index"] for row in rows) == [0, 1, 2]
    elsewhere(monkeypatch, tmp_path)
    server = [redis_server.url, "--run"]
    for whole in ([CHECKPOINT], [*server, name]):
        status, found, said = call("inspect", *whole)
        assert status == 0, said
        assert found.startswith(f"run {name}{'.map' if reduce else ''} at ")
        assert "agents    3: 3 answered" in found
        assert (f"run {name}.reduce at " in found) == reduce
        for command in (["export"], ["inspect", "--agent", "0"]) if reduce else ():
            status, _, said = call(*command, *whole)
            assert (
                status,
                f"{redis_server.url} --run {name}.map or {redis_server.url} --run {name}.reduce" in said,
            ) == (
                2,
                True,
            )
    stage = [*server, f"{name}.map"] if reduce else [CHECKPOINT]
    assert len(call("export", *stage)[1].splitlines()) == 3
    if reduce:
        assert f"--run {name}.map" in call("report", *server, name)[2]
    status, _, said = call("resume", CHECKPOINT)
    assert status == 0, said


@pytest.mark.parametrize("command", [["inspect"], ["export"], ["report"], ["serve"], ["ctl", "--pause"], ["resume"]])
def test_a_name_is_for_a_server(call: Call, command: list[str]) -> None:
    for folder in ("here", CHECKPOINT):
        assert "--run is for a run on a server" in call(*command, folder, "--run", "name")[2]
    assert "Add --run NAME" in call(*command, "redis://127.0.0.1:1")[2]
    assert "redis+sentinel://" in call(*command, "redis+cluster://127.0.0.1:1", "--run", "name")[2]
