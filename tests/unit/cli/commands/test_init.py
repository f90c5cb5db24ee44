"""`batch-agent init`: a project that runs as it is."""

import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call

from batch_agent import SpecError
from batch_agent.cli.commands.init import init
from batch_agent.sim import Script, SimConfig, SimServer

MADE = {"batch.toml", "inputs.jsonl", "schema.py", "tools.py", "README.md", ".gitignore"}


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        yield sim.url


def test_the_starter_project_runs_unchanged(tmp_path: Path, sim_url: str, call: Call) -> None:
    made = call("init", "shop", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "cd shop" in made.stdout
    assert {path.name for path in (tmp_path / "shop").iterdir()} == MADE
    done = call("run", "--backend", sim_url, cwd=tmp_path / "shop")
    assert done.returncode == 0, done.stderr
    check_results(tmp_path / "shop")


def check_results(folder: Path) -> None:
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(found) == 6
    assert all(row["tool_calls"][0]["name"] == "read_letter" and "sentiment" in row["output"] for row in found)


def test_the_commands_in_the_starter_readme_work(tmp_path: Path, sim_url: str, call: Call) -> None:
    init(tmp_path, backend=sim_url)
    lines = (tmp_path / "README.md").read_text().splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("batch-agent ")]
    assert [words[0] for words in commands] == ["run", "inspect", "report"]
    for words in commands:
        done = call(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    check_results(tmp_path)
    assert (tmp_path / "report.html").exists()


def test_every_input_of_the_starter_project_has_its_file(tmp_path: Path) -> None:
    init(tmp_path)
    names: dict[str, object] = {}
    exec((tmp_path / "tools.py").read_text(), names)
    letters = names["LETTERS"]
    assert [json.loads(line)["order"] for line in (tmp_path / "inputs.jsonl").read_text().splitlines()] == [*letters]  # type: ignore[misc]


def test_init_writes_the_given_backend_and_model(tmp_path: Path) -> None:
    init(tmp_path, backend="openai://", model='a "model"')
    said = tomllib.loads((tmp_path / "batch.toml").read_text())
    assert (said["backend"], said["model"]) == ("openai://", 'a "model"')
    assert not {"temperature", "max_tokens", "max_turns"} & set(said)
    init(tmp_path, force=True)
    said = tomllib.loads((tmp_path / "batch.toml").read_text())
    assert (said["backend"], said["temperature"]) == ("local://", 0)
    assert "model" not in said


def test_init_does_not_overwrite_existing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tools.py").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(SpecError, match=r"already contains tools.py, README.md. .* --force"):
        init(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tools.py", "README.md"}
    assert capsys.readouterr().out == ""
    assert init(tmp_path, force=True) == 0
    assert "mine" not in (tmp_path / "tools.py").read_text()


def test_an_unwritable_init_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written: Not a directory"):
        init(tmp_path / "file" / "project")
