"""Scores of a run: while answers arrive, by judges after them, and of earlier runs."""

import csv
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from batch_agent import AgentResult, BackendError, BatchAgent, Results, RunStopped, SpecError, exact, judge
from batch_agent.core.requests import Request, Usage
from batch_agent.observe.score_file import recorded_metrics
from batch_agent.run.checkpoint_table import read_results
from batch_agent.testing import ScriptedBackend, say

ROWS = [{"n": n, "label": "even" if n % 2 == 0 else "odd"} for n in range(6)]
RUBRIC = "It says even or odd, in {one} word."


def text_of(request: Request) -> str:
    return str(getattr(request.messages[0], "text", ""))


def script(request: Request) -> Any:
    """Says that everything is even; as a judge, that this is right."""
    if text_of(request).startswith("Grade"):
        is_first = '"n":0' in text_of(request).replace(" ", "")
        return say(orjson.dumps({"reason": "so", "meets_rubric": is_first}).decode())
    return say("even", Usage(10, 0, 1))


async def run(server: ScriptedBackend | None = None, **options: Any) -> Results[Any]:
    given = {"task": "Is {n} even or odd?", "inputs": ROWS, "progress": False, **options}
    results: Results[Any] = await BatchAgent.run(backend=server or ScriptedBackend(script), **given)
    return results


async def test_answers_are_scored_as_they_arrive() -> None:
    seen: list[Any] = []
    results = await run(score=exact("label"), on_result=lambda each: seen.append(each.scores))
    assert [each.scores for each in results] == [{"exact": float(row["label"] == "even")} for row in ROWS]
    assert sum(each["exact"] for each in seen) == 3
    assert (results.metrics["exact"].mean, results.metrics["exact"].method) == (0.5, "wilson")
    assert "exact: 0.500 [0.188, 0.812], 6 inputs" in str(results)


async def test_several_scorers_names_and_functions() -> None:
    def short(output: str, row: Any) -> bool:
        return len(output) < int(row["n"])

    results = await run(score=["right=exact:label", "regex:^e", short])
    assert list(results.metrics) == ["right", "regex", "short"]
    assert results.metrics["regex"].mean == 1.0


async def test_scores_are_columns_of_tables_and_of_the_export(tmp_path: Path) -> None:
    results = await run(score=exact("label"), out=tmp_path / "out.csv", checkpoint_dir=tmp_path / "c")
    results.to_jsonl(tmp_path / "all.jsonl")
    with (tmp_path / "out.csv").open() as file:
        assert {row["score.exact"] for row in csv.DictReader(file)} == {"0.0", "1.0"}
    assert json.loads((tmp_path / "all.jsonl").read_text().splitlines()[0])["scores"] == {"exact": 1.0}
    assert [each.scores for each in read_results(tmp_path / "c")] == [each.scores for each in results]


async def test_the_best_sample_by_its_score() -> None:
    answers = iter(["odd", "even"] * 6)
    server = ScriptedBackend(lambda _: say(next(answers)))
    results = await run(server, samples=2, score=exact("label"), max_inflight=1)
    assert results.metrics["exact"].mean == 0.5
    assert results.best_of("exact").metrics["exact"].mean == 1.0
    with pytest.raises(SpecError, match="no score 'other'"):
        results.best_of("other")


async def test_a_judge_runs_after_the_answers_and_only_once_for_equal_ones() -> None:
    server = ScriptedBackend(script)
    results = await run(server, samples=2, score=[exact("label"), judge(RUBRIC)])
    tasks = [text_of(request) for request in server.requests]
    assert [task.startswith("Grade") for task in tasks] == [False] * 12 + [True] * 6
    assert all("{one}" in task for task in tasks[12:])
    assert [each.scores["judge"] for each in results] == [1.0] * 2 + [0.0] * 10
    assert results.metrics["judge"].mean == pytest.approx(1 / 6)
    assert len(results.judges["judge"]) == 6


async def test_a_judge_counts_in_the_usage_and_the_cost() -> None:
    server = ScriptedBackend(
        lambda request: say(script(request).text, Usage(1_000_000, 0, 0)), name="scripted", model="m"
    )
    results = await run(server, score=judge(RUBRIC), prices={"m": (1, 1, 1)})
    assert (results.usage.input, results.cost) == (12_000_000, 12.0)


async def test_a_judge_on_a_scale_with_a_model_of_its_own() -> None:
    own = ScriptedBackend(lambda _: say('{"reason": "so", "score": 4}'), model="big")
    results = await run(score=judge("Good?", name="quality", scale=(1, 5), model="big", backend=own))
    assert {each.scores["quality"] for each in results} == {4.0}
    assert {request.model for request in own.requests} == {"big"}


async def test_verdicts_that_do_not_fit_leave_answers_unscored() -> None:
    own = ScriptedBackend(lambda _: say('{"reason": "so", "score": 9}'))
    results = await run(score=judge("Good?", scale=(1, 5), backend=own, max_retries=0))
    assert (results.metrics["judge"].mean, results.metrics["judge"].unscored) == (None, 6)


async def test_a_resumed_run_does_not_judge_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"score": judge(RUBRIC), "checkpoint_dir": tmp_path / "c", "out": tmp_path / "out.jsonl"}
    first = await run(**options)
    server = ScriptedBackend(script)
    again = await run(server, **options)
    assert not server.requests
    assert [each.scores for each in again] == [each.scores for each in first]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["scores"]["judge"] for line in lines] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert recorded_metrics(tmp_path / "c")[""]["judge"].mean == pytest.approx(1 / 6)


async def test_another_rubric_is_judged_anew_without_new_answers(tmp_path: Path) -> None:
    await run(score=judge(RUBRIC), checkpoint_dir=tmp_path)
    server = ScriptedBackend(script)
    await run(server, score=judge("Another."), checkpoint_dir=tmp_path)
    assert [text_of(request).startswith("Grade") for request in server.requests] == [True] * 6


async def test_the_budget_of_a_run_covers_its_judges() -> None:
    server = ScriptedBackend(lambda request: say(script(request).text, Usage(1000, 0, 10)), model="m")
    limits: dict[str, Any] = {"max_tokens": 10, "max_inflight": 1}
    none_left = await run(server, score=judge(RUBRIC, max_tokens=10), max_total_tokens=6200, **limits)
    assert (none_left.metrics["judge"].unscored, none_left.judges["judge"]) == (6, [])
    some_left = await run(server, score=judge(RUBRIC, max_tokens=10), max_total_tokens=8500, **limits)
    assert 0 < some_left.metrics["judge"].scored < 6


async def test_a_checkpoint_is_scored_without_new_answers(tmp_path: Path) -> None:
    await run(checkpoint_dir=tmp_path)
    results = await BatchAgent.score(tmp_path, exact("label"))
    assert results.metrics["exact"].mean == 0.5
    server = ScriptedBackend(script)
    judged = await BatchAgent.score(tmp_path, judge(RUBRIC), backend=server)
    assert len(server.requests) == 6
    assert set(judged[0].scores) == {"exact", "judge"}
    assert set(read_results(tmp_path)[0].scores) == {"exact", "judge"}
    assert set(BatchAgent.score_sync(tmp_path, "contains:label")[0].scores) == {"exact", "judge", "contains"}


async def test_scoring_says_what_is_missing(tmp_path: Path) -> None:
    results = await run()
    with pytest.raises(SpecError, match="at least one scorer"):
        await BatchAgent.score(results)
    with pytest.raises(SpecError, match="pass backend="):
        await BatchAgent.score(results, judge(RUBRIC))
    with pytest.raises(SpecError, match="needs all answers"):
        BatchAgent.stream(task="{n}", inputs=ROWS, backend=ScriptedBackend(script), score=judge(RUBRIC))
    with pytest.raises(SpecError, match="not known"):
        await run(score="nothing:x")
    server = ScriptedBackend(script)
    with pytest.raises(SpecError, match="temprature"):
        await run(server, score=judge(RUBRIC, temprature=0))
    with pytest.raises(SpecError, match="needs a model of its own"):
        await run(server, score=judge(RUBRIC), models=["a", "b"])
    assert not server.requests


async def test_several_models_answer_every_input(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return say("even" if request.model == "small" else str(ROWS[request.index or 0]["label"]))

    server = ScriptedBackend(answer)
    results = await run(
        server, models=["small", "large"], samples=2, score=exact("label"), checkpoint_dir=tmp_path,
        out=tmp_path / "out.csv",
    )  # fmt: skip
    assert [(each.index, each.model, each.sample) for each in results[:4]] == [
        (0, "small", 0), (0, "small", 1), (0, "large", 0), (0, "large", 1),
    ]  # fmt: skip
    assert {name: each.metrics["exact"].mean for name, each in results.by_model.items()} == {"large": 1.0, "small": 0.5}
    with (tmp_path / "out.csv").open() as file:
        assert {row["model"] for row in csv.DictReader(file)} == {"small", "large"}
    assert {model: each["exact"].mean for model, each in recorded_metrics(tmp_path).items()} == {
        "large": 1.0, "small": 0.5,
    }  # fmt: skip
    again = ScriptedBackend(answer)
    resumed = await run(again, models=["small", "large"], samples=2, score=exact("label"), checkpoint_dir=tmp_path)
    assert not again.requests
    assert [(each.model, each.output, each.scores) for each in resumed] == [
        (each.model, each.output, each.scores) for each in results
    ]
    assert [each.model for each in read_results(tmp_path)][:4] == ["large", "large", "small", "small"]


async def test_models_may_have_backends_of_their_own_and_inputs_may_be_lazy() -> None:
    results = await BatchAgent.run(
        task="{n}", inputs=iter(ROWS), models=["a", "b"], backend=ScriptedBackend(script), progress=False, limit=2
    )
    assert [(each.index, each.model) for each in results] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": "a"}, "keep one of them"),
        ({"models": []}, "must be a list of model names"),
        ({"models": "a"}, "must be a list of model names"),
        ({"models": ["a", "a"]}, "different models"),
        ({"models": {"a": 1}}, "must be a list of model names"),
    ],
)
async def test_models_that_cannot_be_compared_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        await run(**{"models": ["a", "b"], **options})


async def test_any_number_of_results_can_be_scored(tmp_path: Path) -> None:
    for count in (0, 1, 1000):
        results = Results(AgentResult(n, str(n), {"label": "a"}, "a") for n in range(count))
        scored = await BatchAgent.score(results, exact("label"))
        assert [each.scores for each in scored] == [{"exact": 1.0}] * count
    await run(checkpoint_dir=tmp_path, inputs=ROWS[:1])
    assert len(await BatchAgent.score(tmp_path, exact("label"))) == 1
    empty = await run(inputs=[], score=[exact("label"), judge(RUBRIC)])
    assert (empty.metrics, len(empty.judges["judge"])) == ({}, 0)


async def test_leaving_a_run_of_several_models_ends_all_of_them() -> None:
    server = ScriptedBackend(script, seconds=0.001)
    async with BatchAgent.stream(
        task="{n}", inputs=ROWS * 50, models=["a", "b"], backend=server, progress=False
    ) as stream:
        async for _ in stream:
            break
    assert server.in_flight == 0
    assert len(server.requests) < 600


async def test_a_model_that_is_not_there_ends_the_run_with_one_error(tmp_path: Path) -> None:
    models = {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:1"}
    with pytest.raises(BackendError, match="Stage 'a'"):
        await BatchAgent.run(task="{n}", inputs=ROWS, models=models, checkpoint_dir=tmp_path, progress=False)


async def test_a_judge_that_cannot_be_reached_leaves_the_answers_in_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="The answers are complete, but a judge failed") as stopped:
        await run(score=judge(RUBRIC, backend="http://127.0.0.1:1", model="m"), checkpoint_dir=tmp_path)
    assert [each.output for each in stopped.value.results] == ["even"] * 6
    server = ScriptedBackend(script)
    results = await run(server, score=judge(RUBRIC, backend=server), checkpoint_dir=tmp_path)
    assert [text_of(request).startswith("Grade") for request in server.requests] == [True] * 6
    assert results.metrics["judge"].scored == 6


async def test_a_forecast_counts_samples_and_refuses_several_models() -> None:
    options: dict[str, Any] = {"task": "{n}", "inputs": ROWS, "backend": ScriptedBackend(script)}
    one = await BatchAgent.plan(**options)
    three = await BatchAgent.plan(**options, samples=3, key="n")
    assert (one.agents, three.agents) == (6, 18)
    canary = await BatchAgent.plan(**options, samples=3, canary=2)
    assert canary.agents == 18
    with pytest.raises(SpecError, match="one model"):
        await BatchAgent.plan(**options, models=["a", "b"])


async def test_the_prompts_of_several_models_are_those_of_the_first() -> None:
    options: dict[str, Any] = {"task": "{n}", "inputs": ROWS, "backend": ScriptedBackend(script)}
    assert (await BatchAgent.lint(**options, models=["a", "b"])).agents == 6
