"""An answer that was cut at max_tokens: in its result, in every table, and in the summaries."""

import csv
from collections.abc import Iterator
from pathlib import Path

import duckdb
import orjson
import pytest
from pydantic import BaseModel
from tests.support.forked_programs import Call

from batch_agent import BatchAgent, Flow, Results
from batch_agent.cli.commands.export import export
from batch_agent.core.events import AgentFinished
from batch_agent.core.results import AgentResult
from batch_agent.flows.summary import flow_summary_lines
from batch_agent.observe.event_codec import event_line, read_line
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.text.flow_summary import partial_flow_summary_lines
from batch_agent.observe.text.summary import summary_lines
from batch_agent.sim import Script, SimConfig, SimServer

LONG, SHORT = '[[sim: {"tokens": 40}]]', '[[sim: {"text": "fine"}]]'


class Word(BaseModel):
    word: str


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        yield sim.url


async def run(url: str, folder: Path | None = None, out: Path | None = None) -> Results[str]:
    return await BatchAgent.run(
        task="Say {it}",
        inputs=[LONG, SHORT, f"{LONG} again"],
        backend=url,
        max_tokens=8,
        checkpoint_dir=folder,
        out=out,
    )


async def test_the_result_and_the_summary_say_so(sim_url: str) -> None:
    results = await run(sim_url)
    assert [result.ok for result in results] == [True, True, True]
    assert [result.finish for result in results] == ["length", "stop", "length"]
    assert [result.index for result in results.truncated] == [0, 2]
    assert "3 of 3 agents answered, 0 failed; 2 answers were cut at max_tokens; " in str(results)
    assert str(Results([results[0]])).count("1 answer was cut at max_tokens") == 1
    assert "cut at" not in str(Results([results[1]]))


async def test_every_table_has_the_column(tmp_path: Path, sim_url: str) -> None:
    wanted = ["length", "stop", "length"]
    results = await run(sim_url, tmp_path / "c", tmp_path / "out.parquet")
    assert results.to_pandas()["finish"].tolist() == results.to_polars()["finish"].to_list() == wanted
    results.to_parquet(tmp_path / "a.parquet")
    export(tmp_path / "c", out=tmp_path / "b.parquet")
    for name in ("out", "a", "b"):
        found = duckdb.sql(f"SELECT finish FROM '{tmp_path}/{name}.parquet' ORDER BY index").fetchall()
        assert [row[0] for row in found] == wanted
    results.to_csv(tmp_path / "a.csv")
    export(tmp_path / "c", out=tmp_path / "b.csv")
    for name in ("a", "b"):
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            assert [row["finish"] for row in csv.DictReader(file)] == wanted
    results.to_jsonl(tmp_path / "a.jsonl")
    export(tmp_path / "c", out=tmp_path / "b.jsonl")
    for name in ("a", "b"):
        lines = (tmp_path / f"{name}.jsonl").read_bytes().splitlines()
        assert [orjson.loads(line)["finish"] for line in lines] == wanted
    html = results._repr_html_()
    assert "<th>finish</th>" in html
    assert "<td>length</td>" in html
    assert "2 answers were cut at max_tokens" in html


async def test_the_finish_is_shown_however_many_fields_an_input_has(sim_url: str) -> None:
    wide = {f"field{n}": n for n in range(40)} | {"it": LONG}
    results = await BatchAgent.run(task="Say {it}", inputs=[wide], backend=sim_url, max_tokens=8)
    assert "<td>length</td>" in results._repr_html_()


async def test_an_answer_that_fits_a_schema_is_not_cut(sim_url: str) -> None:
    # The model goes on after the object, until it is cut: the object itself is complete.
    said = '[[sim: {"text": "{\\"word\\": \\"a\\"} and so on and so on and so on and so on"}]]'
    [result] = await BatchAgent.run(
        task="Say {it}", inputs=[said], backend=sim_url, max_tokens=8, output_schema=Word, max_retries=0
    )
    assert result.output == Word(word="a")
    assert result.finish == "length"
    assert not result.is_truncated


async def test_the_summary_of_a_run_and_of_a_flow_count_them(sim_url: str) -> None:
    live, flow_state = LiveState(), LiveState()
    await BatchAgent.run(task="{it}", inputs=[LONG, SHORT], backend=sim_url, max_tokens=8, events=live)
    expected = "1 answer was cut at max_tokens: raise it, or ask for shorter answers."
    assert expected in summary_lines(live, 1.0)
    flow = Flow([LONG, LONG, SHORT], backend=sim_url, max_tokens=8).map("read", "{it}")
    outcome = await flow.run(events=flow_state)
    for lines in (flow_summary_lines(outcome, 1.0), partial_flow_summary_lines(flow_state, 1.0)):
        assert "; 2 answers were cut at max_tokens; " in lines[0]


def test_the_event_log_keeps_the_finish() -> None:
    result = AgentResult(0, "k", output="a", text="a", finish="length")
    line = event_line(1.0, AgentFinished(result, resumed=False))
    _, event = read_line(line)
    assert isinstance(event, AgentFinished)
    assert event.result.finish == "length"


def test_the_command_line_counts_them_too(tmp_path: Path, sim_url: str, call: Call) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(orjson.dumps({"it": it}) + b"\n" for it in (LONG, SHORT)))
    done = call(
        "run", "--task", "{it}", "--inputs", "in.jsonl", "--backend", sim_url, "--max-tokens", "8", "--out", "o.jsonl",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 answer was cut at max_tokens" in done.stderr
    rows = [orjson.loads(line) for line in (tmp_path / "o.jsonl").read_bytes().splitlines()]
    assert sorted(row["finish"] for row in rows) == ["length", "stop"]
    assert "1 answer was cut at max_tokens" in call("inspect", "o.jsonl.checkpoint", cwd=tmp_path).stdout
