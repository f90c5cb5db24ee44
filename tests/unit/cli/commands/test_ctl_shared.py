"""`batch-agent ctl` for a distributed run: a caller and two workers, in processes of their own, at a real server."""

import asyncio
import json
import re
import signal
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

from batch_agent import AgentResult, BatchAgent, SpecError, StoreError, Usage
from batch_agent.cli.shared_run import SharedRun
from batch_agent.cluster.added_inputs import AddedInputs, record_inputs
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.cluster.shared_budget import shared_spending
from batch_agent.cluster.shared_control import begin_controls, change_run, read_controls
from batch_agent.cluster.shared_limits import workers_of
from batch_agent.core.options.control_request import ControlRequest
from batch_agent.core.requests import Request
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, say

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
        return AGENTS - await coordinator.work.pending_count(), len(await workers_of(coordinator.documents))


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
    backend: str
    processes: list[Program]
    terminal: Programs

    def ctl(self, *more: str) -> list[str]:
        done = self.terminal.call("ctl", self.store, "--run", self.name, *more, cwd=self.place)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def ended(self) -> int:
        return asyncio.run(look(self.store, self.name))[0]

    def has_submitted_all(self) -> bool:
        """Of a paused run: whether every input is at the server, or has its result."""
        out = self.place / "out.jsonl"
        return self.ended() == (len(rows(out)) if out.exists() else 0)

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
        works = ("worker", "--store", store, "--run", name)
        workers = [each.start_command(*works, cwd=tmp_path) for each in (second, third)]
        until(lambda: all("Waiting up to" in each.stderr.read_text() for each in workers), *workers)
        caller = programs.start_command(*words, cwd=tmp_path)  # a busy machine could end the run before they are there
        run = StartedRun(tmp_path, store, name, sim.url, [caller, *workers], terminal)
        until(lambda: asyncio.run(look(store, name))[1] == 3, *run.processes)
        assert str(*asyncio.run(BatchAgent.control(store, run_id=name, pause=True))) == "pause: no -> yes"
        return run

    return started


@pytest.mark.slow
def test_all_processes_of_a_distributed_run_obey(start: Start, sim: SimServer) -> None:
    run = start("--max-inflight", "3", "--max-usd", "5")
    run.until_all_said("Steered: pause: no -> yes")
    until(lambda: sim.metrics()["vllm:num_requests_running"] == 0)
    until(run.has_submitted_all)
    before = sim.metrics()["vllm:prompt_tokens_total"]
    assert run.ended() < AGENTS - 2
    changes = run.ctl("--max-inflight", "6", "--max-usd", "4", "--deadline", "600", "--cancel", "118", "119")
    assert changes[0] == "max_inflight: 3 -> 6"
    assert re.fullmatch(r"max_usd: 5 -> 4 \(\S+ spent\)", changes[1])
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
    assert "There are no inputs to add" in asyncio.run(refused(add=[]))
    assert "Say what to change" in asyncio.run(refused())
    assert f"There is no run 'gone' at {run.store}" in asyncio.run(refused("gone", pause=True))
    assert f"--run {run.name}" in asyncio.run(refused(f"{run.name}.map", pause=True))
    folder = typed("ctl", "out.jsonl.checkpoint", "--resume", cwd=run.place)
    assert folder.stdout == "pause: yes -> no\n", folder.stderr
    assert run.end() == [0, 0, 0]


ADDED = [{"name": "Bo 0"}, {"name": "Bo 1"}, {"name": "Ada 0"}, {"other": 1}]
"""New ones, a copy of an input of the run, and one that does not fit its task."""


def add(run: StartedRun) -> list[str]:
    (run.place / "more.jsonl").write_text("".join(f"{json.dumps(value)}\n" for value in ADDED))
    return run.ctl("--add", "more.jsonl")


def check_each_once(run: StartedRun) -> None:
    """Every input, and every one that was added, has one result, in the file and on the server."""
    written = rows(run.place / "out.jsonl")
    wanted = [*({"name": f"Ada {n}"} for n in range(AGENTS)), *ADDED]
    assert sorted(row["index"] for row in written) == list(range(AGENTS + 4))
    assert [row["input"] for row in sorted(written, key=lambda row: row["index"])] == wanted
    assert [row["index"] for row in written if not row["ok"]] == [AGENTS + 3]
    assert len({row["key"] for row in written}) == AGENTS + 4
    done = run.terminal.call("export", run.store, "--run", run.name, "--out", "again.jsonl", cwd=run.place)
    assert done.returncode == 0, done.stderr
    again = rows(run.place / "again.jsonl")
    assert [(row["index"], row["input"]) for row in again] == list(enumerate(wanted))
    assert Counter(row["status"] for row in again) == {"answered": AGENTS + 3, "failed": 1}


@pytest.mark.slow
def test_added_inputs_are_run_by_all_processes(start: Start) -> None:
    run = start("--max-inflight", "3")
    assert add(run) == [f"inputs: {AGENTS} -> {AGENTS + 4}"]
    run.until_all_said(f"Steered: inputs: {AGENTS} -> {AGENTS + 4}")
    run.ctl("--resume")
    assert run.end() == [1, 0, 0]  # an input does not fit
    assert f"{AGENTS + 3} of {AGENTS + 4} agents answered" in run.processes[0].stderr.read_text()
    check_each_once(run)


@pytest.mark.slow
@pytest.mark.parametrize("kills_first", [False, True])
def test_added_inputs_survive_a_caller_that_is_killed_and_started_again_at_once(
    start: Start, programs: Programs, kills_first: bool
) -> None:
    """Before the caller has read of the addition, or after it was killed."""
    run = start("--max-inflight", "3")
    caller = run.processes[0]
    if kills_first:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
    said = add(run)
    if not kills_first:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
    assert said[0].startswith(f"inputs: {AGENTS} -> {AGENTS + 4}")
    again = command(run.place, run.backend, run.store, run.name, "--prices", "sim=1,1,1", "--max-inflight", "3")
    run.processes[0] = programs.start_command(*again, cwd=run.place)
    until(lambda: asyncio.run(look(run.store, run.name))[1] >= 3, *run.processes)
    run.ctl("--resume")
    assert run.end() == [1, 0, 0], run.processes[0].stderr.read_text()
    check_each_once(run)
    last = programs.start_command(*again, cwd=run.place)  # a complete run has them too
    assert last.wait() == 1
    check_each_once(run)


def waiting_for(allowed: asyncio.Event) -> ScriptedBackend:
    """Answers all inputs but the last, which waits."""

    async def answer(request: Request) -> Any:
        if "last" in str(request.messages[0]):
            await allowed.wait()
        return say("done", Usage(100, 0, 100))

    return ScriptedBackend(answer)


async def test_inputs_are_added_until_the_last_result_and_then_refused(redis_server: RedisServer) -> None:
    """The addition arrives when every input but one has its result."""
    store, name, allowed, found = redis_server.url, f"run-{uuid4().hex[:8]}", asyncio.Event(), list[AgentResult]()
    inputs = [{"it": "a"}, {"it": "last"}]
    options: dict[str, Any] = {"store": store, "run_id": name, "samples": 2}
    async with BatchAgent.stream(task="{it}", inputs=inputs, backend=waiting_for(allowed), **options) as stream:
        async for result in stream:
            found.append(result)
            if len(found) == 2:
                [added] = await BatchAgent.control(store, run_id=name, add=[{"it": "b"}])
                assert (str(added), added.agents) == ("inputs: 2 -> 3", 2)
                allowed.set()
        assert stream.total == 6
    assert Counter((result.index, result.input["it"]) for result in found) == {(0, "a"): 2, (1, "last"): 2, (2, "b"): 2}
    with pytest.raises(StoreError, match="is not running"):
        await BatchAgent.control(store, run_id=name, add=[{"it": "c"}])


async def test_a_run_that_has_all_results_takes_no_more_inputs(redis_server: RedisServer) -> None:
    coordinator = RedisCoordinator(redis_server.url, f"run-{uuid4().hex[:8]}")
    await coordinator.open()
    try:
        await begin_controls(coordinator.documents, {"inputs": 3}, is_flow=False)
        added, taken = AddedInputs(coordinator.documents, "caller"), list[Any]()
        with pytest.raises(SpecError, match="starting or ending"):
            await change_run(coordinator, ControlRequest(), {}, await record_inputs(coordinator.documents, ["early"]))
        await added.open(taken.extend)
        [change] = await change_run(
            coordinator, ControlRequest(), {}, await record_inputs(coordinator.documents, ["a", "b"])
        )
        assert str(change) == "inputs: 3 -> 5 (when the run is resumed: it has no caller)"
        assert (await added.close(), taken) == (False, ["a", "b"])
        assert (await added.close(), taken) == (True, ["a", "b"])
        with pytest.raises(SpecError, match="starting or ending"):
            await change_run(coordinator, ControlRequest(), {}, await record_inputs(coordinator.documents, ["late"]))
        next_caller = AddedInputs(coordinator.documents, "next")
        controls, _ = await read_controls(coordinator.documents)
        assert controls is not None
        await next_caller.update(controls)
        assert next_caller.known == ["a", "b"]
    finally:
        await coordinator.aclose()


async def test_a_changed_budget_says_what_all_processes_have_spent(redis_server: RedisServer) -> None:
    store, name, allowed = redis_server.url, f"run-{uuid4().hex[:8]}", asyncio.Event()
    options: dict[str, Any] = {"store": store, "run_id": name, "max_usd": 1000, "max_tokens": 1000}
    options |= {"model": "scripted", "prices": {"scripted": (10_000.0, 5_000.0, 20_000.0)}}
    inputs, spent = [{"it": "a"}, {"it": "b"}, {"it": "last"}], 0.0
    async with (
        BatchAgent.stream(task="{it}", inputs=inputs, backend=waiting_for(allowed), **options) as stream,
        SharedRun(store, name).connect() as coordinator,
    ):
        await anext(stream)
        await anext(stream)
        async with asyncio.timeout(LIMIT):
            while spent != 6.0:  # it is reported twice a second
                spent = (await shared_spending(coordinator.documents)).usd
                await asyncio.sleep(0.02)
        [change] = await BatchAgent.control(store, run_id=name, max_usd=900)
        assert str(change) == "max_usd: 1000 -> 900 (6 spent)"
        allowed.set()
        assert (await anext(stream)).ok
