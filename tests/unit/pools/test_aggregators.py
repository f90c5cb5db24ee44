"""One result of many responses."""

from math import isnan

import pytest
from tests.support.fake_pool import cut, failed

from batch_agent.core.errors import ErrorKind, SpecError
from batch_agent.pools.aggregators import (
    best_of,
    concat,
    failure_report,
    majority_vote,
    statistics,
    structured_merge,
    top_k,
)
from batch_agent.pools.response import Response


def said(*texts: str) -> list[Response]:
    return [Response(index, text, agent_index=index % 2) for index, text in enumerate(texts)]


def length(response: Response) -> float:
    return len(response.text)


def test_the_text_with_most_votes_wins_whatever_its_case_and_the_space_around_it() -> None:
    assert majority_vote(said("Yes", " no", "YES\n", "maybe")) == ("yes", 0.5)


def test_of_texts_with_as_many_votes_the_first_wins() -> None:
    assert majority_vote(said("b", "a", "a", "b", "c")) == ("b", 0.4)
    assert majority_vote(said("a", "b", "b", "a", "c")) == ("a", 0.4)


def test_failed_responses_have_no_vote() -> None:
    assert majority_vote([*said("yes"), failed(), failed()]) == ("yes", 1.0)


def test_an_answer_that_was_cut_off_votes_only_if_failures_are_included() -> None:
    responses = [*said("no"), cut("yes"), cut("yes")]
    assert majority_vote(responses) == ("no", 1.0)
    assert majority_vote(responses, include_failures=True) == ("yes", 2 / 3)


def test_an_included_failure_without_text_votes_for_the_empty_string() -> None:
    assert majority_vote([*said("no"), failed(), failed()], include_failures=True) == ("", 2 / 3)


@pytest.mark.parametrize("responses", [[], [failed()]])
def test_without_votes_nothing_wins(responses: list[Response]) -> None:
    assert majority_vote(responses) == ("", 0.0)


def test_texts_are_joined_in_their_order() -> None:
    responses = [*said("b", "a"), cut("c")]
    assert concat(responses) == "b\na"
    assert concat(responses, separator=" | ", include_failures=True) == "b | a | c"
    assert concat([]) == ""


def test_the_response_with_the_highest_score_is_the_best_and_of_several_the_first() -> None:
    responses = said("a", "bcd", "efg", "hi")
    assert best_of(responses, length) is responses[1]


def test_a_failure_is_the_best_only_if_failures_are_included() -> None:
    responses = [*said("a"), cut("longer")]
    assert best_of(responses, length) is responses[0]
    assert best_of(responses, length, include_failures=True) is responses[1]


def test_the_best_of_failures_is_a_failure_that_names_them() -> None:
    best = best_of([failed("no route", ErrorKind.UNAVAILABLE), failed("gone")], length)
    assert not best.success
    assert best.kind is ErrorKind.UNAVAILABLE
    assert best.error == "best_of: 2 of 2 have no answer: response 0 (no route), response 1 (gone)."


def test_the_best_of_nothing_is_a_failure() -> None:
    assert best_of([], length).error == "best_of: there are no responses to choose from."


def test_the_best_come_first_and_equals_in_their_order() -> None:
    responses = said("a", "bb", "ccc", "dd")
    assert top_k(responses, 3, length) == [responses[2], responses[1], responses[3]]
    assert top_k(responses, 9, length)[-1] is responses[0]
    assert top_k(responses, 0, length) == []
    assert top_k([*responses, cut("eeee")], 1, length, include_failures=True)[0].text == "eeee"


def test_a_negative_k_is_rejected() -> None:
    with pytest.raises(SpecError, match="k must be >= 0; got -1"):
        top_k(said("a"), -1, length)


def test_json_arrays_are_joined_and_other_values_stay_as_they_are() -> None:
    assert structured_merge(said("[1, [2]]", '{"a": 3}', "null", "[]")) == ([1, [2], {"a": 3}, None], [])


def test_invalid_json_is_reported_and_the_others_are_merged() -> None:
    merged, errors = structured_merge([*said("[1]", "sorry", "[2]"), failed()])
    assert merged == [1, 2]
    assert errors == [{"index": 1, "agent_index": 1, "error": "Expecting value: line 1 column 1 (char 0)"}]


@pytest.mark.parametrize("text", ["", "9" * 5000, "[" * 100_000], ids=["empty", "too many digits", "too deep"])
def test_no_text_can_break_a_merge(text: str) -> None:
    merged, errors = structured_merge(said(text, "[2]"))
    assert merged == [2]
    assert [error["index"] for error in errors] == [0]


def test_an_included_failure_without_text_is_invalid_json() -> None:
    assert structured_merge([failed(), cut("[1]")]) == ([], [])
    merged, errors = structured_merge([failed(), cut("[1]")], include_failures=True)
    assert merged == [1]
    assert len(errors) == 1


def test_statistics_are_those_of_a_sample() -> None:
    assert statistics(said("1", " 2\n", "3", "6")) == {
        "mean": 3.0,
        "std": pytest.approx(2.1602469),
        "median": 2.5,
        "min": 1.0,
        "max": 6.0,
        "count": 4,
        "skipped": 0,
    }


def test_one_number_has_no_deviation() -> None:
    assert statistics(said("5"))["std"] == 0.0


def test_texts_that_are_not_numbers_are_skipped_and_counted() -> None:
    found = statistics([*said("about 7", "4", "nan", "inf", "-1e999", ""), failed()])
    assert (found["mean"], found["count"], found["skipped"]) == (4.0, 1, 5)
    assert statistics([*said("4"), cut("8")], include_failures=True)["mean"] == 6.0


@pytest.mark.parametrize("responses", [[], [failed()], said("none", "nothing")])
def test_statistics_without_numbers_are_nan(responses: list[Response]) -> None:
    found = statistics(responses)
    assert all(isnan(found[name]) for name in ("mean", "std", "median", "min", "max"))
    assert found["count"] == 0


def test_numbers_can_be_extracted_and_may_be_missing() -> None:
    def last_word(response: Response) -> float:
        return int(response.text.split()[-1])

    found = statistics(said("it is 4", "it is 6", "I do not know", "it is 1" + "0" * 400), last_word)
    assert (found["mean"], found["count"], found["skipped"]) == (5.0, 2, 2)


def test_other_exceptions_of_extract_fn_are_propagated() -> None:
    def broken(response: Response) -> float:
        raise KeyError(response.text)

    with pytest.raises(KeyError):
        statistics(said("1"), broken)


def test_a_report_counts_and_names_failures() -> None:
    responses = [*said("a", "b"), Response(2, error="gone", agent_index=0)]
    assert failure_report(responses) == {
        "total": 3,
        "success_count": 2,
        "failure_count": 1,
        "failures": [{"index": 2, "agent_index": 0, "error": "gone"}],
    }
    assert failure_report([])["total"] == 0
