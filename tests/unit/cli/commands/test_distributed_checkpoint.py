"""What `inspect` and `export` say of a distributed run whose checkpoint is a directory, as on Ray without Redis."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, field_validator
from tests.support.shared_run_workers import LONG, Link, calling, working

from batch_agent import AgentResult, BatchAgent, ErrorKind, Usage
from batch_agent.cli.commands.export import export
from batch_agent.cli.commands.inspect import inspect
from batch_agent.cluster import leased_source
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.core.agent_config import Job
from batch_agent.core.coordinator import Completion, End
from batch_agent.core.requests import Request
from batch_agent.core.results import AgentError
from batch_agent.engine.result_stream import ResultStream
from batch_agent.store.reader import CheckpointReader
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import ScriptedBackend, say

DONE = ScriptedBackend(lambda request: say("done", Usage(1_000_000, 0, 1_000_000)))


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    out = folder / "out.jsonl"
    assert export(folder, out=out, **options) == 0
    return [orjson.loads(line) for line in out.read_bytes().splitlines()]


def statuses(folder: Path) -> dict[int, str]:
    return {row["index"]: row["status"] for row in rows(folder)}


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    inspect(folder)
    return capsys.readouterr().out


def submitted(folder: Path, inputs: Any, backend: Any = DONE, **options: Any) -> ResultStream:
    """A run whose facts a coordinator keeps in a directory. It works itself."""
    options = {"backend": backend, "checkpoint_dir": folder, "lease": LONG, "max_retries": 0, **options}
    return calling(MemoryCoordinator(SqliteStore(folder)), inputs, **options)


async def collected(stream: ResultStream, until: int | None = None) -> list[AgentResult]:
    found: list[AgentResult] = []
    async with stream:
        async for result in stream:
            found.append(result)
            if len(found) == until:
                break
    return found


def answering(*known: str) -> ScriptedBackend:
    """Answers these inputs, and nothing else."""

    async def answer(request: Request) -> Any:
        text = str(getattr(request.messages[0], "text", ""))
        if text not in known:
            await asyncio.Event().wait()
        return say(f"about {text}")

    return ScriptedBackend(answer)


async def test_every_input_of_an_interrupted_run_has_a_row_with_what_became_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs: list[Any] = [{"it": str(n)} for n in range(9)] + [{"other": 1}]
    backend, seen = answering("0", "1"), dict[int, str]()
    stream = submitted(tmp_path, inputs, backend, max_inflight=3, max_agents=3)
    found: list[AgentResult] = []
    async with stream:
        async for result in stream:
            found.append(result)
            if len(found) == 3:
                for _ in range(500):  # starts are sent together with others, a moment later
                    seen = await asyncio.to_thread(statuses, tmp_path)
                    if "running" in seen.values():
                        break
                    await asyncio.sleep(0.02)
                break
    assert sorted((result.index, result.ok) for result in found) == [(0, True), (1, True), (9, False)]
    ended = statuses(tmp_path)
    for kinds, unfinished in ((seen, "running"), (ended, "interrupted")):
        assert sorted(kinds) == list(range(10))
        assert (kinds[0], kinds[1], kinds[9]) == ("answered", "answered", "failed")
        assert kinds[2] == unfinished
        assert set(list(kinds.values())[3:9]) <= {unfinished, "not_started"}
        assert kinds[8] == "not_started"
    said = told(tmp_path, capsys)
    assert "agents    10: 2 answered, 1 failed" in said
    assert "interrupted" in said
    assert "not started" in said
    [problem] = [row["error"] for row in rows(tmp_path) if row["index"] == 9]
    assert problem["kind"] == "bad_input"


async def test_a_finished_run_has_its_failures_costs_and_answers_of_its_own_type(tmp_path: Path) -> None:
    class Even(BaseModel):
        n: int

        @field_validator("n", mode="before")
        @classmethod
        def from_words(cls, value: Any) -> Any:
            return {"two": 2}.get(value, value)

    backend = ScriptedBackend(lambda request: say('{"n": "two"}', Usage(1_000_000, 0, 1_000_000)))
    options: dict[str, Any] = {
        "output_schema": Even,
        "model": "m",
        "prices": {"scripted": (1.0, 0.5, 2.0), "m": (1.0, 0.5, 2.0)},
    }
    results = await collected(submitted(tmp_path, [{"it": "a"}, {"it": "b"}], backend, **options))
    assert [result.output for result in results] == [Even(n=2)] * 2
    assert [(row["status"], row["cost"]) for row in rows(tmp_path)] == [("answered", 3.0)] * 2
    again = await BatchAgent.run(
        task="{it}", inputs=[{"it": "a"}, {"it": "b"}], backend=answering(), checkpoint_dir=tmp_path, **options
    )  # no request is sent
    assert [result.output for result in again] == [Even(n=2)] * 2


async def test_a_run_that_is_continued_with_other_inputs_lists_those(tmp_path: Path) -> None:
    await collected(submitted(tmp_path, [{"it": "a"}, {"it": "b"}], answering("a")), until=1)
    await collected(submitted(tmp_path, [{"it": "c"}, {"it": "a"}]))
    assert [(row["input"]["it"], row["status"]) for row in rows(tmp_path)][:2] == [("c", "answered"), ("a", "answered")]


@pytest.mark.slow
async def test_inputs_that_the_deadline_cut_off_are_not_missing(tmp_path: Path) -> None:
    deadline = 3.0  # the run has to have started by then, also on a busy machine
    results = await collected(submitted(tmp_path, [{"it": str(n)} for n in range(6)], works=False, deadline=deadline))
    assert [result.error.kind for result in results if result.error] == [ErrorKind.BUDGET] * 6
    assert statuses(tmp_path) == dict.fromkeys(range(6), "failed")
    [kind] = {row["error"]["kind"] for row in rows(tmp_path)}
    assert kind == "budget"


@pytest.mark.slow
async def test_workers_of_other_processes_write_into_the_same_checkpoint(tmp_path: Path) -> None:
    coordinator = MemoryCoordinator(SqliteStore(tmp_path))
    await coordinator.open()
    link = Link(coordinator)
    options: dict[str, Any] = {"backend": DONE}
    try:
        async with asyncio.TaskGroup() as group:
            stream = calling(link, [{"it": "a"}, {"it": "b"}], works=False, checkpoint_dir=tmp_path, **options)
            results = group.create_task(collected(stream))
            await asyncio.sleep(0.1)
            group.create_task(working(link.another(), checkpoint_dir=tmp_path, **options))
    finally:
        await coordinator.aclose()
    assert len(results.result()) == 2
    assert statuses(tmp_path) == {0: "answered", 1: "answered"}


async def test_an_agent_that_killed_its_workers_has_failed_whether_it_had_facts_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [{"it": str(n)} for n in range(3)]
    await collected(submitted(tmp_path, inputs, answering("0"), max_agents=1), until=1)
    assert statuses(tmp_path) == {0: "answered", 1: "interrupted", 2: "not_started"}
    monkeypatch.setattr(leased_source, "_MAX_ATTEMPTS", 0)
    results = await collected(submitted(tmp_path, inputs, answering("0")))
    assert sorted(result.ok for result in results) == [False, False, True]
    assert statuses(tmp_path) == {0: "answered", 1: "failed", 2: "failed"}
    problems = [row["error"]["message"] for row in rows(tmp_path) if row["status"] == "failed"]
    assert all("each time its worker died" in problem for problem in problems)


async def test_an_agent_that_ended_before_its_first_fact_is_recorded_with_its_error(tmp_path: Path) -> None:
    coordinator = MemoryCoordinator(SqliteStore(tmp_path))
    await coordinator.open()
    error = AgentError(ErrorKind.INTERNAL, "The agent was started 5 times.")
    try:
        await coordinator.work.submit([Job(3, "key", {"it": "a"}, "a")], retry_failed=False)
        [lease] = await coordinator.work.lease("worker", 1, ttl=60.0, wait=0)
        assert await coordinator.facts.write("worker", 1, [End(lease.token, Completion("key", error))]) == frozenset()
    finally:
        await coordinator.aclose()
    with CheckpointReader(tmp_path) as reader:
        [(index, data, problem)] = reader._input_rows()
    assert (index, orjson.loads(data)) == (3, {"it": "a"})
    assert b"started 5 times" in problem
