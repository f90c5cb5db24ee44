"""The very commands of rendered templates, against a real Redis and a simulated engine: they process a run, and a
preempted worker's agents are finished by the next one. Only the scheduler is missing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.cluster_templates import STORE, container_of, job_of, parsed
from tests.support.forked_programs import Programs
from tests.support.redis_server import RedisServer, redis_server

from batch_agent.cli.cluster_templates.renderer import Platform, render_template
from batch_agent.cli.shared_run import SharedRun
from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

pytestmark = pytest.mark.slow
AGENTS = 24
GRACE = 30
"""Seconds that the templates leave between SIGTERM and SIGKILL."""
WORKERS: tuple[Platform, ...] = ("kubernetes", "slurm", "skypilot")


class SubmittedRun:
    """A run that was submitted and whose caller has ended: all that is left of it is on the server."""

    def __init__(self, folder: Path, store: str, name: str) -> None:
        self.folder, self.store, self.name = folder, store, name
        self.out = folder / "results.jsonl"

    def submit(self, programs: Programs, backend: str, lease: float) -> None:
        (self.folder / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(AGENTS)))
        words = ["--task", "Say {n}.", "--inputs", "in.jsonl", "--backend", backend, "--max-inflight", "2"]
        shared = ["--store", self.store, "--run-id", self.name, "--lease", str(lease)]
        run = programs.start_command("run", *words, *shared, cwd=self.folder)
        self.wait_until_left(AGENTS - 2)
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 143

    def left(self) -> int:
        async def pending() -> int:
            async with SharedRun(self.store, self.name).connect() as coordinator:
                return await coordinator.work.pending_count()

        return asyncio.run(pending())

    def wait_until_left(self, most: int) -> None:
        """Until there is work, and at most this much of it."""
        for _ in range(3_000):
            if 0 < self.left() <= most:
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.left()} agents are left")

    def collect(self, programs: Programs) -> None:
        """Every input has its row, once."""
        done = programs.call("resume", f"{self.out}.checkpoint", cwd=self.folder)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in self.out.read_text().splitlines()]
        assert sorted(row["index"] for row in rows) == list(range(AGENTS))
        assert all(row["ok"] for row in rows)


class Node:
    """A node of the cluster, with a folder of its own, that starts what the template says."""

    def __init__(self, platform: Platform, run: SubmittedRun, folder: Path) -> None:
        folder.mkdir()
        self._log = (folder / "log").open("w+")
        job = job_of(platform, run.name)
        match platform:
            case "slurm":
                (folder / "workers.sh").write_text(render_template(job))
                command = ["bash", "workers.sh"]
            case "skypilot":
                command = ["bash", "-c", parsed(job)["run"]]
            case _:
                command = container_of(parsed(job))["command"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {STORE: run.store, "PATH": path}
        self._process = subprocess.Popen(command, cwd=folder, env=environment, stderr=self._log)

    def preempt(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait(timeout=GRACE)

    def wait(self) -> int:
        return self._process.wait()

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    # Two agents take half a second: there is time to preempt a worker before it is done with all of them.
    with SimServer(SimConfig(step_base_ms=50), Script(answer_tokens=10)) as sim:
        yield sim.url


@pytest.fixture
def run(tmp_path: Path, redis_server: RedisServer) -> SubmittedRun:
    folder = tmp_path / "run"
    folder.mkdir()
    return SubmittedRun(folder, redis_server.url, f"Run_{uuid4().hex[:8]}")


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    started: list[Node] = []
    yield started
    for node in started:
        node.remove()


@pytest.mark.parametrize("platform", WORKERS)
def test_a_worker_stopped_in_its_grace_period_gives_its_agents_to_the_next(
    platform: Platform, run: SubmittedRun, tmp_path: Path, backend: str, programs: Programs, nodes: list[Node]
) -> None:
    run.submit(programs, backend, lease=600)  # an agent that was not given back would be missed for ten minutes
    nodes.append(Node(platform, run, tmp_path / "first"))
    run.wait_until_left(AGENTS - 6)
    assert nodes[0].preempt(signal.SIGTERM) == 143
    assert "Other workers take over its unfinished agents." in nodes[0].said()
    assert run.left() > 0
    nodes.append(Node(platform, run, tmp_path / "second"))
    assert nodes[1].wait() == 0, nodes[1].said()
    assert "No work is left." in nodes[1].said()
    run.collect(programs)


def test_a_worker_killed_without_a_signal_is_replaced_when_its_lease_expires(
    run: SubmittedRun, tmp_path: Path, backend: str, programs: Programs, nodes: list[Node]
) -> None:
    run.submit(programs, backend, lease=3)
    nodes.append(Node("kubernetes", run, tmp_path / "first"))
    run.wait_until_left(AGENTS - 6)
    assert nodes[0].preempt(signal.SIGKILL) == -signal.SIGKILL
    assert run.left() > 0
    nodes.append(Node("kubernetes", run, tmp_path / "second"))
    assert nodes[1].wait() == 0, nodes[1].said()
    run.collect(programs)
