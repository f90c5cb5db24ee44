"""`batch-agent lint`, and runs whose fields are ordered: real processes, a real (simulated) server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call, typed

from batch_agent.cli.options.command_options import CommandOptions, from_saved
from batch_agent.cli.saved_command import read_command
from batch_agent.core.task_fields import Fields
from batch_agent.sim import Script, SimConfig, SimServer

MANUAL = "Read the manual first. " * 20


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as server:
        yield server


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    lines = [{"id": f"req-{at:05}", "doc": f"{MANUAL}{at % 3}", "q": f"q{at}"} for at in range(9)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path


@pytest.mark.slow
def test_lint_reports_the_shared_prefix_and_exits_with_0(place: Path) -> None:
    done = typed("lint", "--task", "About {doc}: {q}", "--inputs", "in.jsonl", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert line.startswith("Prompts: the first ")
    assert " tokens are the same for all agents (" in line
    assert "the first difference is the field {doc}, after 'About'. 3 groups of agents share more." in line
    assert re.search(r"The server can take 6\d% of all prompt tokens from its prefix cache\.$", line)
    assert sorted(path.name for path in place.iterdir()) == ["in.jsonl"]


def test_lint_reports_findings_and_exits_with_1(place: Path, call: Call) -> None:
    words = (
        "lint",
        "--task",
        "{id} {doc} [bold]",
        "--inputs",
        "in.jsonl",
        "--system-prompt",
        "Now: 2026-11-15 12:00:00.",
    )
    done = call(*words, cwd=place)
    assert (done.returncode, done.stderr) == (1, "")
    told, *found = done.stdout.splitlines()
    assert "the first difference is the field {id}" in told
    assert [line[:2] for line in found] == ["! ", "! "]
    assert "timestamp" in found[0]
    assert "'id' comes first" in found[1]


def test_lint_with_free_fields_reorders_them(place: Path, call: Call) -> None:
    done = call("lint", "--task", "Do it.", "--inputs", "in.jsonl", "--fields", "id", "doc", "q", cwd=place)
    assert done.returncode == 0, done.stdout
    assert "the first difference is the field {doc}, after 'Do it.'. 3 groups of agents share more." in done.stdout
    as_named = call(
        "lint", "--task", "Do it.", "--inputs", "in.jsonl", "--fields", "id", "doc", "--no-reorder", cwd=place
    )
    assert "the first difference is the field {id}" in as_named.stdout


def test_lint_uses_the_tokenizer_of_the_server(place: Path, sim: SimServer, call: Call) -> None:
    before = sim.metrics()["vllm:request_success_total"]
    words = ("lint", "--task", "About {doc}: {q}", "--inputs", "in.jsonl", "--backend", sim.url, "--exact")
    done = call(*words, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Prompts: ")
    assert "about" not in done.stdout
    assert sim.metrics()["vllm:request_success_total"] == before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--task", "{txt}", "--inputs", "in.jsonl"), "no 'txt'"),
        (("--task", "Do it.", "--inputs", "in.jsonl", "--fields", "txt"), "no 'txt'"),
        (("--task", "Do it.", "--inputs", "in.jsonl", "--fields", "q", "q"), "names a field twice"),
        (("--task", "{q}", "--inputs", "gone.jsonl"), "'gone.jsonl' does not exist"),
        (
            ("--task", "{q}", "--inputs", "in.jsonl", "--exact", "--backend", "carrier://pigeon"),
            "is not a known backend",
        ),
    ],
)
def test_an_invalid_lint_command_is_a_one_line_error(
    place: Path, words: tuple[str, ...], problem: str, call: Call
) -> None:
    done = call("lint", *words, cwd=place)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_lint_of_one_input_reports_nothing_to_share(tmp_path: Path, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text('{"q": "x"}\n')
    done = call("lint", "--task", "{q}", "--inputs", "in.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_strict_run_is_rejected_and_lint_reports_why(place: Path, sim: SimServer, call: Call) -> None:
    words = ("--task", "{id} {doc}", "--inputs", "in.jsonl", "--backend", sim.url, "--strict-prefix")
    refused = call("run", *words, cwd=place)
    assert refused.returncode == 2
    assert "batch-agent: --strict-prefix, but the prompts do not share a prefix" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert call("lint", *words, cwd=place).returncode == 1
    assert call("lint", *words, "--exact", cwd=place).returncode == 1


def test_a_run_with_fields_is_resumed_from_any_folder(place: Path, sim: SimServer, call: Call) -> None:
    words = ("run", "--task", "Say {it}.", "--inputs", "in.jsonl", "--backend", sim.url, "--fields", "q", "doc", "id")
    first = call(*words, "--no-hoist", cwd=place)
    assert first.returncode == 0, first.stderr
    assert "9 of 9 agents answered" in first.stderr
    kept = rows(place / "results.jsonl")
    assert sorted(row["index"] for row in kept) == list(range(9))
    _, options = read_command(place / "results.jsonl.checkpoint")
    assert (options["fields"], options["no_hoist"], options["no_reorder"]) == (["q", "doc", "id"], True, False)
    (place / "away").mkdir()
    again = call("resume", str(place / "results.jsonl.checkpoint"), cwd=place / "away")
    assert again.returncode == 0, again.stderr
    assert "9 answers restored from the checkpoint" in again.stderr
    assert sorted((row["index"], row["key"], str(row["output"])) for row in rows(place / "results.jsonl")) == sorted(
        (row["index"], row["key"], str(row["output"])) for row in kept
    )


def test_a_run_resumes_with_a_longer_input_file(place: Path, sim: SimServer, call: Call) -> None:
    words = ("run", "--task", "Do it.", "--inputs", "in.jsonl", "--backend", sim.url, "--fields", "q", "doc")
    assert call(*words, cwd=place).returncode == 0
    with (place / "in.jsonl").open("a") as file:
        file.write('{"id": "new", "doc": "new", "q": "new"}\n')
    again = call(*words, "--no-reorder", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "9 answers restored from the checkpoint" in again.stderr
    assert "10 of 10 agents answered" in again.stderr


def test_a_command_recorded_by_an_earlier_version_can_be_resumed(tmp_path: Path) -> None:
    """Which did not know the options that came since."""
    old = {"task": "{q}", "inputs": tmp_path, "system_prompt": None, "schema": None, "tools": None, "tool_mode": "auto"}
    old |= {"backend": "local://", "model": None, "max_turns": 10, "temperature": 0.5}
    asked, rest = from_saved({**old, "out": tmp_path / "results.jsonl"})
    assert asked == CommandOptions(task="{q}", inputs=str(tmp_path), max_turns=10, temperature=0.5)
    assert rest == {"out": tmp_path / "results.jsonl"}


def test_resume_restores_the_recorded_options(place: Path) -> None:
    asked = CommandOptions(
        task="Do it.",
        inputs=str(place / "in.jsonl"),
        fields=["a", "First Name"],
        no_hoist=True,
        oversized="chunk",
        tools=["grep"],
    )
    assert from_saved(asked.to_dict()) == (asked, {})
    options = asked.to_kwargs()
    assert options["task"] == Fields("Do it.", "a", "First Name")
    assert (options["hoist"], options["reorder"], options["oversized"]) == (False, True, "chunk")
    assert len(options["inputs"]) == 9
    assert CommandOptions(task="Do it.", inputs=str(place / "in.jsonl"), fields=[]).to_kwargs()["task"] == "Do it."
