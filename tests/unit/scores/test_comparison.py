"""RunComparison of two runs."""

import json
from typing import Any

import pytest

from batch_agent import Results, SpecError, exact
from batch_agent.core.errors import ErrorKind
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult, Timing


def run(answers: list[Any], *, cost: float | None = None, samples: int = 1, keys: str = "k") -> Results[Any]:
    """Answers to inputs that all want "a"."""
    return Results(
        AgentResult(
            at // samples,
            f"{keys}{at // samples}",
            {"n": at // samples, "label": "a"},
            answer,
            error=None if answer is not None else AgentError(ErrorKind.SERVER, "lost"),
            usage=Usage(10, 0, 2),
            cost=cost,
            timing=Timing(total=2.0),
            sample=at % samples if samples > 1 else None,
        )
        for at, answer in enumerate(answers)
    ).scored(exact("label"))


def test_agreement_differences_and_changed_inputs() -> None:
    found = run(["a", "b", "b", "a"], cost=0.01).compare(run(["a", "a", "c", "a"], cost=0.03))
    assert (found.shared, found.agreement) == (4, 0.5)
    [difference] = found.scores
    assert (difference.before, difference.after, difference.difference) == (0.5, 0.75, 0.25)
    assert (difference.won, difference.lost, difference.p_value, difference.test) == (1, 0, 1.0, "mcnemar")
    assert [(row.index, row.before, row.after) for row in found.changed] == [(1, ("b",), ("a",)), (2, ("b",), ("c",))]
    assert found.changed[0].scores == {"exact": (0.0, 1.0)}
    assert (found.before.cost, found.after.cost, found.after.seconds) == (0.04, 0.12, 2.0)
    json.dumps(found.as_json())
    assert "1 (k1): b -> a, exact 0 -> 1" in str(found)
    assert "exact: 0.500 -> 0.750, +0.250" in str(found)


def test_failed_agents_are_unscored_and_count_as_changed() -> None:
    found = run(["a", None]).compare(run(["a", "a"]))
    assert (found.agreement, found.before.failed, found.scores[0].inputs) == (1.0, 1, 1)
    assert [(row.before, row.after) for row in found.changed] == [((), ("a",))]


def test_inputs_are_matched_by_key_or_else_by_their_value() -> None:
    assert run(["a", "b"]).compare(run(["a", "b", "a"])).only_after == 1
    other = run(["a", "b"], keys="other")
    other.reverse()
    found = run(["a", "b"]).compare(Results(other))
    assert (found.shared, found.agreement) == (2, 1.0)


def test_samples_agree_as_far_as_pairs_of_them_do() -> None:
    found = run(["a", "a", "b", "b"], samples=2).compare(run(["a", "b", "b", "b"], samples=2))
    assert (found.shared, found.agreement) == (2, 0.75)
    assert found.scores[0].test == "t"


def test_more_samples_of_the_same_answers_are_no_change() -> None:
    found = run(["a", "a", "a", "b", "b", "b", "b", "a", "b"], samples=3).compare(run(["a", "b", "b"]))
    assert [(row.index, row.before, row.after) for row in found.changed] == [(2, ("a", "b", "b"), ("b",))]


def test_a_field_of_the_answers_is_compared() -> None:
    before, after = run([{"label": "a", "why": "x"}]), run([{"label": "a", "why": "y"}])
    assert before.compare(after).agreement == 0.0
    assert before.compare(after, "label").agreement == 1.0
    with pytest.raises(SpecError, match="No answer has a field 'nothing'"):
        before.compare(after, "nothing")


def test_runs_without_a_common_input_cannot_be_compared() -> None:
    other = Results([AgentResult(0, "z", {"n": 99}, "a")])
    with pytest.raises(SpecError, match="no input in common"):
        run(["a"]).compare(other)


def test_empty_runs_compare_as_nothing() -> None:
    found = Results[Any]().compare(Results[Any]())
    assert (found.shared, found.agreement, found.scores) == (0, None, ())
    assert "0 inputs in both" in str(found)
