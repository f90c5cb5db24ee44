"""Flows that processes share, on a real Redis-compatible server and on a real Ray cluster: a killed worker loses and
doubles nothing. Real processes, an engine over HTTP."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.ray_cluster import Cluster, ray_cluster
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own
from tests.support.shared_flow_process import FIRST, SECOND, shared_flow, written

from batch_agent import BatchAgent, Flow, ProcessRuntime, SpecError
from batch_agent.core.events import AgentFinished, Event, StageEvent
from batch_agent.core.results import AgentResult
from batch_agent.flows.result import FlowResult
from batch_agent.sim import SimConfig, SimServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves the files of its logs open

ROOT = Path(__file__).parents[2]
ITEMS = 100
KEPT = 80
LEASE = 3.0
SECONDS = 0.02
LIMIT = 300.0
"""Seconds; only what hangs takes so long."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster(nodes=2) as started:
        yield started


@pytest.fixture
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=10.0)) as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_of_its_own(*AOF) as started:
        yield started


class Killer:
    """Kills a process with SIGKILL when so many agents of a stage have ended."""

    def __init__(self, stage: str, after: int, notes: Path, own: int) -> None:
        self.killed: int | None = None
        self._stage, self._left, self._notes, self._own = stage, after, notes, own

    def emit(self, event: Event) -> None:
        if not (isinstance(event, StageEvent) and isinstance(event.event, AgentFinished)):
            return
        self._left -= event.stage == self._stage
        others = [int(pid) for _, pid in written(self._notes) if int(pid) != self._own]
        if self._left <= 0 and self.killed is None and others:
            self.killed = others[-1]
            os.kill(self.killed, signal.SIGKILL)


def check(outcome: FlowResult, notes: Path) -> None:
    """Every item is there once and right, and was put once: but for calls under way when their worker was killed,
    whose agents know that."""
    first, second = outcome.stages[FIRST].results, outcome.stages[SECOND].results
    assert [result.output for result in first] == [f"noted {n}" for n in range(ITEMS)]
    assert sorted(str(result.output) for result in second) == sorted(f"checked {n}" for n in range(ITEMS) if n % 5 > 0)
    assert len(second) == KEPT
    assert len(outcome.items) == 1
    assert outcome.items[0]["n"] == KEPT
    put = Counter(line for line, _ in written(notes))
    for n, result in enumerate(first):
        [call] = result.tool_calls
        assert put[f"n{n}"] == 1 or (put[f"n{n}"] == 0 and not call.ok), (n, put[f"n{n}"], call)


@pytest.mark.parametrize(("stage", "after"), [(FIRST, 20), pytest.param(SECOND, 10, marks=pytest.mark.nightly)])
async def test_a_worker_of_a_flow_on_redis_is_killed(
    stage: str, after: int, sim: SimServer, server: RedisServer, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    options: dict[str, Any] = {"backend": sim.url, "store": server.url, "run_id": "killed", "lease": LEASE}
    killer = Killer(stage, after, notes, os.getpid())
    flow = shared_flow(ITEMS, notes, SECONDS, comes_second=True, **options, max_agents=4)
    running = asyncio.create_task(flow.run(events=killer))
    workers = [subprocess.Popen(program("work", notes, options), cwd=ROOT) for _ in range(2)]
    try:
        async with asyncio.timeout(LIMIT):
            outcome = await running
            ended = [await asyncio.to_thread(worker.wait) for worker in workers]
    finally:
        running.cancel()
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    check(outcome, notes)
    assert killer.killed in [worker.pid for worker in workers]
    assert sorted(ended) == [-signal.SIGKILL, 0]


def program(kind: str, notes: Path, options: dict[str, Any]) -> list[str]:
    plan = {"kind": kind, "items": ITEMS, "notes": str(notes), "seconds": SECONDS, "options": options}
    return [sys.executable, "-m", "tests.support.shared_flow_process", json.dumps(plan)]


async def test_the_caller_of_a_flow_on_redis_is_killed_and_started_again(
    sim: SimServer, server: RedisServer, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    options: dict[str, Any] = {"backend": sim.url, "store": server.url, "run_id": "again", "lease": LEASE}
    caller = subprocess.Popen(program("run", notes, options), cwd=ROOT)
    worker = subprocess.Popen(program("work", notes, options), cwd=ROOT)
    try:
        async with asyncio.timeout(LIMIT):
            while len(written(notes)) < ITEMS // 3:
                await asyncio.sleep(0.01)
            caller.kill()
            await asyncio.to_thread(caller.wait)
            outcome = await shared_flow(ITEMS, notes, SECONDS, **options).run()
            assert await asyncio.to_thread(worker.wait) == 0
    finally:
        for each in (caller, worker):
            if each.poll() is None:
                each.kill()
                each.wait()
    check(outcome, notes)


@pytest.mark.usefixtures("cluster")
async def test_a_worker_of_a_flow_on_ray_is_killed_and_the_flow_is_resumed_without_ray(
    sim: SimServer, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    options: dict[str, Any] = {"backend": sim.url, "checkpoint_dir": tmp_path / "run"}
    killer = Killer(FIRST, 20, notes, os.getpid())
    flow = shared_flow(ITEMS, notes, SECONDS, **options, cluster="ray", workers=2, lease=LEASE)
    outcome = await flow.run(events=killer)
    check(outcome, notes)
    assert killer.killed is not None
    assert str(os.getpid()) not in {pid for _, pid in written(notes)}
    before = sim.metrics()["vllm:request_success_total"]
    again = await shared_flow(ITEMS, notes, SECONDS, **options).run()
    assert again.items == outcome.items
    assert sim.metrics()["vllm:request_success_total"] == before


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_ray_workers_run_a_flow_whose_facts_are_in_redis(
    sim: SimServer, server: RedisServer, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    options: dict[str, Any] = {"backend": sim.url, "store": server.url, "run_id": "both"}
    outcome = await shared_flow(ITEMS, notes, SECONDS, **options, cluster="ray", workers=2).run()
    check(outcome, notes)
    assert str(os.getpid()) not in {pid for _, pid in written(notes)}


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_a_flow_stops_with_the_reason_if_no_node_can_load_its_tools(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text('def look(key: str) -> str:\n    """Look it up."""\n    return key\n')
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import look  # type: ignore[import-not-found]

    flow = Flow([{"n": 1}], backend=sim.url, cluster="ray", workers=1).map("look", "Look {n}", tools=[look])
    with pytest.raises(SpecError, match="cannot load the tools"):
        await flow.reduce("report", "Sum up.").run()


_PROGRAM = """
import json, os, sys, time, urllib.request
def worker(pid):
    with open(f"/proc/{pid}/cmdline") as command, open(f"/proc/{pid}/stat") as stat:
        is_worker, parent = command.read().startswith("ray::WorkerActor"), stat.read().rpartition(")")[2].split()[1]
    return pid if is_worker or parent == "0" else worker(parent)

with open(sys.argv[2], "a") as file:
    file.write(f"{sys.argv[3].split()[1]} {worker(os.getpid())}\\n")
body = {"model": sys.argv[1], "messages": [{"role": "user", "content": sys.argv[3]}]}
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"})
said = json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["message"]["content"]
with open("answer.txt", "w") as file:
    file.write(said)
print(said)
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_ray_workers_run_programs_in_copies_of_a_directory_and_one_worker_is_killed(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project, notes = tmp_path / "project", tmp_path / "notes"
    project.mkdir()
    (project / "read.me").write_text("as it was")
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, "-S", str(tmp_path / "program.py"), "{model}", str(notes), "{task}"]
    results: dict[int, AgentResult] = {}
    killed = False
    options: dict[str, Any] = {"backend": sim.url, "max_tokens": 64, "max_agents": 3, "lease": LEASE, "workers": 2}
    async with BatchAgent.stream(
        task="Program n{n} {sim}",
        inputs=[{"n": n, "sim": f'[[sim: {{"text": "done {n}"}}]]'} for n in range(24)],
        runtime=ProcessRuntime(command, workdir="project"),
        cluster="ray",
        **options,
    ) as stream:
        async for result in stream:
            assert result.index not in results, "a doubled result"
            results[result.index] = result
            if len(results) >= 6 and not killed:
                killed = True
                worker = int(written(notes)[-1][1])
                assert Path(f"/proc/{worker}/cmdline").read_text().startswith("ray::WorkerActor")
                os.kill(worker, signal.SIGKILL)
    assert killed
    assert {index: result.output for index, result in results.items()} == {n: f"done {n}" for n in range(24)}
    assert {str(result.changes) for result in results.values()} == {"1 file changed, +1 -0"}
    assert [file.name for file in project.iterdir()] == ["read.me"]
    assert {line for line, _ in written(notes)} == {f"n{n}" for n in range(24)}
