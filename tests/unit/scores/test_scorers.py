"""Scorers: what an answer is worth."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import SpecError, contains, exact, json_fields, numeric, regex
from batch_agent.core.errors import ErrorKind
from batch_agent.core.results import AgentError, AgentResult
from batch_agent.scores.score_book import ScoreBook
from batch_agent.scores.scorer import NoSuchField, parse_scorer, scorers_of


class Label(BaseModel):
    label: str
    total: float = 0.0


@dataclass
class Pair:
    label: str


@pytest.mark.parametrize(
    ("output", "row", "score"),
    [
        ("yes", {"label": "yes"}, True),
        (" Yes\n", {"label": "yes"}, True),
        ("no", {"label": "yes"}, False),
        (Label(label="yes"), {"label": "Yes"}, True),
        (Pair("no"), {"label": "yes"}, False),
        ({"label": "yes", "why": "x"}, {"label": "yes"}, True),
        ("42", {"label": 42}, True),
        ({"label": 42.0}, {"label": "42"}, True),
        ({"label": True}, {"label": "true"}, True),
        ({"label": ["a"]}, {"label": ["a"]}, True),
        (None, {"label": None}, True),
    ],
)
def test_exact_compares_the_field_of_the_same_name_or_the_whole_answer(output: Any, row: Any, score: bool) -> None:
    assert exact("label")(output, row) is score


def test_exact_compares_another_field_of_the_answer_and_nested_ones() -> None:
    assert exact("gold.label", "result.label")({"result": {"label": "a"}}, {"gold": {"label": "a"}}) is True


def test_a_missing_field_cannot_be_scored() -> None:
    with pytest.raises(NoSuchField):
        exact("label")("yes", {"other": 1})
    with pytest.raises(NoSuchField):
        exact("label", "of")({"label": "yes"}, {"label": "yes"})


@pytest.mark.parametrize(
    ("output", "wanted", "score"),
    [("Paris is nice", "paris", True), ("Rome", "paris", False), ("a, b", ["A", "b"], True), ("a", ["a", "b"], False)],
)
def test_contains_looks_for_the_text_or_all_texts(output: str, wanted: Any, score: bool) -> None:
    assert contains("city")(output, {"city": wanted}) is score


@pytest.mark.parametrize(
    ("output", "wanted", "score"),
    [("so it is 1,234.5", 1234.5, True), ("2 + 2 = 4", "4", True), ("none", 4, False), (5, 4, False), ("x", "y", None),
     ("-3", -3, True), ("1e3", 1000, True)],
)  # fmt: skip
def test_numeric_reads_the_last_number(output: Any, wanted: Any, score: bool | None) -> None:
    assert numeric("total")(output, {"total": wanted}) is score


def test_numeric_has_a_tolerance() -> None:
    assert numeric("total", tolerance=0.5)("10.4", {"total": 10}) is True
    assert numeric("total", tolerance=0.5)("10.6", {"total": 10}) is False


def test_regex_is_searched_in_the_answer_or_a_field() -> None:
    assert regex("^yes")("yes, it is", {}) is True
    assert regex("b+", "label")(Label(label="abb"), {}) is True
    with pytest.raises(SpecError, match="not a regular expression"):
        regex("(")


def test_json_fields_is_the_share_of_equal_fields() -> None:
    row = {"gold": {"a": 1, "b": "x", "c": None}}
    assert json_fields("gold")({"a": 1, "b": "X", "c": 2}, row) == pytest.approx(2 / 3)
    assert json_fields("gold", "a", "b")('{"a": 1, "b": "y"}', row) == 0.5
    assert json_fields("gold")("no JSON", row) == 0.0
    assert json_fields("gold")({"a": 1}, {"gold": {}}) is None


def test_scorers_are_parsed_from_their_names() -> None:
    assert parse_scorer("exact:label")({"label": "a"}, {"label": "a"}) is True
    assert parse_scorer("right=exact:gold:label").name == "right"
    assert parse_scorer("regex:a:b")("a:b", {}) is True
    assert parse_scorer("json_fields:gold:a")({"a": 1}, {"gold": {"a": 1, "b": 2}}) == 1.0
    for wrong in ("exact", "exact:", "nothing:x", "exact:a:b:c", "judge:"):
        with pytest.raises(SpecError):
            parse_scorer(wrong)


def test_functions_are_scorers_and_names_must_differ() -> None:
    def long(output: Any, _row: Any) -> int:
        return len(output)

    assert [each.name for each in scorers_of([long, "exact:label"])] == ["long", "exact"]
    with pytest.raises(SpecError, match="two scorers with the name 'exact'"):
        scorers_of(["exact:a", exact("b")])


def test_a_scorer_that_raises_leaves_answers_unscored_and_is_reported_once() -> None:
    def broken(_output: Any, _row: Any) -> float:
        raise ZeroDivisionError("no")

    notices: list[str] = []
    book = ScoreBook(scorers_of([broken, exact("label"), lambda _output, _row: float("nan")]), notices.append)
    first = book.add(AgentResult(0, "a", {"label": "x"}, "x"))
    second = book.add(AgentResult(1, "b", {"label": "x"}, error=AgentError(ErrorKind.SERVER, "lost")))
    third = book.add(AgentResult(2, "c", {"other": "x"}, "x"))
    assert first.scores == {"broken": None, "exact": 1.0, "lambda": None}
    assert second.scores == {"broken": None, "exact": None, "lambda": None}
    assert third.scores["exact"] is None
    assert notices == [
        "Scorer 'broken' failed for input 0: ZeroDivisionError: no.",
        "Scorer 'exact' failed for input 2: there is no field 'label'.",
    ]
