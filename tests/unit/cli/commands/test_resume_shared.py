"""`batch-agent resume` for a distributed run whose caller was killed: by the URL of its server."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.forked_programs import Programs
from tests.support.redis_server import RedisServer, redis_server

from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

AGENTS = 40
LIMIT = 60.0


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=10), Script(answer_tokens=6)) as started:
        yield started


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def kill_a_caller(programs: Programs, place: Path, url: str, store: str, *more: str) -> str:
    """A run of which some agents have ended when its caller is killed. Its name."""
    place.mkdir()
    lines = (json.dumps({"name": f"Zoë {n}", "even": n % 2 == 0}) + "\n" for n in range(2 * AGENTS))
    (place / "in.jsonl").write_text("".join(lines))
    name = f"run-{uuid4().hex[:8]}"
    words = ["run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--where", "even = true", "--backend", url]
    words += ["--store", store, "--run", name, "--max-inflight", "2", "--lease", "1", "--out", "out.jsonl", *more]
    caller = programs.start_command(*words, cwd=place)
    end = time.monotonic() + LIMIT
    while not (place / "out.jsonl").exists() or len(rows(place / "out.jsonl")) < 3:
        assert time.monotonic() < end, caller.stderr.read_text()
        time.sleep(0.01)
    caller.send_signal(signal.SIGKILL)
    assert caller.wait() == -signal.SIGKILL
    return name


def resume(programs: Programs, place: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Repeats the command until the killed caller no longer counts as present."""
    end = time.monotonic() + LIMIT
    while True:
        done = programs.call("resume", *words, cwd=place, **environment)
        if "has a caller" not in done.stderr or time.monotonic() > end:
            return done.returncode, done.stderr
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_whose_caller_was_killed_is_resumed_by_its_url_from_any_folder(
    tmp_path: Path, sim: SimServer, redis_server: RedisServer, programs: Programs
) -> None:
    name = kill_a_caller(programs, tmp_path / "here", sim.url, redis_server.url)
    away = tmp_path / "away"
    away.mkdir()
    status, said = resume(programs, away, redis_server.url, "--run", name)
    assert status == 0, said
    assert f"{AGENTS} of {AGENTS} agents answered" in said
    assert "restored from the checkpoint" in said
    assert not list(away.iterdir())
    found = rows(tmp_path / "here" / "out.jsonl")
    assert sorted(row["index"] for row in found) == list(range(AGENTS))
    again, said = resume(programs, away, str(tmp_path / "here" / "out.jsonl.checkpoint"))
    assert (again, f"{AGENTS} answers restored" in said) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--reduce", "Sum up {n} notes")])
def test_a_run_whose_machine_is_gone_is_resumed_on_another_one_with_the_inputs_on_the_server(
    tmp_path: Path, sim: SimServer, redis_server: RedisServer, programs: Programs, more: tuple[str, ...]
) -> None:
    name = kill_a_caller(programs, tmp_path / "here", sim.url, redis_server.url, *more)
    shutil.rmtree(tmp_path / "here")
    away = tmp_path / "away"
    away.mkdir()
    words, other = (redis_server.url, "--run", name), {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    status, said = resume(programs, away, *words, **other)
    assert (status, "is not signed by you" in said, "add --trust" in said) == (2, True, True)
    status, said = resume(programs, away, *words, "--trust", **other)
    assert status == 0, said
    assert f"Inputs: {name}.inputs.jsonl" in said
    assert "restored from the checkpoint" in said
    found = rows(away / "out.jsonl")
    assert sorted(row["index"] for row in found) == list(range(AGENTS))
    assert {row["input"]["name"] for row in found} == {f"Zoë {n}" for n in range(0, 2 * AGENTS, 2)}


def test_what_cannot_be_resumed_by_a_url_says_why(
    tmp_path: Path, redis_server: RedisServer, programs: Programs
) -> None:
    status, said = resume(programs, tmp_path, redis_server.url)
    assert (status, "Add --run NAME" in said) == (2, True)
    status, said = resume(programs, tmp_path, redis_server.url, "--run", "gone")
    assert (status, f"There is no run 'gone' at {redis_server.url}" in said) == (2, True)
    status, said = resume(programs, tmp_path, "here", "--run", "gone")
    assert (status, "--run is for a run on a server" in said) == (2, True)
