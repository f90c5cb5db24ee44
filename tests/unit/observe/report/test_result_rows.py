"""Results of all agents on the page: what each received and answered, how it ended and what it used."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tests.support.event_logs import failed, seen, started, written

from batch_agent import BatchAgent, ErrorKind, Tool, Usage
from batch_agent.core.events import AgentFinished, Event
from batch_agent.core.results import AgentError, AgentResult, Timing
from batch_agent.observe.event_codec import input_preview, read_line
from batch_agent.observe.event_log import FILE
from batch_agent.observe.report.html import REPORT
from batch_agent.observe.report.result_rows import ResultRows
from batch_agent.sim import Script, SimConfig, SimServer


class Verdict(BaseModel):
    city: str
    bridges: int


@Tool.define(effect="read")
async def look_up(key: str) -> str:
    """Look a key up in the archive."""
    return f"the value of {key}"


def rows(model: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Rows by the index of their agents."""
    table = model["results"]
    columns = {name: table[name] for name in table if name not in ("finishes", "errors")}
    found = {}
    for at, index in enumerate(model["timeline"]["index"]):
        row = {name: values[at] for name, values in columns.items()}
        row["finish"] = table["finishes"][row["finish"]]
        row["error"] = None if row["error"] < 0 else table["errors"][row["error"]]
        found[index] = row | {"ok": model["timeline"]["ok"][at]}
    return found


async def test_answers_failures_and_truncated_answers_have_their_rows(tmp_path: Path) -> None:
    notes = ["first note", 'second note [[sim: {"fault": "400"}]]', 'third [[sim: {"text": "Yes."}]]']
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=64)) as sim:
        results = await BatchAgent.run(
            task="Read {note}",
            inputs=[{"note": note} for note in notes],
            backend=sim.url,
            max_tokens=9,
            prices={"sim": (1.0, 0.5, 2.0)},
            checkpoint_dir=tmp_path,
        )
    model = seen(tmp_path)
    found = rows(model)
    assert [found[index]["ok"] for index in range(3)] == [1, 0, 1]
    assert [found[index]["finish"] for index in range(3)] == ["length", None, "stop"]
    assert found[0]["input"] == "note: first note"
    assert found[2]["answer"] == "Yes."
    assert found[1]["error"][0] == "bad_request"
    assert results[1].error is not None
    assert found[1]["error"][1] == results[1].error.message
    for result in results:
        row = found[result.index]
        assert (row["turns"], row["tokens_in"], row["cached"], row["tokens_out"]) == (
            result.turns, result.usage.input, result.usage.cached, result.usage.output,
        )  # fmt: skip
        assert row["cost"] == pytest.approx(result.cost)
    assert model["stages"][0]["prices"] == [1.0, 0.5, 2.0]


async def test_a_run_records_its_task_prompt_tools_schema_and_options_once(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True), Script(tool_turns=1)) as sim:
        await BatchAgent.run(
            task="Which city is {it}?",
            inputs=["the first", "the second", "the third"],
            tools=[look_up],
            output_schema=Verdict,
            system_prompt="You are a geographer.",
            backend=sim.url,
            max_turns=7,
            checkpoint_dir=tmp_path,
        )
    described = seen(tmp_path)["stages"][0]["description"]
    assert described["task"] == "Which city is {it}?"
    assert described["system_prompt"].startswith("You are a geographer.")
    assert [tool["name"] for tool in described["tools"]] == ["look_up"]
    assert described["tools"][0]["description"] == "Look a key up in the archive."
    assert set(described["output_schema"]["properties"]) == {"city", "bridges"}
    assert described["options"]["max_turns"] == 7
    assert "max_inflight" not in described["options"]
    assert (tmp_path / FILE).read_bytes().count(b"You are a geographer.") == 1
    assert (tmp_path / REPORT).read_bytes().count(b"You are a geographer.") == 1


async def test_secrets_are_in_neither_the_log_nor_the_report(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        await BatchAgent.run(
            task="Read {it}",
            inputs=["a"],
            backend=f"{sim.url}?api_key=hunter2",
            extra={"metadata": {"api_key": "hunter2", "team": "maps"}},
            cache_salt="hunter2",
            checkpoint_dir=tmp_path,
        )
    options = seen(tmp_path)["stages"][0]["description"]["options"]
    assert options["extra"] == {"metadata": {"api_key": "***", "team": "maps"}}
    assert options["cache_salt"] == "***"
    for name in (FILE, REPORT):
        assert b"hunter2" not in (tmp_path / name).read_bytes()


def test_a_finish_reason_of_a_newer_version_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, [*started(("b", 1)), (1.0, failed("b", 1))])
    lines = [orjson.loads(line) for line in (tmp_path / FILE).read_bytes().splitlines()]
    for line in lines:
        if line[1] == "AgentFinished":
            line[-2] = "paused"
    (tmp_path / FILE).write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert rows(seen(tmp_path))[1]["finish"] is None


def test_an_agent_that_fails_and_then_answers_has_its_answer_only(tmp_path: Path) -> None:
    def ended(**how: Any) -> Event:
        return AgentFinished(AgentResult(0, "a", "the note", timing=Timing(0.0, (), 2.0), **how), resumed=False)

    first = [*started(("a", 0)), (1.0, ended(error=AgentError(ErrorKind.SERVER, "no")))]
    second = [*started(("a", 0)), (1.0, ended(output="yes", text="yes", finish="stop", usage=Usage(3, 1, 2), turns=1))]
    row = rows(seen(written(tmp_path, first, second)))[0]
    assert (row["ok"], row["error"], row["answer"], row["input"], row["finish"]) == (1, None, "yes", "the note", "stop")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a text", "a text"),
        ({"id": 7, "note": "n"}, "id: 7, note: n"),
        ({"data": b"12345"}, "data: 5 bytes"),
        (Verdict(city="Lyon", bridges=3), '{"city":"Lyon","bridges":3}'),
        (None, ""),
        ([1, "b"], '[1,"b"]'),
        ("x" * 1000, "x" * 300),
        ({"a": "x" * 200, "b": "y" * 200, "c": object()}, f"a: {'x' * 200}, b: {'y' * 92}"),
    ],
)
def test_of_an_input_the_beginning_is_shown(value: Any, shown: str) -> None:
    assert input_preview(value) == shown


def test_what_is_written_of_a_long_text_is_what_is_shown_of_it(tmp_path: Path) -> None:
    """The report of the running process and that of its log are the same."""
    from dataclasses import replace

    from tests.support.event_logs import STARTED

    from batch_agent.core.run_reports import RunDescription
    from batch_agent.observe.event_codec import event_line, truncated

    long = replace(STARTED, description=RunDescription("x" * 100_000, options={"a": ("y" * 30_000, 1)}))
    line = event_line(1.0, long)
    assert len(line) < 42_000
    _, event = read_line(line)
    assert truncated(event) == truncated(long) == json.loads(json.dumps(truncated(long)))


def test_ten_thousand_long_inputs_and_answers_take_four_megabytes_at_most() -> None:
    table = ResultRows()
    for number in range(10_000):
        table.add()
        table.finish(
            number, AgentResult(number, "", "i" * 5_000, "a" * 5_000, finish="stop", usage=Usage(9_999, 99, 9))
        )
    assert len(orjson.dumps(table.as_json(range(10_000)))) < 4_000_000


@pytest.mark.slow
def test_texts_of_a_hundred_thousand_agents_are_short() -> None:
    table = ResultRows()
    for number in range(100_000):
        table.add()
        table.finish(number, AgentResult(number, "", "i" * 300, error=AgentError(ErrorKind.SERVER, f"{number} " * 40)))
    shown = table.as_json(range(100_000))
    assert len(orjson.dumps(shown)) < 15_000_000
    assert shown["error"][-1] == 99_999
