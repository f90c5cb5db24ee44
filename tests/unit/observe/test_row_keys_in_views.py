"""Every view of a run with `key="id"` names an agent by its ID, never by the `ID@HASH` of the checkpoint."""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.forked_programs import Call

from batch_agent import BatchAgent, SpecError, StoreError
from batch_agent.cli.commands.inspect import inspect
from batch_agent.cli.commands.serve import agent_trace
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.observe.telemetry.traces import Traces
from batch_agent.plan.row_keys import row_key
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.store.reader import CheckpointReader

ROWS = [
    {"id": "order/1.eu", "text": "fine"},
    {"id": "ann@example.com", "text": 'no [[sim: {"fault": "400"}]]'},
    {"id": 12, "text": "long"},
]
IDS = ["order/1.eu", "ann@example.com", "12"]
INTERNAL = re.compile(r"@[0-9a-f]{24}|%2F|%40")


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as server:
        yield server


async def run(sim: SimServer, folder: Path, **options: Any) -> None:
    await BatchAgent.run(task="{text}", inputs=ROWS, backend=sim.url, key="id", checkpoint_dir=folder, **options)


async def test_the_report_has_the_id_of_every_agent(sim: SimServer, tmp_path: Path) -> None:
    await run(sim, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page)
    assert found is not None
    assert not INTERNAL.search(found[1])
    model = json.loads(found[1])
    by_index = dict(zip(model["timeline"]["index"], model["results"]["key"], strict=True))
    assert [by_index[index] for index in range(3)] == IDS
    [stage] = model["stages"]
    assert sorted(agent["key"] for agent in stage["slowest"]) == sorted(IDS)
    assert [example["key"] for example in stage["failures"][0]["examples"]] == ["ann@example.com"]


async def test_the_report_of_a_run_without_a_key_field_has_no_keys_of_rows(sim: SimServer, tmp_path: Path) -> None:
    await BatchAgent.run(task="{text}", inputs=ROWS, backend=sim.url, checkpoint_dir=tmp_path)
    follower = LogFollower(tmp_path)
    follower.read_all()
    assert "key" not in follower.model()["results"]


async def test_the_trace_of_an_agent_on_the_live_page_names_the_id(sim: SimServer, tmp_path: Path) -> None:
    await run(sim, tmp_path)
    follower = LogFollower(tmp_path)
    follower.read_all()
    for index, row in enumerate(IDS):
        key = follower.key("", index)
        assert key is not None
        trace = agent_trace(tmp_path, "", key)
        assert trace.startswith(f"Agent {index}  key {row}\n")
        assert not INTERNAL.search(trace)


async def test_inspect_names_agents_by_their_id_and_finds_them_by_its_beginning(
    sim: SimServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(sim, tmp_path)
    inspect(tmp_path)
    inspect(tmp_path, agent="order/")
    inspect(tmp_path, agent="ann@")
    with pytest.raises(SpecError, match=r"Did you mean order/1\.eu") as missing:
        inspect(tmp_path, agent="order/2")
    said = capsys.readouterr().out + str(missing.value)
    assert all(row in said for row in IDS)
    assert "Agent 0  key order/1.eu" in said
    assert "Agent 1  key ann@example.com" in said
    assert not INTERNAL.search(said)


async def test_a_preview_has_the_keys_of_the_results(sim: SimServer) -> None:
    preview = await BatchAgent.preview(task="{text}", inputs=ROWS, backend=sim.url, key="id", count=3)
    assert [request.key for request in preview.requests] == IDS


async def test_the_request_log_has_the_keys_of_the_results(sim: SimServer, tmp_path: Path) -> None:
    await run(sim, tmp_path / "run", log_requests=tmp_path / "requests.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert {line["agent"] for line in lines if line["index"] is not None and line["agent"]} == set(IDS)


async def test_spans_have_the_keys_of_the_results(sim: SimServer, tmp_path: Path) -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    await run(sim, tmp_path, events=Traces(provider))
    values = [str(value) for span in memory.get_finished_spans() for value in (span.attributes or {}).values()]
    assert set(IDS) <= set(values)
    assert not any(INTERNAL.search(value) for value in values)


def test_the_command_line_never_prints_an_internal_key(sim: SimServer, tmp_path: Path, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    done = call("run", "in.jsonl", "--task", "{text}", "--backend", sim.url, "--key", "id", cwd=tmp_path)
    exported = call("export", "results.jsonl.checkpoint", "--format", "csv", cwd=tmp_path)
    retried = call("resume", "results.jsonl.checkpoint", cwd=tmp_path)
    for each in (done, exported, retried):
        assert not INTERNAL.search(each.stdout + each.stderr), each
    assert not INTERNAL.search((tmp_path / "results.jsonl").read_text())
    assert all(row in exported.stdout for row in IDS)


async def test_facts_that_cannot_be_read_are_those_of_an_id(sim: SimServer, tmp_path: Path) -> None:
    await run(sim, tmp_path)
    with sqlite3.connect(tmp_path / "run.sqlite3") as database:
        database.execute("UPDATE facts SET data = x'00' WHERE kind = 'replied'")
    database.close()
    with CheckpointReader(tmp_path) as reader, pytest.raises(StoreError, match=r"of agent order/1\.eu cannot be read"):
        list(reader.histories())


def test_the_key_of_a_chunk_keeps_the_name_of_the_chunk() -> None:
    assert row_key("order%2F1%2Eeu@0123abcd.part2") == "order/1.eu.part2"
    assert row_key("0123abcd.part2") == "0123abcd.part2"
