"""Broken JSON is mended where it is JSON, and prose stays prose."""

from typing import Any

import pytest

from batch_agent.agent.answer_extraction import repaired_values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{'a': 'b'}", {"a": "b"}),
        ('{"a": "He said "hi" to me", "b": 2}', {"a": 'He said "hi" to me', "b": 2}),
        ("{a: 1, b_c: 2}", {"a": 1, "b_c": 2}),
        ("{'a': True, 'b': False, 'c': None}", {"a": True, "b": False, "c": None}),
        ('{"a": 1, // one\n "b": 2}', {"a": 1, "b": 2}),
        ('{"url": "http://x//y", "c": "#1",}', {"url": "http://x//y", "c": "#1"}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1, 2]}}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ("Sure: {'a': 1,} as you asked", {"a": 1}),
    ],
)
def test_invalid_json_is_repaired_to_the_intended_value(text: str, value: Any) -> None:
    assert repaired_values(text)[-1] == value


def test_a_list_is_one_value_and_its_elements_are_candidates_too() -> None:
    assert repaired_values("[{'a': 1}, {'a': 2},]") == [{"a": 1}, {"a": 2}, [{"a": 1}, {"a": 2}]]


@pytest.mark.parametrize(
    "text",
    ["", "no brackets", "{braces} around a word", "[Note] I cannot do this.", "the set {1, 2}", "{", "{:}", "[,]"],
)
def test_prose_is_not_turned_into_an_answer(text: str) -> None:
    assert repaired_values(text) == []


@pytest.mark.timeout(30)
@pytest.mark.parametrize("unit", ["{", "[", "[1,", '{"a":', "the {x} is [y], ", '{"x ', "{a", "[\\", '\\"word'])
def test_repairing_any_text_takes_bounded_time(unit: str) -> None:
    repaired_values('{"a": ' + unit * (100_000 // len(unit)))
