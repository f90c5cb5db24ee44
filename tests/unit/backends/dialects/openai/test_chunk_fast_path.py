"""Chunks of which only the text is read."""

import orjson
import pytest

from batch_agent.backends.dialects.openai.chunk_fast_path import ChunkFastPath, ChunkText
from batch_agent.core.requests import ReasoningDelta, TextDelta

SHAPE = b'{"model":"m","delta":{"content":%b},"end":null}'


class Reading:
    """Reads chunks like `SHAPE`, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, data: bytes) -> ChunkText | None:
        self.count += 1
        try:
            delta = orjson.loads(data)["delta"]
        except orjson.JSONDecodeError:
            return None
        for kind, name in ((TextDelta, "content"), (ReasoningDelta, "thought")):
            if isinstance(delta.get(name), str) and delta[name]:
                return kind, delta[name]
        return None


def learned(*chunks: bytes) -> ChunkFastPath:
    repeats = ChunkFastPath(Reading())
    for data in chunks:
        repeats.learn(data)
    return repeats


def test_no_chunk_shape_is_known_at_first() -> None:
    assert learned().text(SHAPE % b'"a"') == ""
    assert learned().text(b"") == ""


@pytest.mark.parametrize("text", ["b", ' "quoted" \\ \n', "\u00e9\U0001f600", "content", "m", '"},"end":null}'])
def test_the_text_of_a_chunk_of_the_known_shape_is_read(text: str) -> None:
    repeats = learned(SHAPE % b'"a"')
    assert repeats.text(SHAPE % orjson.dumps(text)) == text
    assert repeats.kind is TextDelta


@pytest.mark.parametrize(
    "value", [b"null", b'["b"]', b'""', b'"b","end":"x"', b'"b', b'b"', b"", b'"\\ud83d"', b'"\xff"']
)
def test_a_chunk_without_a_string_at_the_text_position_is_fully_parsed(value: bytes) -> None:
    assert learned(SHAPE % b'"a"').text(SHAPE % value) == ""


def test_a_chunk_of_another_shape_is_fully_parsed() -> None:
    repeats, other = learned(SHAPE % b'"a"'), SHAPE % b'"b"'
    assert repeats.text(other.replace(b'"m"', b'"n"')) == ""
    assert repeats.text(other.replace(b"null", b"true")) == ""


def test_no_shape_is_learned_where_the_text_position_is_ambiguous() -> None:
    of_the_model = learned(SHAPE % b'"m"')
    assert of_the_model.text((SHAPE % b'"m"').replace(b'"model":"m"', b'"model":"n"')) == ""
    of_the_key = learned(SHAPE % b'"content"')
    assert of_the_key.text((SHAPE % b'"content"').replace(b'"content":', b'"thought":')) == ""
    between_both = learned(SHAPE % b'":"')
    assert between_both.text((SHAPE % b'":"').replace(b'content":":', b'content"b":')) == ""
    written_otherwise = learned(SHAPE % b'"\\u0061"')
    assert written_otherwise.text(SHAPE % b'"b"') == ""


def test_the_last_learned_shape_is_used() -> None:
    thought = b'{"delta":{"thought":%b}}'
    repeats = learned(SHAPE % b'"a"', thought % b'"a"')
    assert repeats.text(thought % b'"b"') == "b"
    assert repeats.kind is ReasoningDelta
    assert repeats.text(SHAPE % b'"b"') == ""


@pytest.mark.parametrize("chunk", [b'{"number":%d,"delta":{"content":"a"}}', b'{"number":%d,"delta":{}}'])
def test_learning_stops_when_all_chunks_differ(chunk: bytes) -> None:
    reading = Reading()
    repeats = ChunkFastPath(reading)
    for number in range(100):
        repeats.learn(chunk % number)
    assert 0 < reading.count < 30
