"""Samples of one input are agents of their own in the report."""

import json
from pathlib import Path

import pytest

from batch_agent import BatchAgent
from batch_agent.core.events import AgentStarted
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.observe.report.run_view import RunView
from batch_agent.observe.score_file import (
    SCORES,
    evaluation_json,
    load_scores,
    metric_lines,
    save_comparisons,
    save_scores,
    score_columns,
)
from batch_agent.testing import ScriptedBackend, say


def test_an_agent_is_found_by_its_index_and_sample() -> None:
    view = RunView()
    view.start_process(0.0)
    for key, index in (("ab", 0), ("ab~1", 0), ("x@cd~2", 1)):
        view.take(1.0, AgentStarted(key, index))
    assert [view.key("", 0), view.key("", 0, 1), view.key("", 1, 2), view.key("", 1)] == ["ab", "ab~1", "x@cd~2", None]
    shown = view.timeline.as_json(2.0, range(3))
    assert (shown["index"], shown["sample"]) == ([0, 0, 1], [0, 1, 2])


def test_a_run_without_samples_has_no_column_for_them() -> None:
    view = RunView()
    view.start_process(0.0)
    view.take(1.0, AgentStarted("ab-1", 0))
    assert "sample" not in view.timeline.as_json(2.0, range(1))


def test_scores_of_a_scorer_replace_its_earlier_ones_and_keep_those_of_others(tmp_path: Path) -> None:
    save_scores(tmp_path, {("a", 0): {"exact": 1.0, "judge": 0.5}, ("gone", 0): {"exact": 0.0}})
    save_scores(tmp_path, {("a", 0): {"exact": 0.0}, ("b", 1): {"exact": None}})
    assert load_scores(tmp_path) == {("a", 0): {"judge": 0.5, "exact": 0.0}, ("b", 1): {"exact": None}}
    assert metric_lines(tmp_path) == [
        "Score judge: 0.500, 1 input.",
        "Score exact: 0.000 [0.000, 0.793], 1 input, 1 unscored.",
    ]


def test_a_report_is_written_without_scores_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / SCORES).write_text("{")
    assert evaluation_json(tmp_path) == {"metrics": [], "comparisons": []}
    (tmp_path / SCORES).unlink()
    save_comparisons(tmp_path, [{"changed": [{"index": n} for n in range(300)]}])
    [shown] = evaluation_json(tmp_path)["comparisons"]
    assert (len(shown["changed"]), shown["changed_inputs"]) == (200, 300)
    json.dumps(shown)


def test_the_scores_of_rows_are_found_by_model_key_and_sample(tmp_path: Path) -> None:
    save_scores(tmp_path, {("a", 0): {"exact": 1.0}, ("b.c", 1): {"exact": 0.0, "judge": None}})
    own = tmp_path / "model.large%2F1"
    own.mkdir()
    save_scores(own, {("a", 0): {"exact": 0.5}})
    rows = [("", "a", 0), ("", "b.c", 1), ("", "a", 1), None, ("large/1", "a", 0)]
    assert score_columns(tmp_path, rows) == {"exact": [1.0, 0.0, None, None, 0.5], "judge": [None] * 5}
    (tmp_path / SCORES).write_text("{")
    assert score_columns(tmp_path, rows) == {}


@pytest.mark.parametrize("key", [None, "id"])
async def test_the_report_of_a_run_has_the_score_of_each_answer(tmp_path: Path, key: str | None) -> None:
    def index_of(output: str, row: dict[str, object]) -> float:
        return float(str(row["n"]))

    results = await BatchAgent.run(
        task="Say {n}",
        inputs=[{"n": n, "id": f"r.{n}@x"} for n in range(3)],
        key=key,
        samples=2,
        score=index_of,
        backend=ScriptedBackend(lambda _: say("fine")),
        checkpoint_dir=tmp_path,
        progress=False,
    )
    follower = LogFollower(tmp_path)
    follower.read_all()
    model = follower.model()
    shown = zip(model["timeline"]["index"], model["results"]["scores"]["index_of"], strict=True)
    assert sorted(shown) == sorted((each.index, each.scores["index_of"]) for each in results)
    assert '"scores":{"index_of":[' in (tmp_path / "report.html").read_text()


async def test_a_report_without_scores_has_no_column_for_them(tmp_path: Path) -> None:
    await BatchAgent.run(
        task="Say {it}",
        inputs=["a"],
        backend=ScriptedBackend(lambda _: say("fine")),
        checkpoint_dir=tmp_path,
        progress=False,
    )
    follower = LogFollower(tmp_path)
    follower.read_all()
    assert "scores" not in follower.model()["results"]
