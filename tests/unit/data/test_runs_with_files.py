"""Runs whose inputs come from where they are, and whose results go where they are wanted."""

import sqlite3
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pandas as pd
import polars as pl
import pytest

from batch_agent import BatchAgent, ErrorKind, Flow, RunStopped, SpecError
from batch_agent.core.errors import BackendError
from batch_agent.core.requests import Request
from batch_agent.data import SqlQuery
from batch_agent.testing import Answer, ScriptedBackend, say


def echo() -> ScriptedBackend:
    return ScriptedBackend(lambda request: say(request.messages[0].text))  # type: ignore[union-attr]


def sources(folder: Path) -> list[Any]:
    rows = [{"n": 1, "text": "ä"}, {"n": 2, "text": "b"}]
    (folder / "in.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    pl.DataFrame(rows).write_parquet(folder / "in.parquet")
    with closing(sqlite3.connect(folder / "in.db")) as database, database:
        database.execute("CREATE TABLE texts (n INTEGER, text TEXT)")
        database.executemany("INSERT INTO texts VALUES (:n, :text)", rows)
    query = SqlQuery(f"sqlite:///{folder}/in.db", "SELECT * FROM texts")
    return [str(folder / "in.jsonl"), folder / "in.parquet", pd.DataFrame(rows), pl.DataFrame(rows).lazy(), query]


async def test_the_same_inputs_from_anywhere_are_the_same_agents(tmp_path: Path) -> None:
    answers, keys = [], []
    for source in sources(tmp_path):
        results = await BatchAgent.run(task="{n}: {text}", inputs=source, backend=echo())
        answers.append(results.outputs)
        keys.append([result.key for result in results])
    assert answers == [["1: ä", "2: b"]] * 5
    assert keys == [keys[0]] * 5


async def test_flows_and_plans_accept_files_as_inputs(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        outcome = await Flow(source, backend=echo()).map("read", "{text}").run()
        assert [item["read"] for item in outcome.items] == ["ä", "b"]
        filtered = await Flow(source, backend=echo()).filter(lambda item: item["n"] == 2).map("read", "{text}").run()
        assert [item["read"] for item in filtered.items] == ["b"]
        assert (await BatchAgent.plan(task="{text}", inputs=source, backend=echo())).agents == 2


async def test_inputs_that_cannot_be_read_stop_the_run_before_anything_is_sent(tmp_path: Path) -> None:
    backend = echo()
    with pytest.raises(SpecError, match="does not exist"):
        await BatchAgent.run(task="{n}", inputs=tmp_path / "nothing.jsonl", backend=backend)
    with pytest.raises(SpecError, match="does not exist"):
        await Flow(f"{tmp_path}/nothing.csv", backend=backend).map("read", "{n}").run()
    assert backend.requests == []


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
async def test_a_result_is_in_the_file_before_it_is_reported(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = path if name != "out.parquet" else tmp_path / "out.parquet.rows.jsonl"
    lines: list[int] = []

    def heard(_: Any) -> None:
        lines.append(len(rows.read_bytes().splitlines()) - (name == "out.csv"))

    results = await BatchAgent.run(task="{it}", inputs=list("abc"), backend=echo(), out=str(path), on_result=heard)
    assert lines == [1, 2, 3]
    assert len(results) == duckdb.sql(f"SELECT * FROM '{path}'").shape[0] == 3


async def test_a_stopped_run_leaves_its_results_in_the_file(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        is_bad = request.messages[0].text == "b"  # type: ignore[union-attr]
        return BackendError(ErrorKind.BAD_REQUEST, "no") if is_bad else say("fine")

    path = tmp_path / "out.parquet"
    flow = Flow(["a", "b", "c"], backend=ScriptedBackend(answer), max_inflight=1, reorder=False)
    with pytest.raises(RunStopped):
        await flow.map("one", "{it}", on_failure="stop", out=path).run()
    assert duckdb.read_parquet(str(path)).select("index, output, ok").fetchall() == [
        (0, "fine", True),
        (1, None, False),
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["out.parquet"]


async def test_a_full_disk_stops_the_run_and_the_checkpoint_has_all_results(tmp_path: Path) -> None:
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    options: dict[str, Any] = {"task": "{it}", "inputs": ["a"], "checkpoint_dir": tmp_path / "kept"}
    with pytest.raises(RunStopped, match=r"full\.jsonl' cannot be written: No space left on device") as stopped:
        await BatchAgent.run(**options, backend=echo(), out=tmp_path / "full.jsonl")
    assert stopped.value.kind is ErrorKind.OUT
    assert [result.output for result in stopped.value.results] == ["a"]
    silent = ScriptedBackend(lambda request: BackendError(ErrorKind.SERVER, "asked again"))
    assert (await BatchAgent.run(**options, backend=silent, out=tmp_path / "out.jsonl")).outputs == ["a"]
    assert orjson.loads((tmp_path / "out.jsonl").read_bytes())["output"] == "a"


async def test_a_full_disk_loses_no_earlier_result(tmp_path: Path) -> None:
    (tmp_path / "full.csv").symlink_to("/dev/full")
    kept: dict[str, Any] = {"task": "{it}", "inputs": ["a", "b", "c"], "checkpoint_dir": tmp_path / "kept"}
    await BatchAgent.run(**kept, backend=echo())
    more = {**kept, "inputs": ["a", "new", "b", "c"], "reorder": False}
    with pytest.raises(RunStopped) as stopped:
        await BatchAgent.run(**more, backend=echo(), out=tmp_path / "full.csv")
    assert [result.output for result in stopped.value.results] == ["a", "b", "c"]


@pytest.mark.parametrize(("out", "problem"), [(5, "out must be a path"), ("out.xlsx", "not '.xlsx'")])
async def test_an_invalid_results_path_is_rejected_before_any_request(out: Any, problem: str) -> None:
    backend = echo()
    with pytest.raises(SpecError, match=problem):
        await BatchAgent.run(task="{it}", inputs=["a"], backend=backend, out=out)
    assert backend.requests == []


async def test_a_canary_writes_no_results(tmp_path: Path) -> None:
    await BatchAgent.plan(task="{it}", inputs=["a", "b"], backend=echo(), canary=1, out=tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


async def test_each_stage_of_a_flow_has_a_file_of_its_own(tmp_path: Path) -> None:
    flow = Flow(["a", "b"], backend=echo()).map("one", "{it}", out=tmp_path / "one.jsonl")
    await flow.reduce("all", "{results}", out=tmp_path / "all.csv").run()
    assert len((tmp_path / "one.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "all.csv").read_text().startswith("index,key,ok,status,finish,input.n,input.results,output,")
    with pytest.raises(SpecError, match=r"out= is one file: pass it to a stage"):
        await Flow(["a"], backend=echo(), out=tmp_path / "out.jsonl").map("one", "{it}").run()


async def test_results_never_overwrite_their_inputs(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one"}\n')
    with pytest.raises(SpecError, match="would overwrite the inputs"):
        await BatchAgent.run(task="{text}", inputs=rows, out=rows, backend=ScriptedBackend(lambda _: say("done")))
    assert rows.read_text() == '{"text": "one"}\n'


def test_inputs_in_a_deque_are_run() -> None:
    backend = ScriptedBackend(lambda _: say("done"))
    results = BatchAgent.run_sync(task="{it}", inputs=deque(["a", "b"]), backend=backend)
    assert [result.input for result in results] == ["a", "b"]
