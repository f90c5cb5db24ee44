"""The other commands and their own flags at the edges: each works, or is refused in one line with status 2."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.api.test_option_edges import naming
from tests.unit.cli.test_flag_edges import EDGES, GROUPS

from batch_agent.cli.app import app, main
from batch_agent.sim import Script, SimConfig, SimServer

TASK = ["--task", "Do {it}", "--inputs", "in.jsonl"]
PLACES = {"nothing": "none", "file": "file", "folder": "folder", "letters": "ü漢🙂", "control": "a\x01b", "empty": ""}

# Per flag, what else is said, and the edges at which it works. At all others it is refused.
NUMBERS: dict[tuple[str, str], tuple[list[str], str]] = {
    ("run", "--metrics-port"): (TASK, "zero"),
    ("run", "--lease"): ([*TASK, "--store", "nowhere"], ""),
    ("run", "--workers"): ([*TASK, "--cluster", "nowhere"], ""),
    ("plan", "--lease"): ([*TASK, "--store", "nowhere"], ""),
    ("plan", "--workers"): ([*TASK, "--cluster", "nowhere"], ""),
    ("resume", "--metrics-port"): (["done.checkpoint"], "zero"),
    ("worker", "--lease"): (["--store", "nowhere", "--run", "r"], ""),
    ("worker", "--max-inflight"): (["--store", "nowhere", "--run", "r"], ""),
    ("worker", "--patience"): (["--store", "nowhere", "--run", "r"], ""),
    ("template", "--workers"): (["slurm", "--run", "r"], "one"),
    ("template", "--cpus"): (["slurm", "--run", "r"], "one"),
    ("template", "--memory-gb"): (["slurm", "--run", "r"], "one"),
    ("template", "--grace"): (["slurm", "--run", "r"], "one"),
    ("serve", "--port"): (["nothing.checkpoint"], ""),
    ("export", "--max-retries"): (["done.checkpoint"], "zero one"),
    ("inspect", "--max-retries"): (["done.checkpoint"], "zero one"),
    ("inspect", "--agent"): (["done.checkpoint"], "zero one"),
    ("plan", "--canary"): (TASK, "zero one"),
    ("preview", "--count"): (TASK, "one"),
    ("sim", "--max-num-seqs"): (["--port", "99999"], ""),
}
REFUSED_BY_NAME = [
    (["worker", "--store", "redis://127.0.0.1:1", "--run", "r", "--lease", "0"], "--lease must be"),
    (["worker", "--store", "redis://127.0.0.1:1", "--run", "r", "--lease=nan"], "--lease must be"),
    (["worker", "--store", "redis://127.0.0.1:1", "--run", "r", "--max-inflight", "0"], "--max-inflight must be"),
    (["worker", "--store", "redis://127.0.0.1:1", "--run", "r", "--patience=-1"], "--patience must be"),
    (["worker", "--store", "redis://127.0.0.1:1", "--run", "r", "--patience=nan"], "--patience must be"),
    (["worker", "--store", "redis://127.0.0.1:1", "--run", "x y"], "--run must consist"),
    (["template", "slurm", "--run", "x y"], "--run must consist"),
    (["template", "slurm", "--run", "r", "--max-inflight", "0"], "--max-inflight must be"),
    (["template", "pbs", "--run", "r"], "pbs"),
    (["template", "kubernetes", "--run", "r"], "kubernetes needs --image"),
    (["serve", "done.checkpoint", "--port", "70000"], "--port must be an integer from 0 to 65535"),
    (["serve", "done.checkpoint", "--port=-1"], "--port must be an integer from 0 to 65535"),
    (["run", *TASK, "--metrics-port", "70000"], "port must be an integer from 0 to 65535"),
    (["plan", *TASK, "--canary=-1"], "--canary must be an integer >= 0"),
    (["export", "done.checkpoint", "--max-retries=-1"], "--max-retries must be an integer >= 0"),
    (["export", "done.checkpoint", "--format", "xml"], "--format"),
    (["export", "done.checkpoint", "--schema", "ü:漢"], "--schema"),
    (["inspect", "done.checkpoint", "--schema", "none"], "--schema"),
    (["run", *TASK, "--max-turns", "1" + "0" * 30], "--max-turns must be an integer <="),
    (["run", *TASK, "--seed", "1" + "0" * 30], "seed"),
    (["run", "--task", "{it} \udcff", "--inputs", "in.jsonl"], "task must be valid Unicode"),
    (["run", *TASK, "--out", "\udcff.jsonl"], "Use UTF-8 file names"),
    (["run", *TASK, "--fresh", "--checkpoint", "done.checkpoint", "--max-tokens", "0"], "--max-tokens must be"),
    (["serve", ""], "is empty"),
    (["doctor", "ü漢"], "is not a known backend"),
    (["doctor", "vllm://127.0.0.1:999999"], "is not a URL"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run of two agents, and what is no run."""
    place = tmp_path_factory.mktemp("commands")
    (place / "in.jsonl").write_text('{"it": "a"}\n{"it": "b"}\n')
    (place / "file").write_text("no run")
    (place / "folder").mkdir()
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=2)) as sim, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "batch.toml").write_text(f'backend = "{sim.url}"\n')
        patch.setattr(sys, "argv", ["batch-agent", "run", *TASK, "--backend", sim.url, "--out", "done"])
        with pytest.raises(SystemExit, match="0"):
            main()
        yield place


@pytest.fixture
def url(finished: Path) -> str:
    return (finished / "batch.toml").read_text().split('"')[1]


class Typed:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[object, str]:
        """The exit status, and what was said."""
        self._monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr().err
        assert "Traceback" not in said
        return ended.value.code, said


@pytest.fixture
def typed(finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    monkeypatch.chdir(finished)
    return Typed(monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("edges", GROUPS)
@pytest.mark.parametrize(("command", "flag"), NUMBERS)
def test_a_flag_accepts_an_edge_value_or_rejects_it(
    typed: Typed, url: str, command: str, flag: str, edges: Sequence[str]
) -> None:
    others, taken = NUMBERS[command, flag]
    if command in ("run", "plan") and "--store" not in others:
        others = [*others, "--backend", url, "--out", "done"]
    for edge in edges:
        if (flag, edge) == ("--metrics-port", "one"):
            continue  # whether port 1 is free, and who may take it, is the machine's
        with naming(edge):
            status, said = typed(command, *others, f"{flag}={EDGES[edge]}")
            if edge in taken.split():
                assert status == 0, said
            else:
                assert status == 2, said
                assert said.splitlines()[-1].startswith("batch-agent: ") or "See batch-agent" in said


@pytest.mark.slow
@pytest.mark.parametrize(("words", "problem"), REFUSED_BY_NAME)
def test_a_flag_is_refused_before_anything_is_opened(typed: Typed, words: list[str], problem: str) -> None:
    status, said = typed(*words)
    assert status == 2
    assert problem in said


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ["resume", "inspect", "report", "serve", "export"])
def test_every_command_rejects_a_folder_without_a_checkpoint(typed: Typed, command: str, place: str) -> None:
    status, said = typed(command, PLACES[place])
    assert status == 2
    assert said.startswith("batch-agent: ")


@pytest.mark.parametrize("out", ["folder", "file/below.jsonl"])
@pytest.mark.parametrize("command", ["run", "export", "report"])
def test_every_command_rejects_an_unwritable_path(typed: Typed, url: str, command: str, out: str) -> None:
    others = [*TASK, "--backend", url, "--checkpoint", "other"] if command == "run" else ["done.checkpoint"]
    status, said = typed(command, *others, "--out", out)
    assert status == 2
    assert "cannot be written" in said
    assert out in said


@pytest.mark.parametrize("out", ["ü漢🙂.jsonl", "new/folder/out.jsonl", "right\u202eleft.csv"])
@pytest.mark.parametrize("command", ["run", "export"])
def test_every_command_writes_to_an_unusual_path(
    typed: Typed, finished: Path, url: str, command: str, out: str
) -> None:
    others = [*TASK, "--backend", url] if command == "run" else ["done.checkpoint"]
    status, said = typed(command, *others, "--out", out)
    assert status == 0, said
    assert (finished / out).stat().st_size > 0


@pytest.mark.parametrize("command", ["run", "plan", "preview", "lint"])
def test_every_command_reports_empty_inputs(typed: Typed, finished: Path, url: str, command: str) -> None:
    (finished / "empty.jsonl").touch()
    out = [] if command in ("preview", "lint") else ["--out", "nothing.jsonl"]
    status, said = typed(command, "--task", "Do {it}", "--inputs", "empty.jsonl", "--backend", url, *out)
    assert (status, said) == (2, "batch-agent: 'empty.jsonl' has no inputs.\n")
    assert not (finished / "nothing.jsonl").exists()


def test_one_input_goes_through_every_command(typed: Typed, finished: Path, url: str) -> None:
    (finished / "one.jsonl").write_text('{"it": "a"}\n')
    asked = ["--task", "Do {it}", "--inputs", "one.jsonl", "--backend", url]
    for words in (
        ["plan", *asked, "--out", "one", "--canary", "1"],
        ["preview", *asked],
        ["lint", *asked],
        ["run", *asked, "--out", "one"],
        ["resume", "one.checkpoint"],
        ["inspect", "one.checkpoint"],
        ["report", "one.checkpoint"],
        ["export", "one.checkpoint", "--out", "one.csv"],
    ):
        status, said = typed(*words)
        assert status == 0, said
    assert len((finished / "one").read_text().splitlines()) == 1


def test_every_numeric_flag_has_a_row_of_edge_values() -> None:
    """Those of a run's question are in test_flag_edges."""
    asked = {argument.name for argument in app["lint"].assemble_argument_collection()}
    found = {
        (command, argument.name)
        for command in (
            "run",
            "resume",
            "worker",
            "template",
            "inspect",
            "serve",
            "report",
            "export",
            "plan",
            "preview",
            "doctor",
        )
        for argument in app[command].assemble_argument_collection()
        if argument.show and argument.name not in asked and argument.hint in (int, float, int | None, float | None)
    }
    assert found - set(NUMBERS) <= {("worker", "--metrics-port")}  # the same as of a run
