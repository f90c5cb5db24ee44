"""How the program ends, for those who call it from scripts."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call, Programs
from tests.support.stalls import write_inputs
from tests.support.waits import wait_for_rows

from batch_agent.sim import Script, SimConfig, SimServer

DOCS = Path(__file__).parents[3] / "docs"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(step_base_ms=5), Script(answer_tokens=10)) as sim:
        yield sim.url


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "number {i}"}}\n' for i in range(24)))
    (tmp_path / "holes.jsonl").write_text('{"text": "x"}\n{"other": "x"}\n')
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, ["--help"]),
        (0, ["--version"]),
        (0, ["run", "--help"]),
        (0, ["doctor", "SIM"]),
        (0, ["run", "--task", "Say it.", "--inputs", "holes.jsonl", "--backend", "SIM"]),
        (1, ["run", "--task", "Say {text}", "--inputs", "holes.jsonl", "--backend", "SIM"]),
        (1, ["lint", "--task", "{text}", "--inputs", "in.jsonl", "--system-prompt", "Now: 2026-11-15 12:00:00."]),
        (2, ["nonsense"]),
        (2, ["--nonsense"]),
        (2, ["run"]),
        (2, ["run", "--nonsense"]),
        (2, ["run", "--max-turns", "many"]),
        (2, ["run", "--config", "gone.toml"]),
        (2, ["run", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", NOWHERE]),
        (2, ["demo", "--backend", NOWHERE]),
        (2, ["doctor", NOWHERE]),
        (2, ["plan", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", "SIM", "--model", "another"]),
        (2, ["lint", "--task", "Say {text}", "--inputs", "gone.jsonl"]),
        (2, ["resume", "gone"]),
        (2, ["worker"]),
        (2, ["worker", "--store", "somewhere", "--run", "it"]),
        (2, ["inspect", "gone"]),
        (2, ["export", "gone"]),
        (2, ["sim", "--port", "99999"]),
        (2, ["sim", "--slowdown", "0"]),
        (2, ["sim", "--host", "host.invalid"]),
    ],
)
def test_the_exit_status_reflects_the_outcome_of_the_run(
    place: Path, sim_url: str, call: Call, status: int, words: list[str]
) -> None:
    done = call(*(sim_url if word == "SIM" else word for word in words), cwd=place)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_sigterm_keeps_finished_results_like_ctrl_c(place: Path, sim_url: str, programs: Programs) -> None:
    write_inputs(place / "in.jsonl", "text", [f"number {i}" for i in range(24)], stalled=(6, 7))
    words = ["run", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", sim_url, "--max-inflight", "2"]
    program = programs.start_command(*words, cwd=place)
    wait_for_rows(place / "results.jsonl", 6)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == 143
    said = program.stderr.read_text()
    assert "To resume: run the same command again" in said
    assert "Traceback" not in said
    done = len((place / "results.jsonl").read_text().splitlines())
    assert 4 <= done < 24
    again = programs.call("resume", "results.jsonl.checkpoint", cwd=place)
    assert again.returncode == 0, again.stderr
    came = re.search(r"(\d+) answers restored from the checkpoint", again.stderr)
    assert came is not None
    assert int(came[1]) >= done
    rows = [json.loads(line) for line in (place / "results.jsonl").read_text().splitlines()]
    assert sorted(row["index"] for row in rows) == list(range(24))


def test_a_run_with_a_reduce_handles_sigterm(place: Path, sim_url: str, programs: Programs) -> None:
    write_inputs(place / "in.jsonl", "text", [f"number {i}" for i in range(24)], stalled=(6, 7))
    words = ["run", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", sim_url, "--max-inflight", "2"]
    program = programs.start_command(*words, "--reduce", "Sum up.", cwd=place)
    wait_for_rows(place / "results.jsonl", 6)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == 143
    assert "Stopped by SIGTERM." in program.stderr.read_text()


def test_every_exit_status_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    assert [status for status in (0, 1, 2, 130, 143) if f"| `{status}` |" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["template", "slurm", "--run", "it"]])
def test_output_on_a_full_disk_is_one_clear_error(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "batch_agent", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    said = (
        "batch-agent: The output cannot be written: No space left on device. Free some space, or send it elsewhere.\n"
    )
    assert (done.returncode, done.stderr) == (2, said)
