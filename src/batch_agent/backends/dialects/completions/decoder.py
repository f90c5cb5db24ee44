"""Answers to many prompts in one request, told apart by their index."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....core.errors import BackendError, ErrorKind
from ....core.fast_dataclass import dataclass
from ....core.requests import FinishReason, Usage
from ...http.sse import SseParser
from ..response_body import openai_usage, read_object, text_or_empty

_FINISH: Mapping[str, FinishReason] = {"length": "length", "max_tokens": "length", "content_filter": "refusal"}
_GIVEN_UP = ("abort", "error")
"""How a server ends an answer that it could not finish."""
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class PromptDelta:
    """More of the answer to one prompt."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class PromptFinished:
    """The answer to one prompt is whole. Given out at once: it need not wait for the others."""

    index: int
    finish: FinishReason
    usage: Usage | None = None
    """This prompt's own, where the server tells it; vLLM does not tell how much of it was cached."""


PromptEvent = PromptDelta | PromptFinished


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """The whole answer to one prompt."""

    index: int
    text: str
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class BatchReply:
    """A plain answer to many prompts."""

    answers: tuple[PromptAnswer, ...]
    """In the order of the prompts."""
    missing: tuple[int, ...]
    """Prompts that have no answer, or one that the server gave up."""
    usage: Usage
    """Of all prompts together. vLLM counts as cached only what one of them found in the cache."""


def decode_batch_reply(body: bytes, count: int) -> BatchReply:
    """A plain answer to `count` prompts or conversations. Raises BackendError for what is not of the format, and for
    an answer that cannot be attributed."""
    reply = read_object(body)
    choices = _choices(reply)
    if choices is None:
        raise BackendError(ErrorKind.SERVER, f"The answer has no choices: {body[:200]!r}")
    found: dict[int, PromptAnswer | None] = {}
    for choice in choices:
        index = _index(choice, count)
        if index in found:
            raise BackendError(ErrorKind.SERVER, f"The server answered prompt {index} twice.")
        found[index] = None if choice.get("finish_reason") in _GIVEN_UP else _answer(index, choice)
    answers = {index: answer for index, answer in sorted(found.items()) if answer is not None}
    missing = tuple(index for index in range(count) if index not in answers)
    return BatchReply(tuple(answers.values()), missing, openai_usage(reply.get("usage")) or Usage())


class BatchStreamDecoder:
    """The answers to `count` prompts from the bytes of one stream, in whatever order it mixes them.

    After a BackendError, from here or from the connection, the others are to be asked again: what was given out as done
    stays valid."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._events = SseParser()
        self._open = set(range(count))
        self._given_up: set[int] = set()
        self._each: dict[int, Usage] = {}
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[PromptEvent]:
        """Raises BackendError for an error that the server reports, and for what cannot be attributed."""
        if self._ended:
            return
        try:
            for data, _ in self._events.feed(chunk):
                data = data.strip()
                if data == b"[DONE]":
                    self.close()
                    return
                if data:
                    yield from self._event(read_object(data))
        except BackendError:
            self._ended = True
            raise

    def close(self) -> None:
        """The bytes are over. Raises BackendError if not every prompt has its answer."""
        self._ended = True
        if self._given_up:
            raise BackendError(ErrorKind.SERVER, f"The server gave up the answers to {_named(self._given_up)}.")
        if self._open:
            raise BackendError(ErrorKind.CONNECTION, f"The stream ended before the answers to {_named(self._open)}.")

    @property
    def ended(self) -> bool:
        return self._ended

    def _event(self, event: dict[str, Any]) -> Iterator[PromptEvent]:
        choices, usage = _choices(event) or [], openai_usage(event.get("usage"))
        for choice in choices:
            index = _index(choice, self._count)
            if usage is not None and len(choices) == 1:
                self._each[index] = usage
            yield from self._choice(index, choice)

    def _choice(self, index: int, choice: Mapping[str, Any]) -> Iterator[PromptEvent]:
        text, reason = text_or_empty(choice.get("text")), choice.get("finish_reason")
        if index not in self._open:
            if text:
                raise BackendError(ErrorKind.SERVER, f"The server went on with prompt {index} after its answer's end.")
            return
        if text:
            yield PromptDelta(index, text)
        if reason:
            self._open.remove(index)
        if reason in _GIVEN_UP:
            self._given_up.add(index)
        elif reason:
            yield PromptFinished(index, _finish(reason), self._each.get(index))


def _choices(answer: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    listed = answer.get("choices")
    return [choice for choice in listed if isinstance(choice, dict)] if isinstance(listed, list) else None


def _index(choice: Mapping[str, Any], count: int) -> int:
    """Whose answer it is. Nothing is guessed: text under the wrong prompt is worse than none."""
    index = choice.get("index", 0 if count == 1 else None)
    if type(index) is not int or not 0 <= index < count:
        raise BackendError(ErrorKind.SERVER, f"The server answered prompt {index!r}, but was sent {count}, from 0 on.")
    return index


def _answer(index: int, choice: Mapping[str, Any]) -> PromptAnswer:
    message = choice.get("message")
    if not isinstance(message, dict):
        message = {"content": choice.get("text")}
    return PromptAnswer(index, text_or_empty(message.get("content")), _finish(choice.get("finish_reason")))


def _finish(reason: Any) -> FinishReason:
    return _FINISH.get(reason, "stop") if isinstance(reason, str) else "stop"


def _named(indices: Iterable[int]) -> str:
    numbers = sorted(indices)
    more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    return f"prompt {', '.join(map(str, numbers[:_MOST_NAMED]))}{more}"
