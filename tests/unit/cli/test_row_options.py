"""`batch-agent run` over rows from a pipe, an address, a pattern or a part of a file, and options that are tables."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import PROGRAM, Call

from batch_agent.cli.config_file import read
from batch_agent.cli.options.json_values import parse_extra, parse_prices
from batch_agent.cli.saved_command import read_command
from batch_agent.cli.usage_errors import with_flags
from batch_agent.core.errors import SpecError
from batch_agent.sim import Script, SimConfig, SimServer

MCP_SERVER = Path(__file__).parents[2] / "support" / "mcp_server.py"


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        yield sim.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.csv").write_text("id,stars,text\n007,5,a\n008,1,b\n009,2,c\n")
    return tmp_path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["index"])


def test_rows_are_selected_and_have_their_own_key(folder: Path, sim_url: str, call: Call) -> None:
    words = ["run", "in.csv", "--task", "{text}", "--backend", sim_url, "--where", "stars <= 2", "--key", "id"]
    done = call(*words, "--limit", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [row["key"] for row in rows_of(folder / "results.jsonl")] == ["008"]
    saved = read_command(folder / "results.jsonl.checkpoint")[1]
    assert (saved["limit"], saved["where"], saved["key"]) == (1, "stars <= 2", "id")
    more = call(*words, cwd=folder)
    assert "1 answer restored from the checkpoint" in more.stderr
    assert [row["key"] for row in rows_of(folder / "results.jsonl")] == ["008", "009"]
    shown = call("inspect", "results.jsonl.checkpoint", "--agent", "009", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    exported = call("export", "results.jsonl.checkpoint", cwd=folder)
    assert [json.loads(line)["key"] for line in exported.stdout.splitlines()] == ["008", "009"]


@pytest.mark.slow
def test_inputs_are_piped_in_and_piped_in_again_to_resume(folder: Path, sim_url: str) -> None:
    def piped(*words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        command = [*PROGRAM, *words]
        return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=60, check=False)

    lines = '{"text": "a"}\n{"text": "b"}\n'
    options = ["--task", "{text}", "--backend", sim_url]
    for words in (["run", "-", *options], ["run", *options, "--out", "other.jsonl"]):
        done = piped(*words, text=lines)
        assert done.returncode == 0, done.stderr
        assert "Inputs: standard input" in done.stderr
    assert len(rows_of(folder / "results.jsonl")) == len(rows_of(folder / "other.jsonl")) == 2
    assert "2 answers restored" in piped("resume", "results.jsonl.checkpoint", text=lines).stderr
    empty = piped("run", "-", *options)
    assert empty.returncode == 2
    assert "Standard input has no inputs" in empty.stderr
    tabular = piped("run", "-", *options, text="text\na\n")
    assert "For another format: --input-format 'csv'." in tabular.stderr
    assert piped("run", "-", *options, "--input-format", "csv", "--fresh", text="text\na\n").returncode == 0


def test_without_inputs_and_without_a_pipe_the_option_is_named(folder: Path, call: Call) -> None:
    done = call("run", "--task", "{text}", cwd=folder)
    assert done.returncode == 2
    assert "run needs --inputs." in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-turns", "0"], "--max-turns must be an integer >= 1; got 0."),
        (["--limit", "0"], "--limit must be an integer >= 1"),
        (["--key", "ID"], "--key 'ID': an input has no such field; it has id, stars, text. Did you mean 'id'?"),
        (["--where", "star = 1"], "--where 'star = 1': no input has a field 'star'. Did you mean 'stars'?"),
        (["--temperature", "-1"], "--temperature must be a number >= 0"),
        (["--extra", "min_p"], "--extra 'min_p': expected NAME=VALUE"),
        (["--extra", "model=x"], "--extra must not hold 'model'"),
        (["--prices", "m=1,2"], "--prices 'm=1,2': expected MODEL=INPUT,CACHED,OUTPUT"),
        (
            ["--max-usd", "1"],
            "pass --prices sim=INPUT,CACHED,OUTPUT in dollars per million tokens, or set --max-total-tokens",
        ),
        (["--mcp", "no-such-program-at-all"], "'no-such-program-at-all' is not installed"),
        (["--mcp", ""], "--mcp needs a value"),
        (["in.csv"], "'in.csv' is unexpected: options begin with --. Put a pattern of files in quotes: 'docs/*.md'."),
    ],
)
def test_an_error_speaks_of_flags(folder: Path, sim_url: str, call: Call, words: list[str], said: str) -> None:
    done = call("run", "--inputs", "in.csv", "--task", "{text}", "--backend", sim_url, *words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_said_twice_is_said_once_as_a_flag() -> None:
    message = "run with plan_changed='rerun' (--plan-changed rerun), or use another checkpoint_dir (--checkpoint)."
    assert with_flags(message, ["plan_changed"]) == "run with --plan-changed rerun, or use another --checkpoint."
    assert with_flags("Use hoist=False. The {key} of a_key_b.", ["key"]) == "Use --no-hoist. The {key} of a_key_b."


def test_tables_are_pairs_or_json() -> None:
    assert parse_extra(["min_p=0.1", "name=x=y", '{"a": [1]}']) == {"min_p": 0.1, "name": "x=y", "a": [1]}
    assert parse_prices(["org/m=1,0.5,2", '{"n": [1, 2, 3]}']) == {"org/m": [1, 0.5, 2], "n": [1, 2, 3]}
    with pytest.raises(SpecError, match="not valid JSON"):
        parse_extra(["{"])


def test_prices_extra_and_stop_are_options_and_tables_of_the_config_file(
    folder: Path, sim_url: str, call: Call
) -> None:
    (folder / "batch.toml").write_text(
        f'task = "{{text}}"\ninputs = "in.csv"\nbackend = "{sim_url}"\nout = "out.csv"\nlimit = 1\ntop_p = 0.9\n'
        'stop = ["END"]\n[extra]\nmin_p = 0.1\n[prices]\nsim = [1000000, 0, 0]\n'
    )
    assert read(folder / "batch.toml")["prices"] == {"sim": [1000000, 0, 0]}
    done = call("run", cwd=folder)
    assert done.returncode == 0, done.stderr
    with (folder / "out.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert float(row["cost"]) == int(row["input_tokens"])
    words = ["--stop", "END", "--extra", "min_p=0.1", "--prices", "sim=2000000,0,0"]
    again = call("run", "--config", "batch.toml", *words, cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "restored from the checkpoint" in again.stderr
    with (folder / "out.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert float(row["cost"]) == 2 * int(row["input_tokens"])


@pytest.mark.slow
def test_the_tools_of_an_mcp_server_are_used(folder: Path, sim_url: str, call: Call) -> None:
    server = f"{sys.executable} {MCP_SERVER} stdio"
    words = ["run", "in.csv", "--task", "{text}", "--backend", sim_url, "--mcp", server, "--limit", "1"]
    done = call(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    shown = call("inspect", "results.jsonl.checkpoint", cwd=folder)
    assert "whoami" in shown.stdout
    secret = call(*words[:-3], f"env API_KEY=s3cret {server}", "--limit", "1", "--out", "secret.jsonl", cwd=folder)
    assert secret.returncode == 0, secret.stderr
    assert "s3cret" not in (folder / "secret.jsonl.checkpoint" / "command.json").read_text()
    refused = call("resume", "secret.jsonl.checkpoint", cwd=folder)
    assert "The command of an MCP server contained a password" in refused.stderr
    shared = call(*words, "--store", "redis://127.0.0.1:1/0", cwd=folder)
    assert "--mcp cannot be used with --store" in shared.stderr
