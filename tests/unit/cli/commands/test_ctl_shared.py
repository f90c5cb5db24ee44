"""`batch-agent ctl` for a distributed run: a caller and two workers, in processes of their own, at a real server."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.forked_programs import Program, Programs, typed
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, SpecError, StoreError
from batch_agent.cli.shared_run import SharedRun
from batch_agent.cluster.limit_sharing import workers_of
from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

LIMIT = 60.0
AGENTS = 120


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=10), Script(answer_tokens=10)) as started:
        yield started


@pytest.fixture(scope="module")
def second() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.fixture(scope="module")
def terminal() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.fixture(scope="module")
def third() -> Iterator[Programs]:
    with Programs() as started:
        yield started


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def command(place: Path, url: str, store: str, name: str, *more: str) -> list[str]:
    (place / "in.jsonl").write_text("".join(f'{{"name": "Ada {n}"}}\n' for n in range(AGENTS)))
    asked = ["run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--out", "out.jsonl", "--backend", url]
    return [*asked, "--store", store, "--run", name, "--lease", "3", *more]


async def look(store: str, name: str) -> tuple[int, int]:
    """Agents that have ended, and processes that run agents."""
    async with SharedRun(store, name).connect() as coordinator:
        return AGENTS - await coordinator.pending_count(), len(await workers_of(coordinator))


def until(is_so: Callable[[], bool], *processes: Program) -> None:
    end = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < end, "\n".join(process.stderr.read_text() for process in processes)
        time.sleep(0.02)


@dataclass
class StartedRun:
    """A run of a caller and two workers. It is paused at once, as commands take a second to be imported."""

    place: Path
    store: str
    name: str
    processes: list[Program]
    terminal: Programs

    def ctl(self, *more: str) -> list[str]:
        done = self.terminal.call("ctl", self.store, "--run", self.name, *more, cwd=self.place)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def ended(self) -> int:
        return asyncio.run(look(self.store, self.name))[0]

    def until_all_said(self, words: str) -> None:
        until(lambda: all(words in each.stderr.read_text() for each in self.processes), *self.processes)

    def end(self) -> list[int]:
        return [each.wait() for each in self.processes]


Start = Callable[..., StartedRun]


@pytest.fixture
def start(
    tmp_path: Path,
    sim: SimServer,
    redis_server: RedisServer,
    programs: Programs,
    second: Programs,
    third: Programs,
    terminal: Programs,
) -> Start:
    def started(*more: str) -> StartedRun:
        store, name = redis_server.url, f"run-{uuid4().hex[:8]}"
        words = command(tmp_path, sim.url, store, name, "--prices", "sim=1,1,1", *more)
        caller = programs.start_command(*words, cwd=tmp_path)
        works = ("worker", "--store", store, "--run", name)
        run = StartedRun(tmp_path, store, name, [caller], terminal)
        run.processes += [each.start_command(*works, cwd=tmp_path) for each in (second, third)]
        until(lambda: asyncio.run(look(store, name))[1] == 3, *run.processes)
        assert str(*asyncio.run(BatchAgent.control(store, run_id=name, pause=True))) == "pause: no -> yes"
        return run

    return started


@pytest.mark.slow
def test_all_processes_of_a_distributed_run_obey(start: Start, sim: SimServer) -> None:
    run = start("--max-inflight", "3", "--max-usd", "5")
    run.until_all_said("Steered: pause: no -> yes")
    until(lambda: sim.metrics()["vllm:num_requests_running"] == 0)
    before = sim.metrics()["vllm:prompt_tokens_total"]
    assert run.ended() < AGENTS - 2
    changes = run.ctl("--max-inflight", "6", "--max-usd", "4", "--deadline", "600", "--cancel", "118", "119")
    assert changes[:2] == ["max_inflight: 3 -> 6", "max_usd: 5 -> 4"]
    assert changes[2].startswith("deadline: none -> 600 s (5")
    assert [change.endswith("not started -> cancelled") for change in changes[3:]] == [True, True]
    run.until_all_said("max_usd: 5 -> 4")
    assert sim.metrics()["vllm:prompt_tokens_total"] == before  # no turn was started during the pause
    assert run.ctl("--resume") == ["pause: yes -> no"]
    assert run.end() == [0, 0, 0]
    said, folder = run.processes[0].stderr.read_text(), run.place / "out.jsonl.checkpoint"
    assert f"{AGENTS - 2} of {AGENTS} agents answered" in said
    for change in ("pause: no -> yes", "max_inflight: 3 -> 6", "max_usd: 5 -> 4"):
        assert f"Steered: {change}" in said
        assert said.count(change) == 2  # when it was made, and in the summary
        assert change in (folder / "report.html").read_text()
    failed = {row["input"]["name"]: row["error"]["kind"] for row in rows(run.place / "out.jsonl") if not row["ok"]}
    assert failed == {"Ada 118": "cancelled", "Ada 119": "cancelled"}
    page = run.place / "by_url.html"
    status = run.terminal.call("report", run.store, "--run", run.name, "--out", page.name, cwd=run.place)
    assert status.returncode == 0, status.stderr
    assert "max_usd: 5 -> 4" in page.read_text()
    over = run.terminal.call("ctl", run.store, "--run", run.name, "--pause", cwd=run.place)
    assert (over.returncode, f"resume {run.store} --run {run.name}" in over.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("change", [("--deadline", "0.5"), ("--max-usd", "0.000001")])
def test_a_limit_that_has_passed_ends_a_distributed_run(start: Start, change: tuple[str, str]) -> None:
    run = start("--max-inflight", "3", "--max-usd", "5")
    run.until_all_said("Steered: pause: no -> yes")
    run.ctl(*change, "--resume")
    status, *workers = run.end()
    assert (status, workers) == (1, [0, 0]), run.processes[0].stderr.read_text()
    kinds = Counter(row["error"]["kind"] for row in rows(run.place / "out.jsonl") if not row["ok"])
    assert set(kinds) == {"budget"}
    assert kinds["budget"] > 0


@pytest.mark.slow
def test_what_a_distributed_run_cannot_do_is_refused_with_the_reason(start: Start) -> None:
    run = start("--max-inflight", "3")

    async def refused(name: str = run.name, **change: Any) -> str:
        with pytest.raises((SpecError, StoreError)) as error:
            await BatchAgent.control(run.store, run_id=name, **change)
        return str(error.value)

    assert "without max_usd" in asyncio.run(refused(max_usd=3))
    assert "There is no agent 'none' that waits or runs" in asyncio.run(refused(cancel="none"))
    assert "Inputs cannot be added to a distributed run" in asyncio.run(refused(add=[{"name": "Zoë"}]))
    assert "Say what to change" in asyncio.run(refused())
    assert f"There is no run 'gone' at {run.store}" in asyncio.run(refused("gone", pause=True))
    assert f"--run {run.name}" in asyncio.run(refused(f"{run.name}.map", pause=True))
    folder = typed("ctl", "out.jsonl.checkpoint", "--resume", cwd=run.place)
    assert folder.stdout == "pause: yes -> no\n", folder.stderr
    assert run.end() == [0, 0, 0]
