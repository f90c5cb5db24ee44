"""What the program says of itself."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from cyclopts import Argument
from tests.support.forked_programs import Call

from batch_agent.cli.app import app, main
from batch_agent.cli.command_table import COMMANDS
from batch_agent.cli.commands.completion import install_completion

DOCS = Path(__file__).parents[3] / "docs"
NAMES = [command.name for command in COMMANDS]


def options(name: str) -> list[Argument]:
    return [argument for argument in app[name].assemble_argument_collection(parse_docstring=True) if argument.show]


@pytest.mark.slow
def test_help_lists_the_commands_in_order_with_one_line_each(tmp_path: Path, call: Call) -> None:
    said = call("--help", cwd=tmp_path, COLUMNS="80").stdout
    panel = said.partition("Commands")[2].partition("╰")[0]
    lines = [line.strip("│ ") for line in panel.splitlines()[1:] if line.strip("│ ")]
    assert [line.split()[0] for line in lines] == NAMES
    assert all(line.endswith(".") for line in lines)
    assert "batch-agent run --task" in said


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_run_has_few_headings_and_fits_the_terminal(tmp_path: Path, call: Call, columns: int) -> None:
    said = call("run", "--help", cwd=tmp_path, COLUMNS=str(columns)).stdout
    assert re.findall(r"╭─ (.*?) ─", said) == [
        "Task",
        "Model and server",
        "Output and progress",
        "Evaluation",
        "Reduce",
        "Limits",
        "Prompts",
        "Distributed runs",
    ]
    assert max(map(len, said.splitlines())) <= columns
    assert "[default: False]" not in said


@pytest.mark.parametrize("name", NAMES)
def test_every_cli_option_has_a_description(name: str) -> None:
    texts = {argument.name: argument.parameter.help or "" for argument in options(name)}
    assert [option for option, text in texts.items() if not text.rstrip().endswith((".", "..."))] == []


@pytest.mark.parametrize("name", [*NAMES, "--install-completion"])
def test_every_command_and_option_is_in_the_docs(name: str) -> None:
    text = (DOCS / "cli.md").read_text()
    assert f"`batch-agent {name}" in text
    words = [option.name.lstrip("-").upper() if option.index == 0 else option.name for option in options(name)]
    assert [word for word in words if not re.search(rf"`{re.escape(word)}[ `]", text)] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rn"], "Unknown command 'rn'. Did you mean 'run'?"),
        (["--wat"], "Unknown option --wat."),
        (["run", "--tsk", "x", "--inputs", "y"], "Unknown option --tsk. Did you mean --task?"),
        (["run", "--task", "x", "--inputs", "y", "--max-turn", "1"], "Did you mean --max-turns?"),
        (["run", "--tool-mode", "nativ", "--task", "x", "--inputs", "y"], 'Did you mean "native"?'),
        (["run", "--task", "x", "--inputs", "y", "more"], "'more' is unexpected"),
        (["run", "--task"], "--task needs a value."),
        (["run", "--task", "x"], "run needs --inputs."),
        (["export"], "export needs FOLDER."),
        (["run"], "batch-agent init (creates a project that runs without changes)"),
        (["plan"], 'batch-agent plan --task "Summarize: {text}" --inputs texts.jsonl'),
    ],
)
def test_a_misspelt_command_or_flag_gets_a_suggestion_and_a_pointer_to_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    found = capsys.readouterr().err
    assert found.startswith("batch-agent: ")
    assert said in found
    assert "--help" in found
    assert len(found.splitlines()) < 6


def test_help_imports_no_command(tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['--help']\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"from batch_agent.cli import main; {code}"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "batch_agent.cli.app" in done.stderr
    assert [name for name in NAMES if f"batch_agent.cli.{name} " in done.stderr] == []


COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_batch_agent; printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "-", str(script), "batch-agent", *words], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_choices(tmp_path: Path, call: Call) -> None:
    done = call("--install-completion", "--shell", "bash", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "~/.bashrc" in done.stdout
    [script] = tmp_path.rglob("batch-agent")
    assert str(script) in (tmp_path / ".bashrc").read_text()
    assert completed(script, "") == NAMES
    assert "--max-turns" in completed(script, "run", "--max")
    assert completed(script, "run", "--tool-mode", "") == ["auto", "native", "action"]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_completion_scripts_of_other_shells_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Literal["zsh", "fish", "powershell"]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    install_completion(shell=shell, output=tmp_path / "script")
    assert [path.name for path in tmp_path.iterdir()] == ["script"]
    text = (tmp_path / "script").read_text()
    assert [name for name in [*NAMES, "max-turns"] if name not in text] == []


def test_the_version_flag_prints_the_version(tmp_path: Path, call: Call) -> None:
    done = call("--version", cwd=tmp_path)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", done.stdout)
