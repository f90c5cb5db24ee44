"""`--shared-results` and its key in a config file reach the prompts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call

from batch_agent.sim import Script, SimConfig, SimServer

TOOL = """
from batch_agent import Tool

@Tool.define(effect="read")
def read_note(name: str) -> str:
    '''Read a note.'''
    return "The note says so. " * 40
"""


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as sim:
        yield sim.url


@pytest.fixture
def project(tmp_path: Path, sim_url: str) -> Path:
    (tmp_path / "own.py").write_text(TOOL)
    (tmp_path / "in.jsonl").write_text('{"name": "Ada"}\n{"name": "Bob"}\n')
    (tmp_path / "batch.toml").write_text(
        'task = """Say what the note says.\\n\\nThe note of {name}"""\ninputs = "in.jsonl"\ntools = ["own:read_note"]\n'
        f'backend = "{sim_url}"\nlog_requests = "log.jsonl"\n'
    )
    return tmp_path


def last_prompt(folder: Path) -> str:
    """First message of the user in the last request."""
    body = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["body"]
    return next(str(message["content"]) for message in body["messages"] if message["role"] == "user")


def test_the_flag_places_results_of_read_tools_first(project: Path, call: Call) -> None:
    done = call("run", "--shared-results", "first", cwd=project)
    assert done.returncode == 0, done.stderr
    prompt = last_prompt(project)
    assert prompt.startswith("Say what the note says.\n\n<references>\n<reference call='read_note(")
    assert prompt.index("The note says so.") < prompt.index("The note of")


def test_the_config_file_names_the_placement_and_the_flag_overrides_it(project: Path, call: Call) -> None:
    with (project / "batch.toml").open("a") as file:
        file.write('shared_results = "first"\n')
    assert call("run", cwd=project).returncode == 0
    assert "<references>" in last_prompt(project)
    assert call("run", "--shared-results", "inline", "--fresh", cwd=project).returncode == 0
    assert "<references>" not in last_prompt(project)


def test_an_unknown_placement_is_refused_with_a_suggestion(project: Path, call: Call) -> None:
    done = call("run", "--shared-results", "frist", cwd=project)
    assert done.returncode != 0
    assert 'Did you mean "first"?' in done.stderr


def test_lint_and_preview_take_the_option(project: Path, call: Call) -> None:
    for command in ("lint", "preview"):
        done = call(command, "--shared-results", "auto", cwd=project)
        assert done.returncode == 0, done.stderr
