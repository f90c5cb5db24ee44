"""Many answers in one stream, for any chunking, any interleaving and any nonsense."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.corrupted_json import pieces

from batch_agent import BackendError
from batch_agent.backends.dialects.completions.decoder import (
    BatchStreamDecoder,
    PromptAnswer,
    PromptDelta,
    PromptFinished,
    decode_batch_reply,
)
from batch_agent.core.requests import FinishReason, Usage

cuts = st.lists(st.integers(0, 6000), max_size=12)


@dataclass(frozen=True)
class Told:
    """What a server says to one prompt."""

    pieces: list[str]
    finish: FinishReason
    read: int

    def choices(self, index: int) -> list[dict[str, Any]]:
        said = [{"index": index, "text": text, "finish_reason": None} for text in self.pieces]
        return [*said, {"index": index, "text": "", "finish_reason": self.finish}]

    def usage(self, number: int) -> dict[str, int]:
        return {"prompt_tokens": self.read, "completion_tokens": number + 1}

    @property
    def text(self) -> str:
        return "".join(self.pieces)


finishes: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "length"])
told = st.builds(Told, st.lists(st.text(max_size=4), max_size=5), finishes, st.integers(0, 99))


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[Told], list[bytes]]:
    """Answers, and the events of a stream that mixes them: in order for each prompt, in any order between them."""
    answers = draw(st.lists(told, min_size=1, max_size=5))
    turns = [index for index, answer in enumerate(answers) for _ in range(len(answer.pieces) + 1)]
    at = [0] * len(answers)
    events = []
    for index in draw(st.permutations(turns)):
        choice = answers[index].choices(index)[at[index]]
        events.append(orjson.dumps({"choices": [choice], "usage": answers[index].usage(at[index])}))
        at[index] += 1
    return answers, events


@dataclass
class Heard:
    """Everything that came out of a stream."""

    events: list[PromptDelta | PromptFinished]
    failure: str = ""

    def text(self, index: int) -> str:
        return "".join(event.text for event in self.events if isinstance(event, PromptDelta) and event.index == index)

    def done(self) -> list[PromptFinished]:
        return [event for event in self.events if isinstance(event, PromptFinished)]


def heard(count: int, chunks: Iterable[bytes]) -> Heard:
    decoder, events, failure = BatchStreamDecoder(count), list[PromptDelta | PromptFinished](), ""
    try:
        for chunk in chunks:
            for event in decoder.feed(chunk):
                events.append(event)
        if not decoder.ended:
            decoder.close()
    except BackendError as error:
        failure = f"{error.kind}: {error}"
    return Heard(events, failure)


def wire(events: Iterable[bytes]) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in events)


@given(mixed(), cuts)
def test_every_prompt_gets_its_own_answer_for_any_interleaving_and_chunking(
    stream: tuple[list[Told], list[bytes]], at: list[int]
) -> None:
    answers, events = stream
    found = heard(len(answers), pieces(wire([*events, b"[DONE]"]), at))
    assert [found.text(index) for index in range(len(answers))] == [answer.text for answer in answers]
    assert {done.index: done for done in found.done()} == {
        index: PromptFinished(index, answer.finish, Usage(answer.read, 0, len(answer.pieces) + 1))
        for index, answer in enumerate(answers)
    }
    assert (len(found.done()), found.failure) == (len(answers), "")


@given(mixed(), st.integers(0, 6000), cuts)
def test_a_stream_broken_anywhere_fails_unless_all_prompts_were_finished(
    stream: tuple[list[Told], list[bytes]], end: int, at: list[int]
) -> None:
    answers, events = stream
    found = heard(len(answers), pieces(wire(events)[:end], at))
    done = {event.index for event in found.done()}
    assert bool(found.failure) == (len(done) < len(answers))
    for index, answer in enumerate(answers):
        assert answer.text.startswith(found.text(index))
        assert index not in done or found.text(index) == answer.text


odd_events = st.sampled_from(
    [
        b"",
        b"[DONE]",
        b"{",
        b"[]",
        b'{"error": {"message": "boom", "code": 500}}',
        b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}',
        b'{"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}',
        b'{"choices": [{"index": 0, "text": "more"}]}',
        b'{"choices": [{"index": 9, "text": "whose?"}]}',
    ]
)


@given(mixed(), st.lists(st.tuples(st.integers(0, 30), odd_events), max_size=3), cuts)
def test_any_server_stream_is_decoded_the_same_for_any_chunking(
    stream: tuple[list[Told], list[bytes]], odd: list[tuple[int, bytes]], at: list[int]
) -> None:
    answers, events = stream
    for place, event in odd:
        events.insert(place, event)
    data = wire(events)
    once = heard(len(answers), [data])
    assert heard(len(answers), pieces(data, at)) == once
    assert heard(len(answers), (data[i : i + 1] for i in range(len(data)))) == once
    done = [event.index for event in once.done()]
    assert len(set(done)) == len(done), "an answer was done twice"
    assert once.failure or len(done) == len(answers)


@given(st.lists(told, min_size=1, max_size=5).flatmap(lambda some: st.permutations(list(enumerate(some)))), st.data())
def test_a_plain_answer_is_decoded_in_any_order_and_missing_prompts_are_reported(
    shuffled: list[tuple[int, Told]], data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.sampled_from(shuffled), unique_by=lambda pair: pair[0]))
    choices = [{"index": index, "text": answer.text, "finish_reason": answer.finish} for index, answer in kept]
    whole = decode_batch_reply(orjson.dumps({"choices": choices}), len(shuffled))
    expected = [PromptAnswer(index, answer.text, answer.finish) for index, answer in kept]
    assert list(whole.answers) == sorted(expected, key=lambda answer: answer.index)
    assert sorted([*whole.missing, *(answer.index for answer in expected)]) == list(range(len(shuffled)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PARTS = ("index", "text", "message", "finish_reason", "choices", "usage", "choice")


@given(st.sampled_from(PARTS), json_values)
def test_any_corruption_of_a_response_is_decoded_or_is_a_backend_error(part: str, nonsense: Any) -> None:
    choice: Any = {"index": 1, "text": "a", "finish_reason": "stop"}
    if part in ("index", "text", "message", "finish_reason"):
        choice[part] = nonsense
    body: dict[str, Any] = {"choices": [nonsense if part == "choice" else choice]}
    if part in ("choices", "usage"):
        body[part] = nonsense
    found = heard(2, [wire([orjson.dumps(body), b"[DONE]"])])
    assert found.failure  # prompt 0 never has an answer
    try:
        whole = decode_batch_reply(orjson.dumps(body), 2)
    except BackendError:
        return
    assert all(isinstance(answer.text, str) for answer in whole.answers)
