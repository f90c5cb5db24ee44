"""batch-agent run with samples, models and scores; batch-agent score and compare."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_agent.cli.app import main
from batch_agent.sim import Script, SimConfig, SimServer

ROWS = [{"id": f"r{n}", "text": f"word {n}", "label": "good" if n % 2 else "bad"} for n in range(4)]


Call = Callable[..., tuple[int, str, str]]
TASK = ("in.jsonl", "--task", "Rate {text}", "--key", "id")


@pytest.fixture(scope="module")
def sims() -> Iterator[dict[str, str]]:
    """Servers of two models, by name."""
    with (
        SimServer(SimConfig(model="small", zero_latency=True), Script(answer_tokens=6)) as small,
        SimServer(SimConfig(model="large", zero_latency=True), Script(answer_tokens=6, seed=5)) as large,
    ):
        yield {"small": small.url, "large": large.url}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "scorers.py").write_text("def long(output, row):\n    return len(output) > len(row['text'])\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def lines(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.slow
def test_a_run_with_samples_and_scores_says_its_metrics(call: Call, sims: dict[str, str]) -> None:
    options = ("--samples", "2", "--score", "exact:label", "right=regex:.", "scorers:long")
    status, _, said = call("run", *TASK, *options, "--backend", sims["small"], "--out", "a.jsonl")
    assert status == 0, said
    assert "Score exact: 0.000 [0.000, 0.490], 8 answers to 4 inputs." in said
    assert "Score right: 1.000 [0.510, 1.000], 8 answers to 4 inputs." in said
    assert "Score long: " in said
    rows = lines("a.jsonl")
    assert sorted((row["index"], row["sample"]) for row in rows) == [(n, s) for n in range(4) for s in range(2)]
    assert all(row["scores"]["right"] == 1.0 for row in rows)  # type: ignore[index]
    report = Path("a.jsonl.checkpoint/report.html").read_text()
    assert '"method":"wilson"' in report
    status, _, _ = call("export", "a.jsonl.checkpoint", "--out", "a.csv")
    assert "score.exact,score.right,score.long" in Path("a.csv").read_text().partition("\n")[0]
    status, _, said = call("inspect", "a.jsonl.checkpoint", "--agent", "3~1")
    assert status == 0, said


def test_a_checkpoint_is_scored_later_and_compared(call: Call, sims: dict[str, str]) -> None:
    for name in ("small", "large"):
        status, _, said = call("run", *TASK, "--backend", sims[name], "--out", f"{name}.jsonl")
        assert status == 0, said
        status, out, _ = call("score", f"{name}.jsonl.checkpoint", "--score", "exact:label", "scorers:long")
        assert status == 0
        assert "Score exact: 0.000" in out
    both = ("small.jsonl.checkpoint", "large.jsonl.checkpoint")
    status, out, _ = call("compare", *both, "--changed", "1")
    assert status == 0
    assert "4 inputs in both." in out
    assert "exact: 0.000 -> 0.000, +0.000" in out
    assert "and 3 more" in out
    status, out, _ = call("compare", *both, "--json", "--score", "right=regex:.")
    [found] = json.loads(out)
    assert [each["name"] for each in found["scores"]] == ["exact", "long", "right"]
    assert len(found["changed"]) == 4
    status, out, _ = call("compare", "small.jsonl", both[1], "--report")
    assert status == 0
    assert '"changed_inputs":4' in Path(both[1], "report.html").read_text()
    status, out, _ = call("compare", "small.jsonl", "small.jsonl")
    assert "Agreement: 1.000" in out


@pytest.mark.slow
def test_a_judge_runs_after_the_answers_and_the_file_has_its_scores(call: Call, sims: dict[str, str]) -> None:
    Path("rubric.md").write_text("It is polite.")
    words = ("run", *TASK, "--score", "polite=judge:rubric.md", "--backend", sims["small"], "--out", "j.jsonl")
    status, _, said = call(*words)
    assert status == 0, said
    assert "Score polite: " in said
    assert "Judge polite: 4 verdicts; " in said
    assert all("polite" in row["scores"] for row in lines("j.jsonl"))  # type: ignore[operator]
    status, _, said = call(*words)
    assert status == 0, said
    status, _, said = call(*words, "--fresh")
    assert status == 0, said
    status, _, said = call("resume", "j.jsonl.checkpoint")
    assert status == 0, said


def test_several_models_are_compared_in_one_run(call: Call, sims: dict[str, str]) -> None:
    models = [f"{name}={url}" for name, url in sims.items()]
    words = ("run", *TASK, "--models", *models, "--score", "regex:e", "--out", "m.jsonl")
    status, _, said = call(*words)
    assert status == 0, said
    assert "Score small regex: " in said
    assert "small -> large: 4 inputs in both." in said
    assert {row["model"] for row in lines("m.jsonl")} == {"small", "large"}
    assert '"changed_inputs":' in Path("m.jsonl.checkpoint/report.html").read_text()
    status, out, _ = call("compare", "m.jsonl.checkpoint")
    assert status == 0
    assert "4 inputs in both." in out
    status, out, _ = call("score", "m.jsonl.checkpoint", "--score", "exact:label")
    assert "Score small exact: " in out
    status, _, said = call(*words, "--fresh")
    assert status == 0, said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("compare", "none", "none"), "There is no checkpoint in 'none'"),
        (("compare", "in.jsonl", "in.jsonl"), "is not a .jsonl file of results"),
        (("score", "none", "--score", "exact:label"), "There is no checkpoint in 'none'"),
        (("score", "none", "--score", "nothing"), "'nothing' is not known"),
        (("score", "none"), "--score"),
        (("compare", "a", "b", "--score", "judge:x"), "compare asks no model"),
        (("run", *TASK, "--samples", "0"), "--samples must be an integer from 1 to 1000"),
        (("run", *TASK, "--score", "missing:function"), "--score 'missing:function'"),
        (("run", *TASK, "--models", "a=x", "b"), "name the backend of each model"),
        (("run", *TASK, "--models", "a", "--model", "b"), "--model and --models are both given"),
        (
            ("run", *TASK, "--score", "judge:x", "--store", "redis://127.0.0.1:1"),
            "A judge scores answers after the last one",
        ),
    ],
)
def test_mistakes_are_one_line(call: Call, words: tuple[str, ...], problem: str) -> None:
    status, _, said = call(*words)
    assert status == 2
    assert problem in said
    assert said.count("\n") <= 2
