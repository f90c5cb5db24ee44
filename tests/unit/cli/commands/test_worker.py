"""`batch-agent run --store` and `batch-agent worker`: processes that work on one run, at a real server."""

import asyncio
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
from tests.support.forked_programs import Call, Program, Programs, typed
from tests.support.redis_server import RedisServer, redis_of_its_own, redis_server

from batch_agent import SpecError, StoreError, read_request_log
from batch_agent.cli.app import main
from batch_agent.cli.commands.worker import WorkerJob
from batch_agent.cli.options.command_options import CommandOptions
from batch_agent.cli.shared_run import COMMAND, SharedRun
from batch_agent.cli.trust_policy import TrustPolicy
from batch_agent.cli.worker_manifest import WorkerManifest
from batch_agent.cluster.presence import ClientPresence
from batch_agent.core.agent_config import Job
from batch_agent.core.errors import PlanMismatch
from batch_agent.core.spec import BatchSpec
from batch_agent.core.task_fields import Fields
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.tools import as_tool

__all__ = ["redis_server"]

AGENTS = 20
SLOWLY = ("--max-inflight", "2", "--lease", "3")
SLOW_STEPS = SimConfig(step_base_ms=20)
"""A server so slow that a worker, which looks for work each second, joins long before the end."""

TOOL = """
from pathlib import Path
from batch_agent import Tool

@Tool.define(effect="write")
def note(name: str) -> str:
    '''Note it.'''
    with Path({place!r}).open("a") as file:
        file.write("noted\\n")
    return "noted"
"""


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SLOW_STEPS, Script(answer_tokens=10)) as sim:
        yield sim.url


@pytest.fixture(scope="module")
def quick_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        yield sim.url


@pytest.fixture(scope="module")
def others() -> Iterator[Programs]:
    """Where workers are started, beside the run."""
    with Programs() as started:
        yield started


Refusal = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Why a command does not even begin: its last line. It needs no process of its own for that."""

    def refused(*words: str, cwd: Path) -> str:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        return capsys.readouterr().err.splitlines()[-1]

    return refused


@pytest.fixture
def name() -> str:
    return f"run-{uuid4().hex[:8]}"


class Place:
    """Two folders, as on two machines: the run's, and a worker's with nothing but the tool."""

    def __init__(self, folder: Path, url: str, store: str, name: str) -> None:
        self.run, self.worker = folder / "run", folder / "worker"
        self.noted = folder / "noted"
        self.out = self.run / "results.jsonl"
        self.checkpoint = self.run / "results.jsonl.checkpoint"
        for place in (self.run, self.worker):
            place.mkdir()
            (place / "mine.py").write_text(TOOL.format(place=str(self.noted)))
        (self.run / "in.jsonl").write_text("".join(f'{{"name": "Zoë {i}"}}\n' for i in range(AGENTS)))
        (self.run / "schema.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
        self.asks = [
            "run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--schema", "schema.json",
            "--tools", "mine:note", "--backend", url, "--store", store, "--run-id", name,
        ]  # fmt: skip
        self.works = ["worker", "--store", store, "--run", name, "--trust", "mine:note"]

    def check_done(self) -> None:
        """Every input has its row, and every agent has called its tool once."""
        rows = [json.loads(line) for line in self.out.read_text().splitlines()]
        assert sorted(row["index"] for row in rows) == list(range(AGENTS))
        assert all(row["ok"] and row["tool_calls"] for row in rows)
        assert self.noted.read_text().count("\n") == AGENTS


@pytest.fixture
def place(tmp_path: Path, sim_url: str, redis_server: RedisServer, name: str) -> Place:
    return Place(tmp_path, sim_url, redis_server.url, name)


@pytest.fixture
def quick_place(tmp_path: Path, quick_url: str, redis_server: RedisServer, name: str) -> Place:
    return Place(tmp_path, quick_url, redis_server.url, name)


def wait_for(said: Path, words: str) -> None:
    for _ in range(3000):
        if said.exists() and words in said.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{words!r} never came: {said.read_text()}")


def stopped(program: Program, number: signal.Signals) -> tuple[int, str]:
    program.send_signal(number)
    return program.wait(), program.stderr.read_text()


def done_by(said: str) -> int:
    found = re.search(r"This worker ran (\d+) agents", said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.slow
def test_a_worker_started_before_the_run_shares_the_work(
    tmp_path: Path, redis_server: RedisServer, name: str, programs: Programs, others: Programs
) -> None:
    with SimServer(SLOW_STEPS, Script(answer_tokens=10)) as sim:
        place = Place(tmp_path, sim.url, redis_server.url, name)
        worker = others.start_command(*place.works, cwd=place.worker)
        wait_for(worker.stderr, "Waiting up to 60 s for run")
        run = programs.call(*place.asks, *SLOWLY, cwd=place.run)
        assert run.returncode == 0, run.stderr
        assert " ".join(["  batch-agent", *place.works]) in run.stderr
        assert worker.wait() == 0, worker.stderr.read_text()
    place.check_done()
    said = worker.stderr.read_text()
    assert 0 < done_by(said) < AGENTS
    assert "No work is left." in said


@pytest.mark.slow
def test_a_worker_shares_the_work_of_a_run_with_a_reduce(
    tmp_path: Path, redis_server: RedisServer, name: str, programs: Programs, others: Programs
) -> None:
    with SimServer(SLOW_STEPS, Script(answer_tokens=10)) as sim:
        place = Place(tmp_path, sim.url, redis_server.url, name)
        worker = others.start_command(*place.works, cwd=place.worker)
        wait_for(worker.stderr, "Waiting up to 60 s for run")
        asks = [*place.asks, *SLOWLY, "--reduce", "Sum up {n} answers."]
        run = programs.call(*asks, cwd=place.run)
        assert run.returncode == 0, run.stderr
        assert worker.wait() == 0, worker.stderr.read_text()
        place.check_done()
        assert 0 < done_by(worker.stderr.read_text()) <= AGENTS
        assert place.out.with_name("results.jsonl.summary.txt").read_text().strip()
        again = programs.call(*asks, cwd=place.run)
        assert again.returncode == 0, again.stderr
        assert f"{AGENTS + 1} answers restored" in again.stderr
        fresh = programs.call(*asks, "--fresh", cwd=place.run)
        assert fresh.returncode == 0, fresh.stderr
        assert "restored" not in fresh.stderr


NOTE_OF_AGENT = """
import json, os
from batch_agent import Tool, ToolContext

@Tool.define(effect="write")
def note(name: str, context: ToolContext) -> str:
    '''Note it.'''
    known = [context.input, context.key, context.index, context.turn, context.run_id]
    (context.artifacts / "note.json").write_text(json.dumps([known, os.getpid()]))
    return "noted"
"""


@pytest.mark.slow
def test_a_tool_on_a_worker_knows_its_agent_and_its_files_are_in_the_results(
    place: Place, programs: Programs, others: Programs
) -> None:
    for folder in (place.run, place.worker):
        (folder / "mine.py").write_text(NOTE_OF_AGENT)
    logs = place.run / "run.log.jsonl", place.worker / "worker.log.jsonl"
    shared = ("--checkpoint", str(place.checkpoint), "--log-requests", str(logs[1]))
    worker = others.start_command(*place.works, *shared, cwd=place.worker)
    wait_for(worker.stderr, "Waiting up to 60 s for run")
    run = programs.call(*place.asks, *SLOWLY, "--key", "name", "--log-requests", str(logs[0]), cwd=place.run)
    assert run.returncode == 0, run.stderr
    assert worker.wait() == 0, worker.stderr.read_text()
    rows = [json.loads(line) for line in place.out.read_text().splitlines()]
    assert len(rows) == AGENTS
    runs, pids = set(), Counter[int]()
    for row in rows:
        [file] = row["artifacts"]
        assert Path(file).is_relative_to(place.checkpoint / "artifacts")
        (value, key, index, turn, run_id), pid = json.loads(Path(file).read_text())
        assert (value, key, index, turn) == (row["input"], row["key"], row["index"], 1)
        assert key == value["name"]
        runs.add(run_id)
        pids[pid] += 1
    assert len(runs) == 1
    assert len(pids) == 2
    logged = [Counter(line["key"] for line in read_request_log(log) if line["key"]) for log in logs]
    assert sorted(map(len, logged)) == sorted(pids.values())
    assert sum(logged, Counter()) == Counter({row["key"]: 2 for row in rows})


@pytest.mark.slow
def test_a_stopped_process_loses_nothing_and_other_processes_continue(
    place: Place, redis_server: RedisServer, name: str, programs: Programs, others: Programs
) -> None:
    run = programs.start_command(*place.asks, *SLOWLY, cwd=place.run)
    wait_for(place.out, "\n")
    status, said = stopped(run, signal.SIGTERM)
    assert status == 143, said
    left = remaining(redis_server.url, name)
    assert 0 < left < AGENTS
    worker = others.start_command(*place.works, cwd=place.worker)
    while remaining(redis_server.url, name) > left - 3:
        time.sleep(0.01)
    status, said = stopped(worker, signal.SIGINT)
    assert status == 130
    assert "Other workers take over its unfinished agents." in said
    assert 3 <= done_by(said) < left
    assert others.call(*place.works, cwd=place.worker).returncode == 0
    again = programs.call("resume", str(place.checkpoint), cwd=place.worker)
    assert again.returncode == 0, again.stderr
    assert f"{AGENTS} answers restored from the checkpoint" in again.stderr
    place.check_done()


def remaining(url: str, name: str) -> int:
    async def look() -> int:
        async with SharedRun(url, name).connect() as coordinator:
            return await coordinator.work.pending_count()

    return asyncio.run(look())


@pytest.mark.slow
def test_an_unknown_run_is_an_error_that_lists_known_runs(tmp_path: Path, redis_server: RedisServer) -> None:
    asyncio.run(offer(redis_server.url, "reviews", b"{}"))
    done = typed("worker", "--store", redis_server.url, "--run", "review", "--patience", "0.1", cwd=tmp_path)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"batch-agent: There is no run 'review' at {redis_server.url}. Existing runs: ")
    assert re.search(r"\breviews\b", last)


async def offer(url: str, name: str, command: bytes | None, plan: dict[str, str] | None = None) -> None:
    """As if a run had been started and its caller were gone."""
    async with SharedRun(url, name).connect() as coordinator:
        if command is not None:
            assert await coordinator.documents.compare_and_set(COMMAND, None, command)
        if plan is not None:
            assert await coordinator.documents.compare_and_set("plan", None, json.dumps(plan).encode())
        await coordinator.work.submit([Job(0, "key", {"name": "Zoë"}, "Who is Zoë?")], retry_failed=False)


def asked(**options: Any) -> WorkerManifest:
    return WorkerManifest.of(CommandOptions(**{"task": "Who is {name}?", "inputs": "in.jsonl", **options}), 15.0)


def test_a_worker_with_a_different_task_is_refused(
    tmp_path: Path, redis_server: RedisServer, quick_url: str, name: str, refusal: Refusal
) -> None:
    command = asked(backend=quick_url).to_json()
    asyncio.run(offer(redis_server.url, name, command, {"task": "Where is {name}?"}))
    said = refusal("worker", "--store", redis_server.url, "--run", name, cwd=tmp_path)
    assert f"would differ from those of run '{name}': task (was 'Where is {{name}}?', is " in said
    assert "Install the same code" in said
    assert "plan_changed" not in said


def test_a_run_started_by_python_code_is_joined_by_the_same_code(
    tmp_path: Path, redis_server: RedisServer, name: str, refusal: Refusal
) -> None:
    asyncio.run(offer(redis_server.url, name, None))
    said = refusal("worker", "--store", redis_server.url, "--run", name, cwd=tmp_path)
    assert "start the same Python program here" in said


def test_a_missing_module_or_file_is_a_one_line_error(
    tmp_path: Path, redis_server: RedisServer, name: str, refusal: Refusal
) -> None:
    asyncio.run(offer(redis_server.url, name, asked(tools=["gone:look"]).to_json()))
    started = Path.cwd()
    words = ("worker", "--store", redis_server.url, "--run", name)
    assert "module 'gone' cannot be imported" in refusal(*words, "--trust", "gone", cwd=tmp_path)
    said = refusal(*words, cwd=tmp_path)
    assert "The run's tool 'gone:look' is code that this worker does not trust" in said
    assert f"(The run was started in '{started}'.)" in said


@pytest.mark.slow
def test_a_redis_password_is_neither_shown_nor_stored(
    tmp_path: Path, quick_url: str, name: str, call: Call, refusal: Refusal
) -> None:
    with redis_of_its_own("--requirepass", "s3cret") as server:
        store = server.url.replace("://", "://:s3cret@")
        place = Place(tmp_path, quick_url.replace("://", "://me:s3cret@"), store, name)
        first = call(*place.asks, cwd=place.run)
        assert first.returncode == 0, first.stderr
        assert f"--store {server.url} --run {name} --trust mine:note\n  (add the password to the URL" in first.stderr
        kept = asyncio.run(kept_at(store, name))
        texts = [first.stderr, kept, *(file.read_text() for file in place.checkpoint.iterdir())]
        assert [text for text in texts if "s3cret" in text] == []
        words = ("resume", str(place.checkpoint), "--backend", quick_url)
        assert "--store URL" in refusal(*words, cwd=tmp_path)
        again = call(*words, cwd=tmp_path, BATCH_AGENT_STORE=store)
        assert f"{AGENTS} answers restored from the checkpoint" in again.stderr
        wrong = refusal("worker", "--store", store.replace("s3cret", "gue55"), "--run", name, cwd=tmp_path)
        assert "rejected the credentials" in wrong
        assert "gue55" not in wrong


async def kept_at(url: str, name: str) -> str:
    async with SharedRun(url, name).connect() as coordinator:
        data = (await coordinator.documents.read(COMMAND)).data
        assert data is not None
        return data.decode()


@pytest.mark.slow
async def test_fresh_removes_the_shared_run_unless_it_is_active(
    quick_place: Place, redis_server: RedisServer, name: str, call: Call
) -> None:
    place, words = quick_place, quick_place.asks
    assert call(*words, cwd=place.run).returncode == 0
    async with (
        SharedRun(redis_server.url, name).connect() as coordinator,
        ClientPresence(coordinator.documents, 15.0).present("another"),
    ):
        refused = await asyncio.to_thread(call, *words, "--fresh", cwd=place.run)
    assert refused.returncode == 2
    assert f"Another process is running '{name}'" in refused.stderr
    assert "restored from the checkpoint" in call(*words, cwd=place.run).stderr
    place.noted.unlink()
    again = call(*words, "--fresh", cwd=place.run)
    assert again.returncode == 0, again.stderr
    assert "restored from the checkpoint" not in again.stderr
    place.check_done()


def test_options_that_a_shared_run_does_not_support_are_a_one_line_error(quick_place: Place, refusal: Refusal) -> None:
    asks = [word for word in quick_place.asks if word not in ("--tools", "mine:note")]
    alone = asks[: asks.index("--store")]
    for words, problem in (
        ((*asks, "--models", "a", "b"), "--models cannot be used with --store"),
        ((*asks, "--lease", "0"), "lease must be at least 1 second"),
        ((*alone, "--workers", "2"), "--workers needs --cluster 'ray'"),
    ):
        assert problem in refusal(*words, cwd=quick_place.run)
    assert not quick_place.checkpoint.exists()


@pytest.mark.slow
def test_a_checkpoint_elsewhere_is_not_started_over_by_mistake(
    quick_place: Place, call: Call, refusal: Refusal
) -> None:
    here = quick_place.run
    asks = [word for word in quick_place.asks if word not in ("--tools", "mine:note")]
    alone = asks[: asks.index("--store")]
    assert call(*asks, cwd=here).returncode == 0
    assert "Add --store" in refusal(*alone, cwd=here)
    assert f"{AGENTS} answered" in call("inspect", str(quick_place.checkpoint), cwd=here).stdout
    assert call(*alone, "--out", "alone.jsonl", cwd=here).returncode == 0
    assert "Remove --store" in refusal(*asks, "--out", "alone.jsonl", cwd=here)
    elsewhere = ("--store", "redis://127.0.0.1:1")
    assert "started without --store" in refusal("resume", "alone.jsonl.checkpoint", *elsewhere, cwd=here)


async def test_a_rejected_command_is_removed_from_the_coordinator(redis_server: RedisServer, name: str) -> None:
    run = SharedRun(redis_server.url, name)
    async with run.publish(b"first", b"whole"):
        pass
    with suppress(PlanMismatch):
        async with run.publish(b"second", b"whole"):
            assert await kept_at(redis_server.url, name) == "second"
            raise PlanMismatch("no")
    assert await kept_at(redis_server.url, name) == "first"
    async with run.publish(b"third", b"whole"):
        pass
    assert await kept_at(redis_server.url, name) == "third"


def test_a_worker_sends_the_same_requests_as_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    said: dict[str, Any] = {
        "task": "Sum up.",
        "fields": ["title", "text"],
        "tools": ["grep", "http_get"],
        "schema": "schema.json",
        "backend": "vllm://there:8000",
        "model": "small",
        "temperature": 0.5,
        "max_tokens": 7,
        "seed": 3,
        "tool_mode": "action",
        "max_inflight": 8,
        "max_turns": 4,
        "max_retries": 1,
        "max_total_tokens": 900,
        "max_usd": 1.5,
        "deadline": 60.0,
        "timeout_per_agent": 50.0,
        "timeout_per_turn": 40.0,
        "timeout_per_tool": 30.0,
        "system_prompt": "Be brief.",
        "oversized": "chunk",
    }
    command = WorkerManifest.from_json(asked(**said).to_json())
    (tmp_path / "schema.json").unlink()
    trust = command.flags()[1:]
    assert trust == ["http_get", str(tmp_path)]
    ours = WorkerJob(SharedRun("redis://there", "reviews"), {}, trust).spec(command)
    own = {name: said[name] for name in said.keys() - {"task", "fields", "tools", "schema"}}
    theirs = BatchSpec.of(
        task=Fields("Sum up.", "title", "text"), inputs=[], output_schema={"type": "integer"}, tools=ours.tools,
        store="redis://there", run_id="reviews", **own,
    )  # fmt: skip
    assert repr(ours) == repr(theirs)
    assert [as_tool(tool).spec.name for tool in ours.tools] == ["grep", "http_get"]


def test_file_tools_of_a_worker_read_files_in_the_encoding_of_the_run(tmp_path: Path) -> None:
    text = "Привет, мир"
    (tmp_path / "old.txt").write_bytes(text.encode("cp1251"))
    options = {"inputs": str(tmp_path), "tools": ["read_file", "grep"], "encoding": "cp1251"}
    command = WorkerManifest.from_json(asked(**options).to_json())
    spec = WorkerJob(SharedRun("redis://there", "x"), {}, [str(tmp_path)]).spec(command)
    read, grep = (as_tool(tool) for tool in spec.tools)
    assert read.function(path="old.txt") == text
    assert text in str(grep.function(pattern="мир"))


ONLY_SUBMITTER = {
    "inputs query limit sample sample_seed where input_format": "inputs arrive as jobs, in JSON",
    "mcp": "refused with --store",
    "config": "its values are options",
    "backends": "the one that is used is the backend",
    "no_hoist no_reorder": "the order of inputs; prompts arrive with the jobs",
    "strict_prefix": "checks the inputs",
    "samples models": "jobs arrive one for each sample; models= is refused with --store",
    "score": "answers are scored where they arrive",
    "tokens": "refused with --store",
    "log_requests": "a file of the submitter's machine; a worker has a --log-requests of its own",
}
"""Options that workers do not get, and why."""


def test_every_option_of_a_run_reaches_its_workers_or_is_only_the_submitters() -> None:
    command = asked(encoding="cp1252", images=["x"], key="id", stop=["END"], extra=["top_k=1"], prices=["m=1,1,1"])
    own = {"folder", "format", "options", "root", "schema_name", "lease", "backend_name"}
    of_reduce = {"reduce", "reduce_schema", "reduce_schema_name", "reducer_model"}  # of another group of options
    sent = {*command.options, *command.__slots__} - own - of_reduce
    kept = {name for names in ONLY_SUBMITTER for name in names.split()}
    assert sent & kept == set()
    assert sorted(sent | kept) == sorted(CommandOptions.__slots__)


def test_options_of_the_worker_override_those_of_the_run() -> None:
    said = {"backend": "vllm://here:8000", "max_inflight": 3, "lease": 5.0}
    spec = WorkerJob(SharedRun("redis://there", "x"), said, []).spec(asked(backend="vllm://there:8000"))
    assert (spec.backend, spec.limits.max_inflight, spec.distribution.lease) == ("vllm://here:8000", 3, 5.0)


def test_a_backend_url_with_a_password_must_be_given_to_the_worker() -> None:
    run = SharedRun("redis://there", "x")
    command = asked(backend="vllm://me:s3cret@there:8000")
    assert b"s3cret" not in command.to_json()
    with pytest.raises(SpecError, match="--backend URL"):
        WorkerJob(run, {}, []).spec(command)
    assert WorkerJob(run, {"backend": "vllm://here"}, []).spec(command).backend == "vllm://here"


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"format": 1}',
        asked().to_json().replace(b'"format":1', b'"format":9'),
        asked().to_json().replace(b'"max_turns"', b'"out"'),
    ],
)
def test_a_run_of_another_version_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="the same version"):
        WorkerManifest.from_json(data)


def test_a_run_uses_only_what_the_owner_of_the_worker_allows(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, here / "data", there):
        folder.mkdir()
    nothing = TrustPolicy()
    with pytest.raises(SpecError, match="run commands on this machine as you"):
        nothing.check_program("opencode")
    TrustPolicy(["opencode"]).check_program("opencode")
    with pytest.raises(SpecError, match="--trust web_search"):
        nothing.check_built_in("web_search")
    TrustPolicy(["web_search"]).check_built_in("web_search")
    for name in ("mine:look", "os:system", "pydantic.v1:BaseModel", ":x", "mine", ""):
        with pytest.raises(SpecError, match="--trust"):
            nothing.check_module(name, "The tool")
    some = TrustPolicy(["pydantic", "mine:look", str(there)])
    for name in ("pydantic:BaseModel", "pydantic.v1:BaseModel", "mine:look"):
        some.check_module(name, "The tool")
    for name in ("mine:system", "mine", "pydantic_core:to_json", "os:system"):
        with pytest.raises(SpecError, match="--trust"):
            some.check_module(name, "The tool")
    some.check_folder(there / ".", "It reads")
    for folder in (here, here / ".." / "there" / "..", Path("/")):
        with pytest.raises(SpecError, match="add --trust"):
            some.check_folder(folder, "It reads")
    with pytest.raises(SpecError, match="does not exist on this machine"):
        some.check_folder(there / "gone", "It reads")


def test_only_tools_are_imported_from_a_trusted_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"mine_{uuid4().hex}"
    lines = ["from os import system", "from batch_agent import Tool", "", "def plain(x: str) -> str:", "    return x"]
    lines += ["", "@Tool.define", "def look(x: str) -> str:", "    return x", ""]
    (tmp_path / f"{name}.py").write_text("\n".join(lines))
    run = SharedRun("redis://there", "x")

    def tools_of(tool: str, *trust: str) -> list[Any]:
        return list(WorkerJob(run, {}, list(trust)).spec(asked(tools=[f"{name}:{tool}"])).tools)

    for tool in ("system", "plain"):
        with pytest.raises(SpecError, match=f"not defined with @Tool.define.*--trust {name}:{tool}"):
            tools_of(tool, name)
    assert len(tools_of("look", name)) == 1
    assert len(tools_of("plain", f"{name}:plain")) == 1
    with pytest.raises(SpecError, match=f"--trust {name}:system"):
        tools_of("system", f"{name}:plain")


def test_a_refused_run_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cleanup.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    run = SharedRun("redis://there", "x")
    for options in (
        {"tools": ["cleanup:nothing"]},
        {"schema": "cleanup:Model"},
        {"runtime": "cleanup:agent"},
        {"tools": ["good:tool"], "schema": "cleanup:Model"},
    ):
        with pytest.raises(SpecError, match="code that this worker does not trust"):
            WorkerJob(run, {}, ["good"]).spec(asked(**options))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("backend", "variable"),
    [
        ("openai://127.0.0.1:9", "OPENAI_API_KEY"),
        ("openai://", "OPENAI_API_KEY"),
        ("https://attacker.example/v1", "OPENAI_API_KEY"),
        ("anthropic://attacker.example", "ANTHROPIC_API_KEY"),
        ("vllm://attacker.example:8000", "VLLM_API_KEY"),
        ("bedrock://us-east-1/model", "AWS credentials"),
        ("hostfile:///etc/hosts", "a file on this machine"),
        ("local:///etc/passwd", "a file on this machine"),
    ],
)
def test_an_api_key_is_not_sent_to_a_backend_named_only_by_the_run(
    backend: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "sk-of-the-worker")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    command, run = asked(backend=backend), SharedRun("redis://there", "x")
    with pytest.raises(SpecError, match=f"would use .*{variable}.*--backend {re.escape(backend)}"):
        WorkerJob(run, {}, []).spec(command)
    said = command.flags()
    assert said == ["--backend", backend]
    assert WorkerJob(run, {"backend": backend}, []).spec(command).backend == backend


def test_a_backend_without_a_key_need_not_be_given_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for backend in ("vllm://there:8000", "http://there:8000", "local://"):
        assert WorkerJob(SharedRun("redis://there", "x"), {}, []).spec(asked(backend=backend))
        assert asked(backend=backend).flags() == []


def test_a_forged_run_on_redis_gets_no_key_and_runs_no_command(
    tmp_path: Path, redis_server: RedisServer, name: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a real server of the attacker's, which never hears of the key."""
    (tmp_path / "my_tools.py").write_text("from os import system\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-victim-0123456789")
    works = ("worker", "--store", redis_server.url, "--run", name, "--patience", "1")
    with EvilServer() as evil:
        asyncio.run(offer(redis_server.url, name, asked(backend=f"openai://127.0.0.1:{evil.port}").to_json()))
        assert "would use your OPENAI_API_KEY" in refusal(*works, cwd=tmp_path)
        assert evil.heard == []
        other = f"{name}-tools"
        command = asked(backend=f"http://127.0.0.1:{evil.port}", tools=["my_tools:system"])
        asyncio.run(offer(redis_server.url, other, command.to_json()))
        named = (*works[:4], other, *works[5:], "--backend", f"http://127.0.0.1:{evil.port}")
        assert "code that this worker does not trust" in refusal(*named, cwd=tmp_path)
        assert "not defined with @Tool.define" in refusal(*named, "--trust", "my_tools", cwd=tmp_path)
        assert evil.heard == []
        refusal(*works, "--backend", f"openai://127.0.0.1:{evil.port}", cwd=tmp_path)  # now its owner named it
        assert "Bearer sk-victim-0123456789" in evil.heard


class EvilServer(ThreadingHTTPServer):
    """Hears what it is sent as Authorization, and answers nothing useful."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hears)
        self.port = self.server_address[1]
        self.heard: list[str | None] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Hears(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, EvilServer)
        server.heard.append(self.headers.get("Authorization"))
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:
        pass
