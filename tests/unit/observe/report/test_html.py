"""The report: one file with everything in it, whatever the agents said."""

import asyncio
import json
import random
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from benchmarks.dashboard import life
from tests.support.event_logs import BEGAN, STARTED, answered, real_run, seen, started, written

from batch_agent import SpecError, StoreError
from batch_agent.cli.commands.report import check_is_run
from batch_agent.core.events import AgentFinished, AgentStarted, Event, RunStarted
from batch_agent.observe.event_codec import event_line
from batch_agent.observe.event_log import FILE, closed_line, opened_line
from batch_agent.observe.report.html import REPORT, page_files, report_of, write_report
from batch_agent.observe.report.page_model import model_of
from batch_agent.observe.report.run_view import RunView

DATA = re.compile(r'<script type="application/json" id="run">(.*?)</script>', re.DOTALL)


def told(path: Path) -> dict[str, Any]:
    found = DATA.search(path.read_text())
    assert found is not None
    model: dict[str, Any] = json.loads(found[1])
    return model


async def test_a_run_with_a_checkpoint_leaves_a_report_that_needs_nothing_else(tmp_path: Path) -> None:
    await real_run(tmp_path)
    html = (tmp_path / REPORT).read_text()
    assert told(tmp_path / REPORT)["stages"][0]["answered"] == 12
    assert '<link rel="stylesheet"' not in html
    assert not re.search(r"<script[^>]* src=", html)
    for name, (kind, text) in page_files().items():
        assert kind == "text/html" or text.strip()[:200] in html, name
    assert len(html) < 500_000


def test_model_output_cannot_break_out_of_the_report_data(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- <b> ]]> \u2028 \\u003c"
    event = AgentFinished(replace(answered("a", 0).result, output=evil, text=evil), resumed=False)
    path = write_report(written(tmp_path, [*started(("a", 0)), (1.0, event)]))
    assert told(path)["stages"][0]["latest"][0]["text"] == evil
    assert "alert(1)</script>" not in path.read_text()
    assert "<!--" not in DATA.findall(path.read_text())[0]


def test_no_script_is_allowed_but_those_of_the_page() -> None:
    html = report_of({"stages": []}).decode()
    allowed = re.findall(r"'sha256-([^']+)'", html.partition("<body")[0])
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == sum(kind == "text/javascript" for kind, _ in page_files().values())
    assert allowed == [b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    assert html.index('id="run"') < html.index("<script>")  # the data comes first
    assert html.count("</body>") == 1


def test_a_killed_run_has_its_report_too_and_in_any_place(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", started(("a", 0)), is_closed=False)
    path = write_report(folder, tmp_path / "elsewhere" / "it.html")
    assert told(path)["state"] == "ended early"
    assert not (folder / REPORT).exists()


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    folder = written(tmp_path, started(("a", 0)))
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written"):
        write_report(folder, tmp_path / "file" / "report.html")
    write_report(folder)
    before = (folder / REPORT).read_bytes()
    (folder / FILE).write_bytes(b'[1.0,"Opened","",2]\n')
    with pytest.raises(StoreError, match="newer version"):
        write_report(folder)
    assert (folder / REPORT).read_bytes() == before


def test_a_folder_without_a_log_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no event log \(events\.jsonl\)"):
        write_report(tmp_path)


def test_a_folder_that_cannot_be_looked_into_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be read: File name too long|There is no folder"):
        check_is_run(tmp_path / ("x" * 300))


def test_a_log_with_only_its_first_line_can_be_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(opened_line(BEGAN))
    assert told(write_report(tmp_path))["stages"] == []


async def test_a_run_that_was_cancelled_ended_early(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    class Heard:
        def emit(self, event: Event) -> None:
            if isinstance(event, AgentFinished):
                goes_on.set()

    running = asyncio.create_task(real_run(tmp_path, agents=3000, max_inflight=2, events=Heard()))
    await goes_on.wait()
    running.cancel()
    await asyncio.wait([running])
    model = told(tmp_path / REPORT)
    assert model["state"] == "ended early"
    assert model["stages"][0]["total"] == 3000
    assert 1 <= model["stages"][0]["answered"] < 3000


async def test_the_report_that_a_run_leaves_is_that_of_its_log(tmp_path: Path) -> None:
    """It is made while the log is written, and not from it."""
    await real_run(tmp_path, refuses=True)
    left, read = told(tmp_path / REPORT), told(write_report(tmp_path, tmp_path / "read.html"))
    assert {name: each["count"] for name, each in left["distributions"].items() if each} == {
        name: each["count"] for name, each in read["distributions"].items() if each
    }
    for model in (left, read):
        del model["now"], model["distributions"]  # a log knows how long things took to a tenth of a millisecond
        for stage in model["stages"]:
            del stage["slowest"]
            stage["latest"] = [each["text"] for each in stage["latest"]]
    assert left == read


def test_the_report_is_the_view_of_the_log(tmp_path: Path) -> None:
    lines = [
        opened_line(BEGAN),
        event_line(BEGAN, STARTED),
        event_line(BEGAN, AgentStarted("a", 0)),
        closed_line(BEGAN, BEGAN),
    ]
    (tmp_path / FILE).write_bytes(b"".join(lines))
    model = seen(tmp_path)
    assert json.loads(DATA.findall(report_of(model).decode())[0]) == json.loads(json.dumps(model))


@pytest.mark.slow
def test_a_report_of_ten_thousand_agents_has_less_than_five_megabytes() -> None:
    view, at, took = RunView(), 0.0, random.Random(1)
    view.take(at, RunStarted("vllm", "a-model", 256, 10_000))
    for first in range(0, 10_000, 100):  # a hundred at once
        for events in zip(*(life(index) for index in range(first, first + 100)), strict=True):
            for event in events:
                at += took.expovariate(1000)
                view.take(at, event)
    model = model_of(view, title="many", began=0.0, now=at, is_running=False, is_closed=True)
    assert model["stages"][0]["answered"] == 10_000
    assert len(report_of(model)) < 5_000_000
