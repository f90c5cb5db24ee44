"""Options from a file: batch.toml of the current folder, or the one that --config names."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from cyclopts import Argument
from tests.support.forked_programs import Call

from batch_agent import SpecError
from batch_agent.cli.app import app
from batch_agent.cli.config_file import COMMANDS, accepted_types
from batch_agent.cli.options.command_options import CommandOptions
from batch_agent.sim import Script, SimConfig, SimServer

LEAST = 'task = "Say {text}"\ninputs = "in.jsonl"\n'


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as sim:
        yield sim.url


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(*words: str) -> dict[str, Any]:
    """What a command is called with."""
    _, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    return dict(bound.arguments)


def asked(*words: str) -> CommandOptions:
    found = parsed(*words)["options"]
    assert isinstance(found, CommandOptions)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def project(folder: Path, url: str) -> Path:
    folder.mkdir()
    (folder / "in.jsonl").write_text('{"name": "Ada"}\n{"name": "Bob"}\n')
    (folder / "shapes.py").write_text("from pydantic import BaseModel\nclass Person(BaseModel):\n    age: int\n")
    (folder / "own.py").write_text("def look(name: str) -> str:\n    '''Look up.'''\n    return name\n")
    (folder / "batch.toml").write_text(
        f'task = """\nWho is {{name}}?\n"""\ninputs = "in.jsonl"\nschema = "shapes:Person"\ntools = ["own:look"]\n'
        f'backend = "{url}"\nmax_turns = 4\nmax-retries = 1\nout = "out/results.jsonl"\n'
    )
    return folder


def test_a_project_runs_from_anywhere_and_is_resumed_without_its_file(tmp_path: Path, sim_url: str, call: Call) -> None:
    place = project(tmp_path / "project", sim_url)
    away = tmp_path / "away"
    away.mkdir()
    first = call("run", "--config", "../project/batch.toml", "--max-retries", "2", cwd=away)
    assert first.returncode == 0, first.stderr
    assert "Config: ../project/batch.toml" in first.stderr
    assert list(away.iterdir()) == []
    assert all(row["tool_calls"] and "age" in row["output"] for row in rows(place / "out" / "results.jsonl"))
    checkpoint = place / "out" / "results.jsonl.checkpoint"
    kept = json.loads((checkpoint / "command.json").read_text())["options"]
    assert (kept["task"], kept["max_turns"], kept["max_retries"]) == ("Who is {name}?\n", 4, 2)
    (place / "batch.toml").write_text("not = TOML")
    again = call("resume", str(checkpoint), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "2 answers restored from the checkpoint" in again.stderr


def test_batch_toml_of_the_current_folder_is_used_unless_a_task_is_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "batch.toml").write_text(LEAST + "max_turns = 3\n")
    assert asked("run") == CommandOptions(
        task="Say {text}", inputs="in.jsonl", max_turns=3, config=Path("batch.toml")
    )  # fmt: skip
    assert capsys.readouterr().err == "Config: batch.toml\n"
    assert asked("run", "--max-turns", "5").max_turns == 5
    capsys.readouterr()
    assert asked("run", "--task", "x", "--inputs", "y").max_turns is None
    assert capsys.readouterr().err == ""
    assert asked("run", "--task", "x", "--config", "batch.toml").max_turns == 3


@pytest.mark.parametrize("name", ["batch.yaml", "batch.yml"])
def test_a_yaml_config_equals_the_toml_config(here: Path, name: str) -> None:
    (here / name).write_text("task: |\n  Say\n  {text}\ninputs: in.jsonl\nmodel: ~\ntools:\n  - read_file\n  - grep\n")
    found = asked("run")
    assert (found.task, found.tools, found.model) == ("Say\n{text}\n", ["read_file", "grep"], None)


def test_a_yaml_config_without_pyyaml_names_the_package_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "batch.yaml").write_text("task: x\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[yaml\]'"):
        parsed("run")


def arguments(command: str) -> list[Argument]:
    return [argument for argument in app[command].assemble_argument_collection() if argument.show]


def sample(argument: Argument) -> Any:
    """Something else than the default."""
    hint = accepted_types(argument)[0]
    if get_origin(hint) is Literal:
        return get_args(hint)[-1]
    if get_origin(hint) is list:
        return ["a", "{b}"]
    return {bool: True, int: 7, float: 0.25}.get(hint, "some:text")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_run_option_can_be_in_the_config_file(here: Path, command: str) -> None:
    samples = {
        "run-id" if "--run-id" in argument.names else argument.name.lstrip("-"): sample(argument)
        for argument in arguments(command)
    }  # keys are names of the Python API
    del samples["config"]
    samples.pop("run", None)  # a run that exists: only on the command line
    (here / "all.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in samples.items()))
    found: dict[str, Any] = {}
    for name, value in parsed(command, "--config", "all.toml").items():
        if name == "telemetry":
            found |= asdict(value)
        else:
            found |= value.to_dict() if name in {"options", "reducer", "cluster"} else {name: value}
    assert found.pop("config") == Path("all.toml")
    assert found.pop("run", None) is None
    shown = {name.replace("_", "-"): str(value) if isinstance(value, Path) else value for name, value in found.items()}
    assert shown == samples


def test_options_of_run_are_ignored_by_other_commands(here: Path) -> None:
    (here / "batch.toml").write_text(LEAST + 'reduce = "Sum up."\nfresh = true\ncanary = 2\nexact = true\n')
    assert parsed("plan")["canary"] == 2
    assert parsed("lint")["exact"] is True
    assert parsed("run")["fresh"] is True


def test_paths_in_a_config_file_are_relative_to_its_folder(here: Path) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "b.toml").write_text(
        'task = "x"\ninputs = "in.jsonl"\nschema = "a.json"\nreduce-schema = "shapes:Total"\nout = "/results.jsonl"\n'
    )
    found = parsed("run", "--config", "deep/b.toml", "--checkpoint", "kept")
    assert (found["options"].inputs, found["options"].schema) == ("deep/in.jsonl", "deep/a.json")
    assert found["reducer"].reduce_schema == "shapes:Total"
    assert (found["out"], found["checkpoint"]) == (Path("/results.jsonl"), Path("kept"))


def test_a_flag_set_in_the_config_file_can_be_disabled(here: Path) -> None:
    (here / "batch.toml").write_text(LEAST + "strict_prefix = true\nno_hoist = false\ntools = []\n")
    found = asked("run")
    assert (found.strict_prefix, found.no_hoist, found.tools) == (True, False, None)
    assert asked("run", "--strict-prefix=false").strict_prefix is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_turn = 3", r"'batch.toml': unknown option 'max_turn'. Did you mean max_turns"),
        ("nonsense = 3", r"'batch.toml': unknown option 'nonsense'. To list all options"),
        ('config = "other.toml"', r"unknown option 'config'"),
        ("[run]\nmax_turns = 3", r"options must be at the top level of the file, not in 'run'"),
        ('max_turns = "three"', r"'batch.toml': max_turns is 'three'. Input should be a valid integer"),
        ('max_turns = "3"', r"max_turns is '3'. Input should be a valid integer"),
        ("max_turns = true", r"max_turns is True. Input should be a valid integer"),
        ("task = 3", r"task is 3. Input should be a valid string"),
        ("fresh = 1", r"fresh is 1. Input should be a valid boolean"),
        ("out = 3", r"out is 3. Input"),
        ('tools = ["a", 2]', r"tools\[1\] is 2. Input should be a valid string"),
        ('tool_mode = "nativ"', r"tool_mode is 'nativ'. Input should be 'auto', 'native' or 'action'"),
        ("max_turns = 3\nmax-turns = 4", r"sets 'max-turns' twice"),
        ("max_turns = ", r"'batch.toml' is not valid TOML: .*line 1"),
    ],
)
def test_a_config_error_names_the_file_and_the_key(here: Path, text: str, problem: str) -> None:
    (here / "batch.toml").write_text(text + "\n")
    with pytest.raises(SpecError, match=problem):
        parsed("run")


def test_a_config_error_is_one_line(tmp_path: Path, call: Call) -> None:
    done = call("run", "--config", "gone.toml", cwd=tmp_path)
    assert done.stderr == "batch-agent: --config 'gone.toml' cannot be read: No such file or directory.\n"


def test_an_unreadable_config_file_is_named(here: Path) -> None:
    with pytest.raises(SpecError, match=r"--config 'gone.toml' cannot be read: No such file"):
        parsed("run", "--config", "gone.toml")
    (here / "batch.json").write_text("{}")
    with pytest.raises(SpecError, match=r"must end in .toml, .yaml or .yml"):
        parsed("run", "--config", "batch.json")
    (here / "batch.yaml").write_text("- a\n")
    with pytest.raises(SpecError, match=r"'batch.yaml' must contain options by name"):
        parsed("run")
    (here / "batch.yaml").write_text("a: [\n")
    with pytest.raises(SpecError, match=r"'batch.yaml' is not valid YAML"):
        parsed("run")
    (here / "batch.toml").write_bytes(b"task = '\xff'")
    with pytest.raises(SpecError, match=r"batch.toml and batch.yaml are both in this directory"):
        parsed("run")
    with pytest.raises(SpecError, match=r"'batch.toml' is not UTF-8"):
        parsed("run", "--config", "batch.toml")
