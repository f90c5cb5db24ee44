"""Mistakes of a first session on the command line: each message says what to write instead."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call

from batch_agent.sim import Script, SimConfig, SimServer

NOWHERE = "vllm://127.0.0.1:9"


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        yield sim.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(8)))
    return tmp_path


def test_preview_takes_its_inputs_as_run_does(folder: Path, call: Call) -> None:
    done = call("preview", "in.jsonl", "--task", "Say {text}", "--backend", NOWHERE, "--count", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Say text 0" in done.stdout


def test_notes_and_errors_of_a_preview_name_flags(folder: Path, call: Call) -> None:
    words = ["preview", "in.jsonl", "--task", "Say {text}", "--backend"]
    done = call(*words, "anthropic://", cwd=folder)
    assert "a run needs --model\n" in done.stdout
    assert "Without --max-tokens, it is" in done.stdout
    assert "--count must be an integer >= 1" in call(*words, NOWHERE, "--count", "0", cwd=folder).stderr
    assert "--backend 'vlm://x'" in call(*words, "vlm://x", cwd=folder).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--deadline", "0"], "--deadline must be more than 0 seconds; got 0.0."),
        (["--encoding", "nope"], "--encoding must be the name of a text encoding, such as 'cp1252' or 'latin-1'; got"),
        (["--tools", "grp"], "Did you mean 'grep'?"),
        (["--tools", "my_tools.py:search"], "--tools 'my_tools.py:search': write my_tools:search, without .py."),
        (["--key", "number"], "--key 'number': an input has no such field; it has text (input 0)."),
        (["--mcp", "cat", "in.jsonl"], "Put a command and its arguments in quotes: --mcp 'cat in.jsonl'."),
        (["--backend", "vllm://a:1,vllm://b:2"], "For several endpoints, use hostfile://PATH"),
    ],
)
def test_a_message_says_what_to_write(folder: Path, call: Call, words: list[str], message: str) -> None:
    backend = [] if "--backend" in words else ["--backend", NOWHERE]
    done = call("run", "in.jsonl", "--task", "Say {text}", *backend, *words, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert "None" not in done.stderr


def test_a_list_of_endpoints_in_the_config_file_is_referred_to_a_hostfile(folder: Path, call: Call) -> None:
    (folder / "batch.toml").write_text('task = "Say {text}"\ninputs = "in.jsonl"\nbackend = ["vllm://a:1"]\n')
    assert "For several endpoints, write a hostfile: 'hostfile://PATH'." in call("run", cwd=folder).stderr


def test_the_results_file_instead_of_its_checkpoint_is_recognized(folder: Path, sim_url: str, call: Call) -> None:
    call("run", "in.jsonl", "--task", "Say {text}", "--backend", sim_url, "--limit", "1", cwd=folder)
    for command in ("inspect", "export", "resume"):
        done = call(command, "results.jsonl", cwd=folder)
        assert (done.returncode, "results.jsonl.checkpoint'?" in done.stderr) == (2, True), done.stderr


def test_failures_that_are_not_listed_are_counted(folder: Path, sim_url: str, call: Call) -> None:
    words = ["run", "in.jsonl", "--task", "Say {text}", "--backend", sim_url, "--max-tokens", "99999"]
    assert call(*words, cwd=folder).returncode == 1
    shown = call("inspect", "results.jsonl.checkpoint", cwd=folder).stdout
    assert "3 more failed: --full" in shown
    assert "more failed" not in call("inspect", "results.jsonl.checkpoint", "--full", cwd=folder).stdout


def test_prices_without_a_budget_give_the_cost(folder: Path, sim_url: str, call: Call) -> None:
    words = ["run", "in.jsonl", "--task", "Say {text}", "--backend", sim_url, "--prices", "sim=1000,1000,1000"]
    done = call(*words, cwd=folder)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert f"Cost: ${sum(row['cost'] for row in rows):,.4f}." in done.stderr
    assert f"Cost: ${sum(row['cost'] for row in rows):,.4f}." in call(*words, cwd=folder).stderr  # restored


def test_a_pattern_that_also_matches_compressed_files_gives_the_rows_of_all(
    folder: Path, sim_url: str, call: Call
) -> None:
    (folder / "in2.jsonl.gz").write_bytes(gzip.compress(b'{"text": "packed"}\n'))
    done = call("run", "in*.jsonl*", "--task", "Say {text}", "--backend", sim_url, "--out", "out.csv", cwd=folder)
    assert "9 of 9 agents answered" in done.stderr, done.stderr


def test_compiled_python_files_are_not_inputs(folder: Path, sim_url: str, call: Call) -> None:
    (folder / "shop" / "__pycache__").mkdir(parents=True)
    (folder / "shop" / "cart.py").write_text("total = sum")
    (folder / "shop" / "__pycache__" / "cart.pyc").write_bytes(b"\0\1")
    done = call("run", "shop/", "--task", "Review {text}", "--backend", sim_url, cwd=folder)
    assert "1 of 1 agent answered" in done.stderr
    assert "binary" not in done.stderr


def test_an_old_key_of_the_config_file_is_named_as_it_is_there(folder: Path, call: Call) -> None:
    (folder / "batch.toml").write_text('task = "Say {text}"\ninputs = "in.jsonl"\ncheckpoint_dir = "x"\n')
    said = call("run", cwd=folder).stderr
    assert "unknown option 'checkpoint_dir'. batch-agent 0.2 had this name; now write `--checkpoint FOLDER`" in said
