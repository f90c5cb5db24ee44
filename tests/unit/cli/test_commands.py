"""The commands as a user types them: real processes, a real (simulated) server."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import PROGRAM, Call, Programs, typed
from tests.support.stalls import write_inputs

from batch_agent.sim import Script, SimConfig, SimServer


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        yield sim.url


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_run_answers_every_input_and_a_second_call_sends_no_request(tmp_path: Path, sim_url: str, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "number {i}"}}\n' for i in range(5)))
    words = ("run", "--task", "Summarize: {text}", "--inputs", "in.jsonl", "--backend", sim_url)
    first = typed(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "5 of 5 agents answered" in first.stderr
    before = sorted(rows(tmp_path / "results.jsonl"), key=lambda row: str(row["key"]))
    second = call(*words, cwd=tmp_path)
    assert "5 answers restored from the checkpoint" in second.stderr
    after = sorted(rows(tmp_path / "results.jsonl"), key=lambda row: str(row["key"]))
    assert [(row["index"], row["output"]) for row in before] == [(row["index"], row["output"]) for row in after]


def test_schema_and_tools_are_named_on_the_command_line(tmp_path: Path, sim_url: str, call: Call) -> None:
    (tmp_path / "in.csv").write_text("name\nAda\nBob\n")
    (tmp_path / "mine.py").write_text(
        "from pydantic import BaseModel\n"
        "class Person(BaseModel):\n    age: int\n"
        "def look_up(name: str) -> str:\n    '''Look up.'''\n    return name + ' is 36'\n"
    )
    done = call(
        "run", "--task", "Who is {name}?", "--inputs", "in.csv", "--schema", "mine:Person",
        "--tools", "mine:look_up", "--backend", sim_url, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for row in rows(tmp_path / "results.jsonl"):
        assert isinstance(row["output"], dict)
        assert isinstance(row["output"]["age"], int)
        assert row["turns"] == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--task", "{txt}", "--inputs", "in.jsonl"), "no 'txt'"),
        (("--task", "{text}", "--inputs", "gone.jsonl"), "'gone.jsonl' does not exist"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--schema", "gone.json"), "cannot be read"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--schema", '{"type": "object"}'), "into a .json file"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--tools", "nonsense"), "expected module:name"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--tools", "os:nothing"), "has no attribute 'nothing'"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--tools", "raises:f"), "ValueError: boom (raises.py, line 2)"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--schema", "broken:A"), "SyntaxError: '(' was never closed"),
        (("--task", "{text}", "--inputs", "in.jsonl", "--backend", "carrier://pigeon"), "is not a known backend"),
    ],
)
def test_an_invalid_run_command_is_a_one_line_error(
    tmp_path: Path, sim_url: str, words: tuple[str, ...], problem: str, call: Call
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "raises.py").write_text("\nraise ValueError('boom')\n")
    (tmp_path / "broken.py").write_text("class A(\n")
    backend = () if "--backend" in words else ("--backend", sim_url)
    done = call("run", *words, *backend, cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("out", ["in.jsonl", "/proc/demo"])
def test_an_unwritable_demo_folder_is_a_one_line_error(tmp_path: Path, sim_url: str, call: Call, out: str) -> None:
    (tmp_path / "in.jsonl").write_text("")
    done = call("demo", "--out", out, "--backend", sim_url, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"batch-agent: '{out}/notes/00.txt' cannot be written")


def test_the_demo_deletes_only_its_own_files(tmp_path: Path, sim_url: str, call: Call) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert call("demo", "--out", ".", "--backend", sim_url, cwd=tmp_path).returncode == 0
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"


def test_a_run_with_failures_reports_them_and_exits_with_1(tmp_path: Path, sim_url: str, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n{"other": "x"}\n')
    done = call("run", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", sim_url, cwd=tmp_path)
    assert done.returncode == 1
    assert "Failed, bad_input: 1" in done.stderr
    assert [row["ok"] for row in sorted(rows(tmp_path / "results.jsonl"), key=lambda r: str(r["index"]))] == [
        True,
        False,
    ]


@pytest.mark.slow
def test_ctrl_c_keeps_finished_results_and_the_same_command_resumes(
    tmp_path: Path, programs: Programs, call: Call
) -> None:
    write_inputs(tmp_path / "in.jsonl", "text", [f"number {i}" for i in range(30)], stalled=(6, 7))
    with SimServer(SimConfig(step_base_ms=5), Script(answer_tokens=10)) as sim:
        words = ["run", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", sim.url, "--max-inflight", "2"]
        program = programs.start_command(*words, cwd=tmp_path)
        _wait_for_rows(tmp_path / "results.jsonl", 6)
        program.send_signal(signal.SIGINT)
        assert program.wait() == 130
        said = program.stderr.read_text()
        assert "To resume: run the same command again" in said
        assert "Traceback" not in said
        done = len(rows(tmp_path / "results.jsonl"))
        assert 4 <= done < 30
        assert f"{done} of 30 agents answered, {30 - done} not finished after " in said
        assert (
            f"\nStopped. {done} of 30 agents are done; everything so far is kept in 'results.jsonl.checkpoint'." in said
        )
        again = call(*words, cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert sorted(int(str(row["index"])) for row in rows(tmp_path / "results.jsonl")) == list(range(30))


def _wait_for_rows(path: Path, least: int) -> None:
    for _ in range(3000):
        if path.exists() and len(path.read_text().splitlines()) >= least:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never had {least} rows")


@pytest.mark.slow
def test_the_demo_runs_24_agents_and_survives_being_killed(tmp_path: Path, sim_url: str) -> None:
    done = typed("demo", "--out", "demo", "--backend", sim_url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "demo" / "results.jsonl")
    assert len(found) == 24
    assert all(row["ok"] and row["tool_calls"] for row in found)
    assert len({row["index"] for row in found}) == 24
    assert "Killed (kill -9) after 8 results" in done.stderr
    assert "answers restored from the checkpoint" in done.stderr
    assert "Agent timeline" in (tmp_path / "demo" / "run" / "report.html").read_text()


@pytest.mark.slow
def test_the_sim_command_serves_until_it_is_interrupted(tmp_path: Path, call: Call) -> None:
    process = subprocess.Popen([*PROGRAM, "sim", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = json.loads(process.stdout.readline())["port"]
        (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
        words = ("run", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", f"http://127.0.0.1:{port}")
        assert call(*words, cwd=tmp_path).returncode == 0
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        process.stdout.close()
    assert process.returncode == 0
