"""What `inspect` and `export` say of every input, after failures, interruptions and kills."""

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tests.support.forked_programs import Programs

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Flow, RunStopped, Usage
from batch_agent.cli.commands.export import export
from batch_agent.cli.commands.inspect import inspect
from batch_agent.core.requests import Request
from batch_agent.data import as_row
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, say

REFUSED = '[[sim: {"fault": "400"}]]'
DONE = ScriptedBackend(lambda request: say("done", Usage(1_000_000, 0, 1_000_000)))


async def run(folder: Path, inputs: Iterable[Any], backend: Any = DONE, **options: Any) -> list[AgentResult]:
    options = {"task": "Say {it}", "max_retries": 0, **options}
    results: list[AgentResult] = await BatchAgent.run(inputs=inputs, backend=backend, checkpoint_dir=folder, **options)
    return results


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    out = folder / "out.jsonl"
    assert export(folder, out=out, **options) == 0
    return [orjson.loads(line) for line in out.read_bytes().splitlines()]


def statuses(folder: Path) -> list[tuple[int, Any, str]]:
    return [(row["index"], row["input"], row["status"]) for row in rows(folder)]


def told(folder: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    capsys.readouterr()
    inspect(folder, **options)
    return capsys.readouterr().out


def text_of(request: Request) -> str:
    return str(getattr(request.messages[0], "text", ""))


async def test_the_failures_of_a_finished_run_are_counted_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs: list[dict[str, Any]] = [{"it": f"{n} {REFUSED}" if n % 10 == 3 else str(n)} for n in range(60)]
    inputs += [{"other": 1}, {"it": "word " * 5_000}]
    with SimServer(SimConfig(zero_latency=True, max_model_len=2_048), Script(answer_tokens=4)) as sim:
        results = await run(tmp_path, inputs, sim.url)
    said = told(tmp_path, capsys)
    assert "agents    62: 54 answered, 8 failed\n" in said
    assert "6 bad_request, 1 bad_input, 1 context_overflow" in said
    found = rows(tmp_path)
    for row, result in zip(found, results, strict=True):
        expected = as_row(result)
        assert {name: row[name] for name in row if name != "seconds"} == {
            name: expected[name] for name in expected if name != "seconds"
        }
    assert found[3]["error"]["kind"] == "bad_request"
    assert found[3]["error"]["message"] == str(results[3].error).partition(": ")[2]
    assert "failed    bad_request: HTTP 400" in told(tmp_path, capsys, agent="3")
    assert "failed    before its first request: bad_input" in told(tmp_path, capsys, agent="60")


async def test_a_long_field_of_an_input_comes_back_whole(tmp_path: Path) -> None:
    long = "ä" * 5_000
    await run(tmp_path, [{"it": "a", "text": long}, {"it": 1, "text": long}])
    assert [row["input"]["text"] for row in rows(tmp_path)] == [long, long]


async def test_a_stopped_run_says_what_was_interrupted_and_what_never_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = asyncio.Event()

    async def answer(request: Request) -> Answer:
        if text_of(request) == "Say c":
            waiting.set()
            await asyncio.Event().wait()
        return say("done")

    running = asyncio.create_task(
        run(tmp_path, list("abcde"), ScriptedBackend(answer), max_inflight=1, reorder=False, max_agents=1)
    )
    await waiting.wait()
    for _ in range(2_000):
        if statuses(tmp_path)[2][2] != "not_started":  # its start is written a moment later
            break
        await asyncio.sleep(0.005)
    assert "agents    5: 2 answered, 0 failed, 1 running, 2 not started\n" in told(tmp_path, capsys)
    assert told(tmp_path, capsys, agent="2").endswith("running   turn 1 has no reply yet\n")
    running.cancel()
    await asyncio.wait([running])
    said = told(tmp_path, capsys)
    assert "agents    5: 2 answered, 0 failed, 1 interrupted, 2 not started\n" in said
    assert told(tmp_path, capsys, agent="2").endswith("interrupted turn 1 has no reply yet\n")
    assert "not started" in told(tmp_path, capsys, agent="4")
    assert statuses(tmp_path) == [
        (0, "a", "answered"),
        (1, "b", "answered"),
        (2, "c", "interrupted"),
        (3, "d", "not_started"),
        (4, "e", "not_started"),
    ]
    assert [row["error"] and row["error"]["kind"] for row in rows(tmp_path)][2:] == [
        "interrupted",
        "not_started",
        "not_started",
    ]
    await run(tmp_path, list("abcde"))
    assert "agents    5: 5 answered, 0 failed\n" in told(tmp_path, capsys)


async def test_a_server_that_died_interrupts_agents_and_fails_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: Request) -> Answer:
        return say("done") if text_of(request) == "Say a" else BackendError(ErrorKind.AUTH, "wrong key")

    with suppress(RunStopped):
        await run(tmp_path, list("abc"), ScriptedBackend(answer), max_inflight=1, reorder=False, max_agents=1)
    by_input = {row["input"]: row["status"] for row in rows(tmp_path)}
    assert by_input["a"] == "answered"
    assert set(by_input) == set("abc")
    await run(tmp_path, list("abc"))
    assert {row["status"] for row in rows(tmp_path)} == {"answered"}


@pytest.mark.slow
async def test_a_deadline_fails_what_it_does_not_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.Event().wait()
        return say("never")

    deadline = 3.0  # the run has to have started by then, also on a busy machine
    await run(tmp_path, list("abcd"), ScriptedBackend(answer), max_inflight=1, max_agents=1, deadline=deadline)
    assert "agents    4: 0 answered, 4 failed\n" in told(tmp_path, capsys)
    assert [row["error"]["kind"] for row in rows(tmp_path)] == ["budget"] * 4
    await run(tmp_path, list("abcd"))
    assert "agents    4: 4 answered, 0 failed\n" in told(tmp_path, capsys)


async def test_inputs_that_moved_keep_their_answers(tmp_path: Path) -> None:
    await run(tmp_path, list("abc"))
    down = ScriptedBackend(lambda request: BackendError(ErrorKind.BAD_REQUEST, "no"))
    await run(tmp_path, list("xcbaa"), down)
    assert statuses(tmp_path) == [
        (0, "x", "failed"),
        (1, "c", "answered"),
        (2, "b", "answered"),
        (3, "a", "answered"),
        (4, "a", "failed"),
    ]


async def test_inputs_of_an_iterator_are_rows_once_they_were_read(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.BAD_REQUEST, "no") if "b" in text_of(request) else say("done")

    await run(tmp_path, iter([{"it": "a"}, {"it": "b"}, {"other": 1}]), ScriptedBackend(answer))
    assert statuses(tmp_path) == [
        (0, {"it": "a"}, "answered"),
        (1, {"it": "b"}, "failed"),
        (2, {"other": 1}, "failed"),
    ]


class Point(BaseModel):
    it: str
    at: datetime


async def test_inputs_that_are_not_json_are_rows_once(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5)
    values = [{"it": now}, {"it": {1, 2}}, Point(it="x", at=now)]
    await run(tmp_path, values[::-1])
    await run(tmp_path, values)
    found = rows(tmp_path)
    assert [(row["index"], row["status"]) for row in found] == [(0, "answered"), (1, "answered"), (2, "answered")]
    assert found[2]["input"] == {"it": "x", "at": "2026-01-02T03:04:05"}


async def test_a_changed_plan_shows_the_old_answers_until_there_are_new_ones(tmp_path: Path) -> None:
    await run(tmp_path, list("ab"))
    down = ScriptedBackend(lambda request: BackendError(ErrorKind.BAD_REQUEST, "no"))
    await run(tmp_path, list("ab"), down, task="Sing {it}", plan_changed="rerun")
    assert statuses(tmp_path) == [(0, "a", "failed"), (1, "b", "failed")]


async def test_costs_are_those_of_the_prices_of_the_run(tmp_path: Path) -> None:
    await run(tmp_path, ["a"], prices={"scripted": (2.0, 1.0, 3.0)})
    assert [row["cost"] for row in rows(tmp_path)] == [5.0]


async def test_a_checkpoint_of_an_earlier_version_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.BAD_REQUEST, "no") if "b" in text_of(request) else say("done")

    await run(tmp_path, list("ab"), ScriptedBackend(answer))
    with sqlite3.connect(tmp_path / "run.sqlite3") as database:
        database.execute("DELETE FROM facts WHERE kind = 'failed'")
        database.execute("UPDATE plan SET data = replace(CAST(data AS TEXT), ',\"failures\":true', '')")
    database.close()
    assert "agents    2: 1 answered, 0 failed, 1 interrupted\n" in told(tmp_path, capsys)
    assert statuses(tmp_path) == [(0, "a", "answered"), (1, "b", "interrupted")]
    await run(tmp_path, list("ab"), ScriptedBackend(answer))
    assert "agents    2: 1 answered, 1 failed\n" in told(tmp_path, capsys)


async def test_the_stages_of_a_flow_record_their_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: Request) -> Answer:
        text = text_of(request)
        return BackendError(ErrorKind.BAD_REQUEST, "no") if text in ("one b", "two c") else say(text[-1])

    flow = Flow(list("abc"), backend=ScriptedBackend(answer), checkpoint_dir=tmp_path, max_retries=0)
    await flow.map("one", "one {it}").map("two", "two {one}").run()
    assert "agents    3: 2 answered, 1 failed\n" in told(tmp_path / "one", capsys)
    assert "agents    2: 1 answered, 1 failed\n" in told(tmp_path / "two", capsys)
    assert {row["status"] for row in rows(tmp_path / "two")} == {"answered", "failed"}


async def test_the_parts_of_a_long_input_fail_their_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: Request) -> Answer:
        return BackendError(ErrorKind.BAD_REQUEST, "no")

    backend = ScriptedBackend(answer)
    options: dict[str, Any] = {"context_tokens": 2_000, "max_tokens": 100, "oversized": "chunk"}
    [failed] = await run(tmp_path, ["word " * 5_000], backend, **options)
    [row] = rows(tmp_path)
    assert failed.error is not None
    assert row["error"]["message"] == failed.error.message
    assert row["error"]["message"].startswith("Part ")
    [result] = await run(tmp_path, ["word " * 5_000], ScriptedBackend(lambda request: say("short")), **options)
    assert result.output == "short"
    assert "agents    1: 1 answered, 0 failed\n" in told(tmp_path, capsys)


KILLED = """
import asyncio, os, signal, sys
from batch_agent import BackendError, BatchAgent, ErrorKind
from batch_agent.store.sqlite import SqliteStore
from batch_agent.core.facts import Failed
from batch_agent.testing import ScriptedBackend, say

when, folder = sys.argv[1:]
recorded = SqliteStore.record

def record(store, key, fact):
    if isinstance(fact, Failed) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    recorded(store, key, fact)

SqliteStore.record = record

def answer(request):
    text = request.messages[0].text
    return BackendError(ErrorKind.BAD_REQUEST, "no") if text == "Say b" else say("done")

def on_result(result):
    if result.error is not None and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(BatchAgent.run(
    task="Say {it}", inputs=list("abcd"), backend=ScriptedBackend(answer), checkpoint_dir=folder, max_retries=0,
    max_inflight=1, max_agents=1, reorder=False, on_result=on_result,
))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "expected"),
    [("before", ("interrupted", "not_started")), ("after", ("failed",))],
    ids=["before the end is recorded", "after it"],
)
async def test_a_kill_around_the_end_of_a_failed_agent_loses_and_doubles_nothing(
    tmp_path: Path, programs: Programs, when: str, expected: tuple[str, ...]
) -> None:
    folder = tmp_path / "c"
    killed = programs.start(KILLED, when, str(folder), cwd=tmp_path).wait()
    assert killed < 0
    found = {row["input"]: row["status"] for row in rows(folder)}
    assert found["a"] == "answered"
    assert found["b"] in expected
    assert list(found) == list("abcd")
    backend = ScriptedBackend(lambda request: say("done"))
    again = await run(folder, list("abcd"), backend)
    assert [result.output for result in again] == ["done"] * 4
    sent = [text_of(request) for request in backend.requests]
    assert sorted(sent) == sorted(f"Say {value}" for value, status in found.items() if status != "answered")
    assert statuses(folder) == [(index, value, "answered") for index, value in enumerate("abcd")]
