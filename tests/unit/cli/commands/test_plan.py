"""`batch-agent plan`, and the run that it was made for: real processes, a real (simulated) server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call, typed

from batch_agent.sim import Script, SimConfig, SimServer

WORK = ("--task", "Answer from the document.", "--fields", "doc", "q", "--inputs", "in.jsonl", "--model", "sim")


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=2.0), Script(tool_turns=0, answer_tokens=8)) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rows = [{"doc": f"document {at % 4} " + "lorem ipsum " * 60, "q": f"What of {at}?"} for at in range(24)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


@pytest.mark.slow
def test_a_plan_without_a_canary_sends_no_request_and_has_no_time(place: Path, sim: SimServer) -> None:
    done = typed("plan", *WORK, "--backend", sim.url, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("agents   24 of 1.0 turns")
    assert "time     unknown" in done.stdout
    assert "- Behaviour of agents: assumed." in done.stdout


def test_a_canary_predicts_the_time_is_not_repeated_and_is_compared_with_the_run(
    place: Path, sim: SimServer, call: Call
) -> None:
    done = call("plan", *WORK, "--backend", sim.url, "--canary", "5", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "Running a canary of 5 agents ..." in done.stderr
    assert "time     unknown" not in done.stdout
    assert "- Behaviour of agents: canary of 5." in done.stdout
    ran = call("run", *WORK, "--backend", sim.url, cwd=place)
    assert ran.returncode == 0, ran.stderr
    assert "5 answers restored from the checkpoint" in ran.stderr
    table = {line.split()[0]: line.split()[1:] for line in ran.stderr.splitlines() if line[:6] in ("agents", "turns ")}
    assert table == {"agents": ["24", "24", "1"], "turns": ["24", "24", "1"]}
    results = [json.loads(line) for line in (place / "results.jsonl").read_text().splitlines()]
    assert sorted(result["index"] for result in results) == list(range(24))


def test_a_run_without_a_plan_has_no_comparison(place: Path, sim: SimServer, call: Call) -> None:
    ran = call("run", *WORK, "--backend", sim.url, cwd=place)
    assert ran.returncode == 0, ran.stderr
    assert "forecast" not in ran.stderr
    (place / "results.jsonl.checkpoint" / "forecast.json").write_text("not a forecast")
    assert call("run", *WORK, "--backend", sim.url, cwd=place).returncode == 0
