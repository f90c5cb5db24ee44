"""`batch-agent ctl`: a run in another process is changed while it runs, while it ends, and while it is killed."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call, Program, Programs, typed

from batch_agent import BatchAgent, SpecError, StoreError
from batch_agent.core.events import Steered
from batch_agent.run.control_socket import SOCKET
from batch_agent.sim import Script, SimConfig, SimServer

LIMIT = 60.0


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(step_base_ms=25), Script(answer_tokens=6)) as sim:
        yield sim.url


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Of a server that answers nobody before the end of the test."""
    with SimServer(SimConfig(step_base_ms=3_600_000)) as sim:
        yield sim.url


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def command(place: Path, url: str, inputs: int, *more: str) -> list[str]:
    (place / "in.jsonl").write_text("".join(f'{{"name": "Ada {n}"}}\n' for n in range(inputs)))
    return ["run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--out", "out.jsonl", "--backend", url, *more]


async def control(folder: Path, **changes: Any) -> list[Steered]:
    return await BatchAgent.control(folder, **changes)


def start(programs: Programs, place: Path, words: list[str], **change: Any) -> tuple[Program, Path]:
    """A run that has been reached, and made this change. It must last: `--max-inflight 1`, and dozens of inputs."""
    folder = place / "out.jsonl.checkpoint"
    (folder / SOCKET).unlink(missing_ok=True)  # of a run that was killed
    program, until = programs.start_command(*words, cwd=place), time.monotonic() + LIMIT
    while time.monotonic() < until:
        with suppress(StoreError):  # not yet
            asyncio.run(control(folder, **change))
            return program, folder
        time.sleep(0.01)
    raise AssertionError(program.stderr.read_text())


@pytest.mark.slow
def test_a_run_is_changed_from_another_terminal(tmp_path: Path, sim_url: str, programs: Programs) -> None:
    (tmp_path / "more.csv").write_text("name\nZoë\nBob\n")
    words = command(tmp_path, sim_url, 40, "--max-inflight", "1", "--prices", "sim=1,1,1", "--max-usd", "5")
    program, folder = start(programs, tmp_path, words, pause=True)  # it must not end while commands are imported

    def ctl(*more: str) -> str:
        done = typed("ctl", folder.name, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert ctl("--max-inflight", "3", "--max-usd", "4", "--deadline", "600").splitlines()[0] == "max_inflight: 1 -> 3"
    assert ctl("--add", "more.csv", "--cancel", "38", "39").splitlines()[-1] == "inputs: 40 -> 42"
    assert ctl("--resume") == "pause: yes -> no\n"
    status, said = program.wait(), program.stderr.read_text()
    assert status == 0, said  # nothing failed but what the user has cancelled
    assert "To retry" not in said
    assert "40 of 42 agents answered" in said
    assert "Failed, cancelled: 2" in said
    summary = next(line for line in said.splitlines() if line.startswith("Steered: ") and ";" in line)
    for change in ("pause: no -> yes", "max_inflight: 1 -> 3", "max_usd: 5 -> 4", "inputs: 40 -> 42"):
        assert f"Steered: {change}" in said
        assert change in summary
        assert change in (folder / "report.html").read_text()
    found = {row["input"]["name"]: row for row in rows(tmp_path / "out.jsonl")}
    assert found["Zoë"]["ok"]
    assert [name for name, row in found.items() if not row["ok"]] == ["Ada 38", "Ada 39"]


@pytest.mark.slow
def test_what_was_acknowledged_is_kept_however_the_run_is_killed(
    tmp_path: Path, sim_url: str, silent_url: str, programs: Programs
) -> None:
    words, acknowledged, last = command(tmp_path, silent_url, 20, "--max-inflight", "1"), list[str](), 0

    async def add_until_killed(program: Program, folder: Path, adds: int) -> None:
        """Kills the run while it is adding one more."""
        nonlocal last
        for at in range(adds + 1):
            last += 1
            name = f"Zoë {last}"
            adding = asyncio.create_task(control(folder, add=[{"name": name}]))
            if at == adds:
                await asyncio.sleep(0)
                program.send_signal(signal.SIGKILL)
            try:
                await adding
                acknowledged.append(name)
            except (StoreError, SpecError):
                assert at == adds

    for adds in (1, 3, 0, 2):
        program, folder = start(programs, tmp_path, words, pause=True)
        asyncio.run(add_until_killed(program, folder, adds))
        assert program.wait() == -signal.SIGKILL
        with pytest.raises(StoreError, match="is not running"):
            asyncio.run(control(folder, pause=True))
    program = programs.start_command(*command(tmp_path, sim_url, 20), cwd=tmp_path)
    assert program.wait() == 0, program.stderr.read_text()
    names = [row["input"]["name"] for row in rows(tmp_path / "out.jsonl")]
    assert len(names) == len(set(names))
    assert set(acknowledged) <= set(names)
    assert len(acknowledged) >= 6
    assert set(names) <= {f"Ada {n}" for n in range(20)} | {f"Zoë {n}" for n in range(1, last + 1)}


@pytest.mark.slow
def test_a_run_that_ends_has_run_everything_that_it_acknowledged(
    tmp_path: Path, sim_url: str, programs: Programs
) -> None:
    words = command(tmp_path, sim_url, 30, "--max-inflight", "1")
    program, folder = start(programs, tmp_path, words, pause=True)

    async def add_until_the_end(client: int) -> list[str]:
        added: list[str] = []
        for number in range(10_000):
            try:
                await control(folder, add=[{"name": f"Zoë {client} {number}"}])
            except (StoreError, SpecError):
                return added
            added.append(f"Zoë {client} {number}")
            await asyncio.sleep(0.01 * number * (client + 1))  # ever longer: at some time, the run ends first
        raise AssertionError

    async def clients() -> list[list[str]]:
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
            adding = [group.create_task(add_until_the_end(client)) for client in (0, 1)]
            await control(folder, pause=False, max_inflight=16)
        return [task.result() for task in adding]

    added = [name for names in asyncio.run(clients()) for name in names]
    assert program.wait() == 0, program.stderr.read_text()
    names = [row["input"]["name"] for row in rows(tmp_path / "out.jsonl")]
    assert sorted(names) == sorted([*(f"Ada {n}" for n in range(30)), *added])


def test_a_run_that_does_not_run_is_refused_with_what_to_do(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "out.jsonl.checkpoint"
    nothing = call("ctl", folder.name, "--pause", cwd=tmp_path)
    assert (nothing.returncode, "There is no checkpoint" in nothing.stderr) == (2, True)
    folder.mkdir()
    dead = call("ctl", folder.name, "--pause", cwd=tmp_path)
    assert (dead.returncode, f"batch-agent resume {folder.name}" in dead.stderr) == (2, True)
    both = call("ctl", folder.name, "--pause", "--resume", cwd=tmp_path)
    assert (both.returncode, "Choose one" in both.stderr) == (2, True)
    saved = {"format": 3, "working_directory": "/", "options": {"run_id": "reviews"}, "paths": {}}
    (folder / "command.json").write_text(json.dumps(saved))
    shared = call("ctl", folder.name, "--pause", cwd=tmp_path)
    assert (shared.returncode, "pass the URL and --run reviews" in shared.stderr) == (2, True)
