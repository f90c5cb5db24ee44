"""JSON as models write it is read where its meaning is certain, and not guessed at where it is not."""

import time
from typing import Any

import pytest

from batch_agent.agent.lenient import lenient_values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("[1, 2, ]", [1, 2]),
        ("{'a': 'b'}", {"a": "b"}),
        ("{'a': 'it\\'s'}", {"a": "it's"}),
        ("{'title': 'Don't stop', 'x': 1}", {"title": "Don't stop", "x": 1}),
        ("""{'a': 'say "hi"'}""", {"a": 'say "hi"'}),
        ('{"a": "He said "hi" to me", "b": 2}', {"a": 'He said "hi" to me', "b": 2}),
        ("{a: 1, b_c: 2, d-e: 3}", {"a": 1, "b_c": 2, "d-e": 3}),
        ("{'a': True, 'b': False, 'c': None}", {"a": True, "b": False, "c": None}),
        ('{"a": 1, // one\n "b": 2 # two\n, /* three */ "c": 3}', {"a": 1, "b": 2, "c": 3}),
        ('{"a": "x" // why\n}', {"a": "x"}),
        ('{"url": "http://x//y", "c": "#1 /* no */"}', {"url": "http://x//y", "c": "#1 /* no */"}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        (r'{"tex": "\alpha \d \u12", "ok": "\n\\d\u0041"}', {"tex": r"\alpha \d \u12", "ok": "\n\\dA"}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1, 2]}}),
        ('{"a": [1, 2,', {"a": [1, 2]}),
        ('{"a": -1.5e3, "b": NaN}', None),
        ("{}", {}),
        ("[]", []),
    ],
)
def test_what_was_meant_is_read(text: str, value: Any) -> None:
    found = lenient_values(text)
    if value is None:
        assert found[0]["a"] == -1500.0
        assert found[0]["b"] != found[0]["b"]
    else:
        assert found == [value]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no brackets",
        "{braces} around a word",
        "[Note] I cannot do this.",
        "the set {1, 2}",
        '{"a": 1 "b": 2}',
        '{"a" 1}',
        '{"a": }',
        '{"a": one}',
        '{"a": "no end',
        "{'a': 'no end",
        '{"a": [1, 2}',
        '{"a": 2024-01-01}',
        "{",
        "{:}",
        "[,]",
        '{"a": /* no end',
        "{a: b}",
    ],
)
def test_nothing_is_made_up(text: str) -> None:
    assert [value for value in lenient_values(text) if value] == []


def test_several_values_come_in_order_and_prose_between_them_is_no_value() -> None:
    assert lenient_values("First {'a': 1,} then [note] and {b: 2} or [3,]") == [{"a": 1}, {"b": 2}, [3]]


def test_a_part_of_a_broken_value_is_no_value() -> None:
    assert lenient_values('{"a": {"b": 1}, oops, "c": {"d": 2}}') == []
    assert lenient_values('{"a": {"b": 1} oops') == []
    assert lenient_values('{"a": oops, "b": "}", "c": {"d": 2}} but {"e": 3,}') == [{"e": 3}]


UGLY = {
    "open braces": "{",
    "open brackets": "[",
    "open lists": "[1,",
    "open objects": '{"a":',
    "prose": "the {x} is [y], ",
    "code": 'if (a) { b["x"] = "y"; }\n',
    "comments": "{/*",
    "strings without an end": '{"x ',
    "stray quotes": 'word and "word" ',
    "escapes": '\\"word',
    "bare keys": "{a",
    "backslashes": "[\\",
}


@pytest.mark.parametrize("unit", UGLY.values(), ids=UGLY.keys())
def test_the_time_grows_with_the_text_and_not_faster(unit: str) -> None:
    started = time.perf_counter()
    lenient_values('{"a": ' + unit * (100_000 // len(unit)))
    assert time.perf_counter() - started < 3.0
