"""Runs on a real Ray cluster of several nodes, on the simulated engine: what is asked, what is lost, what stays."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel
from tests.live.ray_cluster import CLIENT_PORT, Cluster, own_processes, ray_cluster
from tests.support.event_list import EventList
from tests.support.redis_server import redis_server

from batch_agent import BackendError, BatchAgent, RunStopped, SpecError, StoreError, Tool, ToolContext, read_request_log
from batch_agent.cli.commands.export import export
from batch_agent.core.protocols.event_sink import EventSink
from batch_agent.core.results import AgentResult
from batch_agent.engine.result_stream import ResultStream
from batch_agent.sim import SimConfig, SimServer
from batch_agent.store.lock import DirectoryLock
from batch_agent.testing import ScriptedBackend, say

__all__ = ["redis_server"]

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves the files of its logs open

CALL = '{{"calls": [{{"name": "note", "arguments": {{"key": "{it}"}}}}]}}'
TASK = f'Note {{it}}. [[sim: [{CALL}, {{{{"json": {{{{"text": "{{it}}"}}}}}}}}]]]'
PROBES = 4
"""Requests by which each process of a run sees what the server can do: three workers, and the caller."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster(nodes=3) as started:
        yield started


@pytest.fixture
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=15.0)) as server:
        yield server


def asked(sim: SimServer) -> float:
    return sim.metrics()["vllm:request_success_total"]


def cell(path: str) -> tuple[type[BaseModel], Tool]:
    """A model and a tool that are in no module, as people define them in a notebook."""

    class Noted(BaseModel):
        text: str

    @Tool.define(effect="write")
    def note(key: str) -> str:
        """Write it down."""
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(opened, f"{key} {os.getpid()}\n".encode())
        os.close(opened)
        return f"noted {key}"

    return Noted, note


class Notebook:
    """A tool that writes, and what it has written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.Noted, self.note = cell(str(file))

    @property
    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._file.read_text().splitlines()] if self._file.exists() else []

    @property
    def pids(self) -> list[int]:
        """Of who wrote, the last one last."""
        return list(dict.fromkeys(int(pid) for _, pid in self.lines))

    def options(self, sim: SimServer, agents: int, **options: Any) -> dict[str, Any]:
        inputs = [f"n{number}" for number in range(agents)]
        return {
            "task": TASK,
            "inputs": inputs,
            "tools": [self.note],
            "output_schema": self.Noted,
            "backend": sim.url,
            "max_inflight": 32,
        } | options

    def check(self, results: dict[int, AgentResult], agents: int) -> None:
        """All are there and right, and everything was written once: but for what nobody knows of, because its worker
        was killed with the pen in its hand."""
        assert results.keys() == set(range(agents))
        made = Counter(key for key, _ in self.lines)
        assert made.keys() <= {f"n{number}" for number in range(agents)}
        for number, result in results.items():
            assert result.error is None, result
            assert result.output == self.Noted(text=f"n{number}")
            [call] = result.tool_calls
            assert made[f"n{number}"] == 1 or (made[f"n{number}"] == 0 and not call.ok)


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path / "notes")


def on_ray(events: EventSink | None = None, **options: Any) -> ResultStream:
    return BatchAgent.stream(**{"cluster": "ray", "events": events} | options)


async def collected(stream: ResultStream, until: int | None = None) -> dict[int, AgentResult]:
    found: dict[int, AgentResult] = {}
    async with stream:
        async for result in stream:
            assert result.index not in found, "a doubled result"
            found[result.index] = result
            if len(found) == until:
                break
    return found


def actors() -> list[str]:
    """The titles of processes of ours that Ray has."""
    titles = [command.partition(" ")[0] for command in own_processes().values()]
    return [title for title in titles if title.startswith(("ray::CoordinatorActor", "ray::WorkerActor"))]


def wait_until(is_so: Callable[[], bool], seconds: float = 100.0, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, actors()
        time.sleep(pause)


@pytest.mark.usefixtures("cluster")
async def test_two_hundred_agents_run_on_all_ray_nodes_with_tools_and_models_of_a_notebook(
    sim: SimServer, notebook: Notebook
) -> None:
    log = EventList()
    results = await collected(on_ray(log, **notebook.options(sim, 200)))
    notebook.check(results, 200)
    assert len(notebook.lines) == 200
    assert len(notebook.pids) == 3
    assert asked(sim) <= 400 + PROBES
    assert any("3 nodes; 3 workers" in notice for notice in log.notices), log.notices


async def test_a_killed_worker_or_node_repeats_only_the_turns_in_flight_there(
    cluster: Cluster, sim: SimServer, notebook: Notebook
) -> None:
    results: dict[int, AgentResult] = {}
    async with on_ray(**notebook.options(sim, 200, lease=6.0)) as stream:
        async for result in stream:
            assert result.index not in results, "a doubled result"
            results[result.index] = result
            if len(results) == 60:
                os.kill(notebook.pids[0], signal.SIGKILL)
            if len(results) == 100:
                await asyncio.to_thread(cluster.lose_a_node)
    cluster.add_a_node()
    notebook.check(results, 200)
    assert asked(sim) <= 400 + 2 * 32 + 2 * PROBES


@pytest.mark.nightly
async def test_a_node_that_joins_during_a_run_gets_work(cluster: Cluster, sim: SimServer, notebook: Notebook) -> None:
    log = EventList()
    before: set[int] = set()
    try:
        async with on_ray(log, **notebook.options(sim, 4_000, max_inflight=8)) as stream:
            async for result in stream:
                assert result.error is None
                if not before and len(notebook.lines) > 40:
                    before = set(notebook.pids)
                    cluster.add_a_node()  # in the main thread, for its signal handlers
                joined = any("has joined" in notice for notice in log.notices)
                if joined and set(notebook.pids) - before:
                    break
    finally:
        cluster.return_a_node()
    assert len(set(notebook.pids) - before) == 1, log.notices


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_an_sql_tool_is_sent_to_the_nodes_and_opens_its_database_there(sim: SimServer, tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    database.executescript("CREATE TABLE users (name TEXT); INSERT INTO users VALUES ('Ann');")
    database.close()
    query = {"calls": [{"name": "sql", "arguments": {"query": "SELECT name FROM users"}}]}
    task = f"{{it}} [[sim: {json.dumps([query, {'text': 'done'}])}]]".replace("{", "{{").replace("}", "}}")
    task = task.replace("{{it}}", "{it}")
    tools = [Tool.sql(f"sqlite:///{tmp_path / 'shop.db'}")]
    results = await collected(on_ray(task=task, inputs=["a", "b"], tools=tools, backend=sim.url))
    assert [(result.output, [call.ok for call in result.tool_calls]) for result in results.values()] == [
        ("done", [True])
    ] * 2


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_ray_restarts_the_only_worker_of_a_run(sim: SimServer, notebook: Notebook) -> None:
    results: dict[int, AgentResult] = {}
    log = EventList()
    async with on_ray(log, **notebook.options(sim, 40, workers=1, max_inflight=4, lease=3.0)) as stream:
        async for result in stream:
            results[result.index] = result
            if len(results) == 10:
                os.kill(notebook.pids[0], signal.SIGKILL)
    notebook.check(results, 40)
    assert len(notebook.pids) == 2
    assert any("Ray has restarted it" in notice for notice in log.notices), log.notices


@pytest.mark.usefixtures("cluster")
async def test_a_run_can_be_resumed_with_or_without_ray(sim: SimServer, notebook: Notebook, tmp_path: Path) -> None:
    options = notebook.options(sim, 60, checkpoint_dir=tmp_path / "run", max_inflight=8)
    on_one = options | {"workers": 1}
    await collected(on_ray(**on_one), until=15)
    await collected(BatchAgent.stream(**options), until=30)
    results = await collected(on_ray(**on_one))
    notebook.check(results, 60)
    assert asked(sim) <= 120 + 2 * 8 + 3 * PROBES

    before = asked(sim)
    again = await collected(on_ray(**on_one))
    assert [again[number].output for number in range(60)] == [results[number].output for number in range(60)]
    assert asked(sim) <= before + PROBES


def statuses(folder: Path) -> Counter[str]:
    """Of the rows that `batch-agent export` writes, one for each input."""
    out = folder / "export.jsonl"
    assert export(folder, out=out) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return Counter(row["status"] for row in rows)


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_the_checkpoint_of_a_run_on_ray_tells_what_became_of_every_input(
    sim: SimServer, notebook: Notebook, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = notebook.options(sim, 60, checkpoint_dir=folder, max_inflight=8, workers=1)
    options["inputs"] = [{"it": name} for name in options["inputs"]] + [{"other": 1}]
    seen: Counter[str] = Counter()
    found = 0
    async with on_ray(**options) as stream:
        async for _ in stream:
            found += 1
            if found == 15:
                seen = await asyncio.to_thread(statuses, folder)
                break
    for kinds, unfinished in ((seen, "running"), (statuses(folder), "interrupted")):
        assert kinds.total() == 61
        assert kinds.keys() <= {"answered", "failed", unfinished, "not_started"}
        assert kinds["answered"] >= 14
        assert kinds["failed"] == 1
        assert kinds["not_started"] > 0
    results = await collected(on_ray(**options))
    notebook.check({index: result for index, result in results.items() if index < 60}, 60)
    assert statuses(folder) == {"answered": 60, "failed": 1}


def noting_context() -> Tool:
    @Tool.define(effect="write")
    def note(key: str, context: ToolContext) -> str:
        """Write it down."""
        known = [context.input, context.key, context.index, context.turn, context.run_id]
        (context.artifacts / "note.json").write_text(json.dumps([known, os.getpid()]))
        return f"noted {key}"

    return note


@pytest.mark.usefixtures("cluster")
async def test_a_tool_on_ray_knows_its_agent_and_its_files_are_in_the_results(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "requests.jsonl"
    options: dict[str, Any] = {
        "task": TASK,
        "inputs": [{"it": f"n{number}"} for number in range(30)],
        "key": "it",
        "tools": [noting_context()],
        "backend": sim.url,
        "checkpoint_dir": "run",
        "log_requests": "requests.jsonl",
        "where": lambda row: row["it"] != "n7",
    }
    results = await collected(on_ray(**options))
    assert len(results) == 29
    runs, pids = set(), set()
    for result in results.values():
        assert result.ok, result.error
        [file] = result.artifacts
        assert file.is_relative_to(tmp_path / "run" / "artifacts")
        (value, key, index, turn, run), pid = json.loads(file.read_text())
        assert (value, key, index, turn) == (result.input, result.key, result.index, 1)
        runs.add(run)
        pids.add(pid)
    assert len(runs) == 1
    assert os.getpid() not in pids
    logged = Counter(line["key"] for line in read_request_log(log) if line["key"])
    assert logged == Counter({result.key: 2 for result in results.values()})


@pytest.mark.usefixtures("cluster")
async def test_a_cancelled_run_leaves_no_ray_actors(sim: SimServer, notebook: Notebook) -> None:
    import ray

    await collected(on_ray(**notebook.options(sim, 200, workers=2)), until=20)
    assert not ray.is_initialized()
    await asyncio.to_thread(wait_until, lambda: not actors())


DRIVER = """
import asyncio, pickle, sys
from tests.live.test_ray import collected, on_ray

asyncio.run(collected(on_ray(**pickle.loads(bytes.fromhex(sys.argv[1])))))
"""


async def test_a_killed_submitter_leaves_no_ray_actors_and_loses_no_results(
    cluster: Cluster, sim: SimServer, notebook: Notebook, tmp_path: Path
) -> None:
    from ray import cloudpickle

    options = notebook.options(sim, 80, checkpoint_dir=tmp_path / "run", max_inflight=8)
    caller = subprocess.Popen([sys.executable, "-c", DRIVER, cloudpickle.dumps(options | {"workers": 1}).hex()])
    try:
        await asyncio.to_thread(wait_until, lambda: len(notebook.lines) >= 20, 60.0)
    finally:
        caller.kill()
        caller.wait()
    await asyncio.to_thread(wait_until, lambda: not actors())
    results = await collected(BatchAgent.stream(**options))
    notebook.check(results, 80)
    assert asked(sim) <= 160 + 2 * 8 + 2 * PROBES


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_a_running_ray_cluster_is_left_running(sim: SimServer, notebook: Notebook) -> None:
    import ray

    await asyncio.to_thread(ray.init, log_to_driver=False)
    try:
        notebook.check(await collected(on_ray(**notebook.options(sim, 20, workers=1))), 20)
        assert len(notebook.pids) == 1
        assert ray.is_initialized()
        await asyncio.to_thread(wait_until, lambda: not actors())
    finally:
        ray.shutdown()


@pytest.mark.usefixtures("cluster")
async def test_ray_client_reaches_a_cluster_from_outside(sim: SimServer, notebook: Notebook, tmp_path: Path) -> None:
    options = notebook.options(sim, 40, checkpoint_dir=tmp_path / "run", workers=1)
    options["cluster"] = f"ray://127.0.0.1:{CLIENT_PORT}"
    notebook.check(await collected(on_ray(**options)), 40)
    await asyncio.to_thread(wait_until, lambda: not actors())
    assert not list((tmp_path / "run").glob("caller-*"))


def servers_of_clients() -> set[int]:
    """Ray's proxy starts one for each."""
    return {pid for pid, command in own_processes().items() if "--mode=specific-server" in command}


def kill_the_next_server_of_a_client() -> None:
    before = servers_of_clients()
    wait_until(lambda: bool(servers_of_clients() - before), pause=0.01)
    for pid in servers_of_clients() - before:
        with suppress(ProcessLookupError):  # crashed by itself
            os.kill(pid, signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_a_crashed_ray_client_server_is_connected_to_again(sim: SimServer, notebook: Notebook) -> None:
    killing = asyncio.create_task(asyncio.to_thread(kill_the_next_server_of_a_client))
    options = notebook.options(sim, 8, workers=1, cluster=f"ray://127.0.0.1:{CLIENT_PORT}")
    notebook.check(await collected(on_ray(**options)), 8)
    await killing


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_after_an_unreachable_ray_cluster_another_can_be_used(sim: SimServer, notebook: Notebook) -> None:
    options = notebook.options(sim, 8, workers=1)
    with SimServer() as gone:
        nowhere = f"ray://{urlsplit(gone.url).netloc}"
    with pytest.raises(SpecError, match="Check that the cluster is up"), pytest.warns(UserWarning, match="timed out"):
        await collected(on_ray(**options | {"cluster": nowhere}))
    notebook.check(await collected(on_ray(**options)), 8)


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_workers_on_ray_use_a_redis_coordinator_if_one_is_given(
    sim: SimServer, notebook: Notebook, redis_server: Any
) -> None:
    coordinators: list[str] = []
    results: dict[int, AgentResult] = {}
    async with on_ray(**notebook.options(sim, 60, store=redis_server.url, workers=2)) as stream:
        async for result in stream:
            results[result.index] = result
            coordinators += [title for title in actors() if "Coordinator" in title] if len(results) == 20 else []
    notebook.check(results, 60)
    assert coordinators == []


@pytest.mark.usefixtures("cluster")
async def test_a_checkpoint_in_use_is_an_error_at_the_submitter(
    sim: SimServer, notebook: Notebook, tmp_path: Path
) -> None:
    lock = DirectoryLock(tmp_path)
    lock.take()
    try:
        with pytest.raises(StoreError, match="Another run is using the checkpoint"):
            await collected(on_ray(**notebook.options(sim, 4, checkpoint_dir=tmp_path, workers=1)))
    finally:
        lock.release()


class Picky:
    """Something that not every process can load."""

    def __init__(self, loads: Callable[[], str]) -> None:
        self.loads = loads

    def __reduce__(self) -> Any:
        return self.loads, ()


def holding(what: Any, note: Tool) -> Tool:
    @Tool.define(effect="write", name="note")
    def holds(key: str) -> str:
        """Write it down."""
        return f"{note(key)} {what}"

    return holds


@pytest.mark.usefixtures("cluster")
async def test_code_that_no_ray_node_can_load_ends_the_run_with_advice(sim: SimServer, notebook: Notebook) -> None:
    def loads() -> str:
        raise ModuleNotFoundError("No module named 'my_tools'")

    options = notebook.options(sim, 4, tools=[holding(Picky(loads), notebook.note)], workers=2)
    with pytest.raises(SpecError, match=r"No module named 'my_tools'.*runtime_env"):
        await collected(on_ray(**options))


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_a_failed_worker_is_reported_and_the_others_continue(
    sim: SimServer, notebook: Notebook, tmp_path: Path
) -> None:
    first = str(tmp_path / "first")

    def loads() -> str:
        try:
            os.close(os.open(first, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "as it should be"
        raise ModuleNotFoundError("No module named 'my_tools'")

    log = EventList()
    options = notebook.options(sim, 40, tools=[holding(Picky(loads), notebook.note)], workers=2)
    notebook.check(await collected(on_ray(log, **options)), 40)
    assert len(notebook.pids) == 1
    assert any("the others continue without it" in notice for notice in log.notices), log.notices


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
async def test_a_lost_server_stops_a_run_on_ray_and_keeps_its_results(sim: SimServer, notebook: Notebook) -> None:
    found = []

    async def run() -> None:
        async with on_ray(**notebook.options(sim, 200, max_retries=1, max_inflight=8, workers=2)) as stream:
            async for result in stream:
                found.append(result)
                if len(found) == 20:
                    await asyncio.to_thread(sim.stop)

    with pytest.raises(RunStopped):
        await run()
    assert len(found) >= 20


async def test_an_unreachable_server_is_the_same_error_as_without_ray(cluster: Cluster, notebook: Notebook) -> None:
    with SimServer() as gone:
        options = notebook.options(gone, 4, workers=1)
    with pytest.raises(BackendError):
        await collected(on_ray(**options))


async def test_an_open_backend_object_cannot_be_used_on_ray(notebook: Notebook) -> None:
    with pytest.raises(SpecError, match="pass its URL instead"):
        await collected(on_ray(task="{it}", inputs=["a"], backend=ScriptedBackend(lambda request: say("b"))))


async def test_the_error_names_a_tool_that_cannot_be_pickled(sim: SimServer, notebook: Notebook) -> None:
    options = notebook.options(sim, 4, tools=[holding(threading.Lock(), notebook.note)])
    with pytest.raises(SpecError, match="Tool 'note' cannot be sent to other processes"):
        await collected(on_ray(**options))


LOCAL = """
import asyncio, os, pickle, sys
import psutil
from tests.live.test_ray import collected, on_ray

results = asyncio.run(collected(on_ray(**pickle.loads(bytes.fromhex(sys.argv[1])))))
left = [child.name() for child in psutil.Process().children(recursive=True)]
print(len(results), left)
"""


def test_without_a_ray_cluster_one_is_started_and_stopped(sim: SimServer, notebook: Notebook, tmp_path: Path) -> None:
    from ray import cloudpickle

    packed = cloudpickle.dumps(notebook.options(sim, 20, workers=2)).hex()
    environment = os.environ | {"RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", LOCAL, packed]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "20 []\n", done.stderr
    assert "Starting Ray" in done.stderr
    assert "worker" not in done.stderr.replace("2 workers will run agents", "")
