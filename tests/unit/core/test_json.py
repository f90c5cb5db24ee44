"""JSON that orjson refuses, and JSON that it does not."""

from typing import Any

import orjson
import pytest

from batch_agent.core.json import dumps, dumps_any, dumps_ascii, loads, replace_surrogates

LONG = 2**70


def test_plain_data_is_compact_whichever_library_writes_it() -> None:
    assert dumps({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
    assert dumps({"a": [LONG, "é"]}) == f'{{"a":[{LONG},"é"]}}'.encode()
    assert dumps_any({"a": [LONG, "é"]}, str) == f'{{"a":[{LONG},"é"]}}'


def test_a_lone_surrogate_is_written_as_each_reader_can_take_it() -> None:
    assert dumps("a\ud800b") == b'"a?b"'
    assert dumps_ascii("a\ud800b") == r'"a\ud800b"'
    assert replace_surrogates(dumps_any("a\ud800b", str)) == '"a\ufffdb"'


@pytest.mark.parametrize("large", [0, LONG])
def test_types_that_json_does_not_have_go_through_the_default(large: int) -> None:
    assert dumps_any({1: {3}, "n": large}, sorted) == f'{{"1":[3],"n":{large}}}'


def test_other_values_are_refused_without_a_default() -> None:
    with pytest.raises(TypeError):
        dumps(object())


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (rb'"cut \ud83d"', "cut \ufffd"),
        (rb'"\ud83d\ude00 \ud83d"', "\U0001f600 \ufffd"),
        ('"cut \ud83d"', "cut \ufffd"),
    ],
)
def test_a_parsed_value_can_be_encoded(data: bytes | str, value: Any) -> None:
    assert loads(data) == value
    orjson.dumps(loads(data))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"NaN", b"[-Infinity]", b"[1e999]"])
def test_invalid_json_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError):
        loads(data)


def test_constants_and_floats_can_be_replaced() -> None:
    assert loads("[NaN, 1.5]", parse_constant=lambda _: None, parse_float=lambda text: f"<{text}>") == [None, "<1.5>"]


def test_surrogate_pairs_in_json_stay_whole_characters() -> None:
    assert replace_surrogates("\U0001f600 é") == "\U0001f600 é"
