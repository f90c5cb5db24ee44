"""A stream says what its chunks say one by one, whatever they have in common."""

import json
from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from batch_agent import BackendError
from batch_agent.backends.dialects.openai.decoder import OpenAIStreamDecoder
from batch_agent.core.requests import ReasoningDelta, TextDelta

Write = Callable[[Any], bytes]

writers: st.SearchStrategy[Write] = st.sampled_from(
    [
        orjson.dumps,
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False).encode(),
    ]
)
texts = st.text(max_size=6) | st.text(alphabet='":,{}[]\\ab', max_size=4) | st.sampled_from(["content", "m", "?"])
deltas = st.builds(lambda name, text: {name: text}, st.sampled_from(["content", "content", "reasoning"]), texts)
few = st.sampled_from(["a", "b", "content"])
around = st.fixed_dictionaries({}, optional={"model": few, "role": few, "logprobs": st.just({"content": "a"})})
alike = st.builds(lambda model, text: {"model": model, "choices": [{"delta": {"content": text}}]}, few, few)


def said(events: list[bytes], *, apart: bool) -> list[tuple[str, str]]:
    """Each letter, with what kind of delta it came in; until the first event that cannot be read."""
    found: list[tuple[str, str]] = []
    decoder = OpenAIStreamDecoder()
    try:
        for event in events:
            decoder = OpenAIStreamDecoder() if apart else decoder
            for delta in decoder.feed(b"data: %b\n\n" % event):
                assert isinstance(delta, TextDelta | ReasoningDelta)
                found += [(type(delta).__name__, letter) for letter in delta.text]
    except BackendError as error:
        found.append(("error", str(error)))
    return found


@given(st.lists(deltas, max_size=12), around, writers)
def test_the_fast_path_gives_the_same_text_as_the_chunks(
    told: list[dict[str, str]], same: dict[str, Any], write: Write
) -> None:
    events = [write({**same, "choices": [{"delta": {**same, **delta}, **same}]}) for delta in told]
    assert said(events, apart=False) == said(events, apart=True)


@given(st.lists(alike, max_size=8))
def test_other_fields_of_a_chunk_are_not_taken_for_its_text(chunks: list[Any]) -> None:
    events = [orjson.dumps(chunk) for chunk in chunks]
    assert said(events, apart=False) == said(events, apart=True)


odd_values = st.lists(
    st.sampled_from(
        [b'"', b"\\", b",", b":", b"a", b"{", b"}", b"[", b"]", b'"content"', b'"refusal"', b"null", b"\xff"]
    ),
    max_size=8,
).map(b"".join)


@given(st.lists(texts.filter(bool).map(orjson.dumps) | odd_values, max_size=10))
def test_any_value_at_the_text_position_is_read_as_by_the_full_decoder(values: list[bytes]) -> None:
    events = [b'{"choices":[{"delta":{"content":%b},"finish_reason":null}]}' % value for value in (b'"a"', *values)]
    assert said(events, apart=False) == said(events, apart=True)
