"""`inspect`, `export`, `report` and `serve` of a run on a real Redis server."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import AgentResult, BatchAgent, SpecError, StoreError, Usage
from batch_agent.cli.commands.export import export
from batch_agent.cli.commands.inspect import inspect
from batch_agent.cli.commands.report import report
from batch_agent.cli.commands.serve import agent_trace
from batch_agent.cli.shared_run import SharedRun
from batch_agent.core.requests import Request
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.testing import ScriptedBackend, say

__all__ = ["redis_server"]

DONE = ScriptedBackend(lambda request: say("done", Usage(1_000_000, 0, 1_000_000)))


@pytest.fixture
def name() -> str:
    return f"run-{uuid4().hex}"


def answering(*known: str) -> ScriptedBackend:
    """Answers these inputs, and nothing else."""

    async def answer(request: Request) -> Any:
        text = str(getattr(request.messages[0], "text", ""))
        if text not in known:
            await asyncio.Event().wait()
        return say(f"about {text}")

    return ScriptedBackend(answer)


def listed(server: RedisServer, name: str, folder: Path) -> list[dict[str, Any]]:
    out = folder / "out.jsonl"
    assert export(server.url, run=name, out=out) == 0
    return [orjson.loads(line) for line in out.read_bytes().splitlines()]


def rows(server: RedisServer, name: str, folder: Path) -> dict[int, dict[str, Any]]:
    return {row["index"]: row for row in listed(server, name, folder)}


async def test_every_input_of_an_interrupted_run_has_a_row_with_what_became_of_it(
    redis_server: RedisServer, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs: list[Any] = [{"it": str(n)} for n in range(9)] + [{"other": 1}]
    options: dict[str, Any] = {"store": redis_server.url, "run_id": name, "lease": 2, "max_retries": 0}
    limits: dict[str, Any] = {"max_inflight": 3, "max_agents": 3}
    stream = BatchAgent.stream(task="{it}", inputs=inputs, backend=answering("0", "1"), **options, **limits)
    found: list[AgentResult] = []
    during: dict[int, dict[str, Any]] = {}
    async with stream:
        async for result in stream:
            found.append(result)
            if len(found) == 3:
                during = await asyncio.to_thread(rows, redis_server, name, tmp_path)
                break
    after = await asyncio.to_thread(rows, redis_server, name, tmp_path)
    for seen, unfinished in ((during, "running"), (after, "interrupted")):
        kinds = {index: row["status"] for index, row in seen.items()}
        assert sorted(kinds) == list(range(10))
        assert (kinds[0], kinds[1], kinds[8], kinds[9]) == ("answered", "answered", "not_started", "failed")
        assert set(list(kinds.values())[2:9]) <= {unfinished, "not_started"}
    assert during[2]["status"] == "running"
    assert (after[0]["output"], after[9]["error"]["kind"]) == ("about 0", "bad_input")
    await asyncio.to_thread(inspect, redis_server.url, run=name)
    said = capsys.readouterr().out
    assert said.startswith(f"run {name} at {redis_server.url}")
    assert "agents    10: 2 answered, 1 failed" in said
    assert "not started" in said


async def finished(server: RedisServer, name: str, inputs: Any = None, **options: Any) -> None:
    inputs = [{"it": "a"}, {"it": "b"}] if inputs is None else inputs
    options = {"backend": DONE, "max_retries": 0, **options}
    await BatchAgent.run(task="{it}", inputs=inputs, store=server.url, run_id=name, **options)


async def test_a_finished_run_has_its_answers_usage_and_cost(
    redis_server: RedisServer, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await finished(redis_server, name, model="m", prices={"scripted": (1.0, 0.5, 2.0), "m": (1.0, 0.5, 2.0)})
    found = await asyncio.to_thread(rows, redis_server, name, tmp_path)
    assert [(row["status"], row["output"], row["cost"]) for row in found.values()] == [("answered", "done", 3.0)] * 2
    await asyncio.to_thread(inspect, redis_server.url, run=name)
    said = capsys.readouterr().out
    assert "2,000,000 tokens in" in said
    assert "$6.00" in said
    await asyncio.to_thread(inspect, redis_server.url, run=name, agent="1")
    assert "done" in capsys.readouterr().out


async def test_inputs_that_are_read_lazily_have_rows_from_their_submission_on(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    found: list[AgentResult] = []
    limits: dict[str, Any] = {"max_inflight": 1, "max_agents": 1, "lease": 2}
    stream = BatchAgent.stream(
        task="{it}",
        inputs=({"it": str(n)} for n in range(6)),
        backend=answering("0"),
        store=redis_server.url,
        run_id=name,
        **limits,
    )
    async with stream:
        async for result in stream:
            found.append(result)
            break
    seen = await asyncio.to_thread(rows, redis_server, name, tmp_path)
    assert seen[0]["status"] == "answered"
    assert {row["input"]["it"] for row in seen.values()} == {str(n) for n in range(6)}
    assert "not_started" in {row["status"] for row in seen.values()}


@pytest.mark.slow
async def test_agents_that_fail_without_a_fact_have_their_error(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    deadline = 3.0  # the run has to have started by then, also on a busy machine
    await finished(redis_server, name, backend=answering(), deadline=deadline)
    seen = await asyncio.to_thread(rows, redis_server, name, tmp_path)
    assert [(row["status"], row["error"]["kind"]) for row in seen.values()] == [("failed", "budget")] * 2


async def test_a_run_that_is_continued_with_other_inputs_lists_those(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    await finished(redis_server, name, [{"it": "a"}, {"it": "b"}, {"it": "d"}])
    await finished(redis_server, name, [{"it": "c"}, {"it": "a"}])
    seen = await asyncio.to_thread(listed, redis_server, name, tmp_path)
    assert [(row["index"], row["input"]["it"]) for row in seen][:2] == [(0, "c"), (1, "a")]


async def test_the_report_of_a_run_is_made_from_its_facts(
    redis_server: RedisServer, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await finished(redis_server, name)
    out = tmp_path / "report.html"
    await asyncio.to_thread(report, redis_server.url, run=name, out=out)
    assert capsys.readouterr().out == f"Report: {out}\n"
    [data] = re.findall(r'id="run">(.*?)</script>', out.read_text(), re.DOTALL)
    model = orjson.loads(data)
    assert model["title"] == name
    [stage] = model["stages"]
    assert (stage["total"], stage["answered"]) == (2, 2)


def test_a_run_that_the_server_does_not_have_is_refused_with_those_it_has(redis_server: RedisServer) -> None:
    with pytest.raises(StoreError, match=r"There is no run 'nothing' at redis://127.0.0.1:\d+\. "):
        inspect(redis_server.url, run="nothing")
    with pytest.raises(SpecError, match=r"Add --run NAME"):
        inspect(redis_server.url)
    with pytest.raises(SpecError, match=r"--run is for a run on a server"):
        inspect(Path("results.jsonl.checkpoint"), run="nothing")


@pytest.mark.slow
async def test_the_live_page_of_a_run_shows_what_other_processes_do_until_its_end(
    redis_server: RedisServer, name: str, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def answer(request: Request) -> Any:
        if "1" in str(getattr(request.messages[0], "text", "")):
            await go.wait()
        return say("done")

    shared = SharedRun(redis_server.url, name)
    options: dict[str, Any] = {"store": redis_server.url, "run_id": name}
    backend = ScriptedBackend(answer)
    stream = BatchAgent.stream(task="{it}", inputs=[{"it": "0"}, {"it": "1"}], backend=backend, **options)
    follower = LogFollower(folder := tmp_path / name)
    async with asyncio.TaskGroup() as group, stream:
        await anext(stream)
        recording = group.create_task(shared.record(folder, follows=True))
        await until(follower, lambda model: bool(model["stages"]) and model["stages"][0]["answered"] == 1)
        assert follower.is_running
        go.set()
        await anext(stream)
        await until(follower, lambda model: model["stages"][0]["answered"] == 2)
        async with asyncio.timeout(60):
            async for _ in stream:
                raise AssertionError("there are two agents")
    await recording
    follower.read_all()
    assert follower.model()["state"] == "finished"
    trace = await asyncio.to_thread(agent_trace, folder, "", follower.key("", 1) or "", shared=shared)
    assert "done" in trace


async def until(follower: LogFollower, is_so: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so(follower.model()):
            await asyncio.sleep(0.02)
            follower.poll()
