"""`batch-agent run --reduce`: results, and one answer of them all. Real processes, a real (simulated) server."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call, Programs, typed
from tests.support.stalls import write_inputs
from tests.support.waits import wait_for_rows

from batch_agent.cli.saved_command import read_command
from batch_agent.sim import Script, SimConfig, SimServer

TOTAL = '{"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}'
SEVEN = 'Sum up {n} reviews. [[sim: {{"json": {{"total": 7}}}}]]'
FAILS = 'Sum up {n} reviews. [[sim: {{"fault": "400"}}]]'


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=2), Script(answer_tokens=12)) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "number {i}"}}\n' for i in range(5)))
    (tmp_path / "total.json").write_text(TOTAL)
    return tmp_path


def words(sim: SimServer, *more: str) -> list[str]:
    return ["run", "--task", "Review {text}", "--inputs", "in.jsonl", "--backend", sim.url, *more]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked(sim: SimServer) -> float:
    return sim.metrics()["vllm:request_success_total"]


@pytest.mark.slow
def test_results_are_written_and_the_reduced_answer_is_printed_and_stored(
    place: Path, sim: SimServer, call: Call
) -> None:
    command = words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json")
    first = typed(*command, cwd=place)
    assert first.returncode == 0, first.stderr
    assert first.stdout == '{\n  "total": 7\n}\n'
    assert (place / "results.jsonl.summary.json").read_text() == first.stdout
    assert sorted(row["index"] for row in rows(place / "results.jsonl")) == list(range(5))
    assert "map: 5 of 5 agents answered in" in first.stderr
    assert "reduce: 1 of 1 agent answered in" in first.stderr
    assert "(sim on sim); " in first.stderr
    assert "Summary: results.jsonl.summary.json" in first.stderr
    before = asked(sim)
    again = call(*command, cwd=place)
    assert again.stdout == first.stdout
    assert "6 answers restored from the checkpoint" in again.stderr
    assert asked(sim) == before


@pytest.mark.slow
def test_a_reduced_answer_without_a_schema_is_written_as_text(place: Path, sim: SimServer, call: Call) -> None:
    reduce = 'Sum up {n}. [[sim: {{"text": "All\\nis well."}}]]'
    done = call(*words(sim, "--reduce", reduce), cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (place / "results.jsonl.summary.txt").read_text() == "All\nis well.\n"
    elsewhere = call(*words(sim, "--reduce", reduce, "--summary", "new/report.md"), cwd=place)
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert (place / "new" / "report.md").read_text() == "All\nis well.\n"


@pytest.mark.slow
def test_a_changed_reduce_task_repeats_no_agent(place: Path, sim: SimServer, call: Call) -> None:
    assert call(*words(sim, "--reduce", "Sum up."), cwd=place).returncode == 0
    before = asked(sim)
    done = call(*words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json"), cwd=place)
    assert done.returncode == 0, done.stderr
    assert asked(sim) == before + 1
    anew = call(*words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json", "--fresh"), cwd=place)
    assert anew.returncode == 0, anew.stderr
    assert asked(sim) == before + 1 + 6


@pytest.mark.slow
def test_failed_agents_are_shown_to_the_reduce_and_the_command_exits_with_1(
    place: Path, sim: SimServer, call: Call
) -> None:
    (place / "in.jsonl").write_text('{"text": "a"}\n{"other": "b"}\n')
    done = call(*words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json"), cwd=place)
    assert done.returncode == 1
    assert "map: 1 of 2 agents answered" in done.stderr
    assert "map failed, bad_input: 1. Example: " in done.stderr
    assert "run the same command again" in done.stderr
    assert json.loads(done.stdout) == {"total": 7}
    story = call("inspect", "results.jsonl.checkpoint/reduce", "--agent", "0", cwd=place).stdout
    assert '{"status":"error","index":1,' in story
    assert '"kind":"bad_input"' in story


@pytest.mark.slow
def test_a_failed_reduce_keeps_the_results_and_is_retried_by_the_next_run(
    place: Path, sim: SimServer, call: Call
) -> None:
    done = call(*words(sim, "--reduce", FAILS), cwd=place)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "The reduce failed: bad_request" in done.stderr
    assert "run the same command again" in done.stderr
    assert not list(place.glob("*summary*"))
    assert len(rows(place / "results.jsonl")) == 5
    before = asked(sim)
    again = call("resume", "results.jsonl.checkpoint", cwd=place)
    assert again.returncode == 1
    assert "5 answers restored from the checkpoint" in again.stderr
    assert asked(sim) == before


@pytest.mark.slow
def test_ctrl_c_keeps_finished_results_and_the_same_command_resumes(
    place: Path, sim: SimServer, programs: Programs
) -> None:
    write_inputs(place / "in.jsonl", "text", [f"number {i}" for i in range(60)], stalled=(6, 7))
    command = words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json", "--max-inflight", "2")
    program = programs.start_command(*command, cwd=place)
    wait_for_rows(place / "results.jsonl", 6)
    program.send_signal(signal.SIGINT)
    assert program.wait() == 130
    said = program.stderr.read_text()
    assert "of 60 agents answered (sim on sim)" in said
    assert "run the same command again, or batch-agent resume results.jsonl.checkpoint" in said
    assert "Traceback" not in said
    assert program.stdout.read_text() == ""
    assert 4 <= len(rows(place / "results.jsonl")) < 60
    again = programs.call(*command, cwd=place)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == {"total": 7}
    assert sorted(row["index"] for row in rows(place / "results.jsonl")) == list(range(60))


@pytest.mark.slow
def test_a_killed_run_with_a_reduce_is_resumed_from_any_folder(
    place: Path, sim: SimServer, programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_inputs(place / "in.jsonl", "text", [f"number {i}" for i in range(60)], stalled=(6, 7))
    program = programs.start_command(
        *words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json", "--summary", "sum.json", "--max-inflight", "2"),
        cwd=place,
    )
    wait_for_rows(place / "results.jsonl", 6)
    program.send_signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    away = tmp_path_factory.mktemp("away")
    moved = (place / "results.jsonl.checkpoint").rename(away / "moved")
    again = typed("resume", "moved", cwd=away)
    assert again.returncode == 0, again.stderr
    assert "answers restored from the checkpoint" in again.stderr
    assert (place / "sum.json").read_text() == again.stdout == '{\n  "total": 7\n}\n'
    assert sorted(row["index"] for row in rows(place / "results.jsonl")) == list(range(60))
    assert [path.name for path in away.iterdir()] == ["moved"]
    options = read_command(moved)[1]
    assert (options["reduce"], options["reduce_schema"]) == (SEVEN, str(place / "total.json"))
    assert "Use that directory" in programs.call("resume", "moved/map", cwd=away).stderr


def test_a_lost_backend_ends_the_command_with_exit_code_2(place: Path, programs: Programs) -> None:
    write_inputs(place / "in.jsonl", "text", [f"number {i}" for i in range(60)], stalled=(6, 7))
    with SimServer(SimConfig(step_base_ms=5), Script(answer_tokens=12)) as sim:
        program = programs.start_command(
            *words(sim, "--reduce", SEVEN, "--max-inflight", "2", "--max-retries", "0"), cwd=place
        )
        wait_for_rows(place / "results.jsonl", 6)
    assert program.wait() == 2
    said = program.stderr.read_text()
    assert "Stopped. " in said
    assert "batch-agent resume results.jsonl.checkpoint" in said
    assert "Traceback" not in said
    assert not list(place.glob("*summary*"))


@pytest.mark.slow
def test_inspect_shows_a_flow_stage_by_stage(place: Path, sim: SimServer, call: Call) -> None:
    (place / "mine.py").write_text("from pydantic import BaseModel\nclass Total(BaseModel):\n    total: int\n")
    command = words(sim, "--reduce", SEVEN, "--reduce-schema", "mine:Total", "--max-retries", "1")
    assert call(*command, cwd=place).returncode == 0
    shown = call("inspect", "results.jsonl.checkpoint", cwd=place).stdout
    assert "results.jsonl.checkpoint/map\ntask      Review {text}\n" in shown
    assert "results.jsonl.checkpoint/reduce\ntask      Sum up {n} reviews." in shown
    assert "agents    5: 5 answered" in shown
    assert "agents    1: 1 answered" in shown
    stages = "results.jsonl.checkpoint/map or results.jsonl.checkpoint/reduce"
    for question in (("inspect", "--agent", "0"), ("inspect", "--schema", "mine:Total"), ("export",)):
        refused = call(question[0], "results.jsonl.checkpoint", *question[1:], cwd=place)
        assert refused.returncode == 2
        assert stages in refused.stderr
    exported = call("export", "results.jsonl.checkpoint/map", cwd=place).stdout
    assert [json.loads(line)["index"] for line in exported.splitlines()] == list(range(5))
    [summary] = call("export", "results.jsonl.checkpoint/reduce", cwd=place).stdout.splitlines()
    assert json.loads(summary)["output"] == {"total": 7}


def test_a_stage_is_exported_with_the_options_of_its_command(place: Path, sim: SimServer, call: Call) -> None:
    bad = 'Sum up {n}. [[sim: [{{"text": "no"}}, {{"text": "no"}}, {{"text": "no"}}]]]'
    command = words(sim, "--reduce", bad, "--reduce-schema", "total.json", "--max-retries", "1")
    assert call(*command, cwd=place).returncode == 1
    assert "1: 0 answered, 1 failed\n" in call("inspect", "results.jsonl.checkpoint", cwd=place).stdout
    assert "1 failed" in call("inspect", "reduce", cwd=place / "results.jsonl.checkpoint").stdout


@pytest.mark.slow
def test_checkpoints_with_and_without_a_reduce_are_distinguished(place: Path, sim: SimServer, call: Call) -> None:
    plain, reduced = words(sim), words(sim, "--reduce", SEVEN)
    assert call(*plain, cwd=place).returncode == 0
    refused = call(*reduced, cwd=place)
    assert refused.returncode == 2
    assert "was made without --reduce" in refused.stderr
    assert call(*reduced, "--plan-changed", "rerun", cwd=place).returncode == 0
    for command in (plain, reduced, ["resume", "results.jsonl.checkpoint"]):
        again = call(*command, cwd=place)
        assert again.returncode == 0, again.stderr
        assert "answers restored from the checkpoint" in again.stderr
    assert call(*reduced, "--fresh", cwd=place).returncode == 0
    assert "was made with --reduce" in call(*plain, cwd=place).stderr


def test_a_checkpoint_of_a_run_that_never_started_can_be_reused(place: Path, sim: SimServer, call: Call) -> None:
    assert call(*words(sim, "--model", "another"), cwd=place).returncode == 2
    assert (place / "results.jsonl.checkpoint").exists()
    done = call(*words(sim, "--reduce", SEVEN), cwd=place)
    assert done.returncode == 0, done.stderr


def test_a_run_with_a_reduce_is_compared_with_its_plan(place: Path, sim: SimServer, call: Call) -> None:
    planned = ["plan", *words(sim)[1:]]
    assert call(*planned, cwd=place).returncode == 0
    ran = call(*words(sim, "--reduce", SEVEN), cwd=place)
    assert ran.returncode == 0, ran.stderr
    [agents] = [line.split() for line in ran.stderr.splitlines() if line.startswith("agents")]
    assert agents == ["agents", "5", "5", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--reduce-schema", "total.json"), "--reduce-schema needs --reduce"),
        (("--reducer-model", "sim"), "--reducer-model needs --reduce"),
        (("--summary", "s.txt"), "--summary needs --reduce"),
        (("--reduce", "Sum up.", "--reduce-schema", "gone.json"), "--reduce-schema 'gone.json' cannot be read"),
        (("--reduce", "Sum up.", "--reduce-schema", "nonsense"), "--reduce-schema 'nonsense': expected module:name"),
        (("--reduce", "Sum up {text}."), "{text}"),
        (("--reduce", " "), "Stage 'reduce'"),
        (
            ("--reduce", "Sum up.", "--reducer-model", "another"),
            "Stage 'reduce': --reducer-model 'another' is not served",
        ),
        (("--reduce", "Sum up.", "--summary", "."), "--summary '.' cannot be written: it is a directory"),
        (("--reduce", "Sum up.", "--summary", "in.jsonl"), "--summary 'in.jsonl' would overwrite the inputs"),
        (("--reduce", "Sum up.", "--summary", "results.jsonl"), "--summary and --out are the same file"),
        (("--reduce", "Sum up.", "--summary", "in.jsonl/x"), "--summary 'in.jsonl/x' cannot be written"),
    ],
)
def test_an_invalid_reduce_command_is_a_one_line_error_before_any_request(
    place: Path, sim: SimServer, more: tuple[str, ...], problem: str, call: Call
) -> None:
    before = asked(sim)
    done = call(*words(sim, *more), cwd=place)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert asked(sim) == before


@pytest.mark.slow
def test_an_invalid_command_with_fresh_removes_nothing(place: Path, sim: SimServer, call: Call) -> None:
    assert call(*words(sim, "--reduce", SEVEN), cwd=place).returncode == 0
    assert call(*words(sim, "--reduce", SEVEN, "--reduce-schema", "gone.json", "--fresh"), cwd=place).returncode == 2
    assert "6 answers restored from the checkpoint" in call(*words(sim, "--reduce", SEVEN), cwd=place).stderr


@pytest.mark.parametrize("more", [(), ("--reduce", SEVEN)])
def test_an_unwritable_results_file_is_an_error(place: Path, sim: SimServer, call: Call, more: tuple[str, ...]) -> None:
    (place / "full.jsonl").symlink_to("/dev/full")
    done = call(*words(sim, "--out", "full.jsonl", *more), cwd=place)
    assert done.returncode == 2
    assert "--out 'full.jsonl' cannot be written: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_command_recorded_before_reduce_existed_resumes(place: Path, sim: SimServer, call: Call) -> None:
    assert call(*words(sim), cwd=place).returncode == 0
    kept = place / "results.jsonl.checkpoint" / "command.json"
    command = json.loads(kept.read_text())
    for name in ("reduce", "reduce_schema", "reducer_model", "summary"):
        del command["options"][name]
    kept.write_text(json.dumps({**command, "format": 1}))
    again = call("resume", "results.jsonl.checkpoint", "--trust", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "5 answers restored from the checkpoint" in again.stderr


@pytest.mark.slow
def test_a_finished_run_and_its_resume_need_no_server(place: Path, call: Call) -> None:
    with SimServer(SimConfig(step_base_ms=2), Script(answer_tokens=12)) as sim:
        command = words(sim, "--reduce", SEVEN, "--reduce-schema", "total.json")
        assert call(*command, cwd=place).returncode == 0
    for name in ("results.jsonl", "results.jsonl.summary.json"):
        (place / name).unlink()
    for again in (command, ["resume", "results.jsonl.checkpoint"]):
        done = call(*again, cwd=place)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"total": 7}
        assert "6 answers restored from the checkpoint" in done.stderr
        assert sorted(row["index"] for row in rows(place / "results.jsonl")) == list(range(5))
