"""Decoder of responses to many prompts in one request. Replies are identified by their index."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....core.errors import BackendError, ErrorKind
from ....core.fast_dataclass import dataclass
from ....core.requests import FinishReason, Usage
from ...http.sse import SseParser
from ..response_body import openai_usage, read_object, text_or_empty

_FINISH: Mapping[str, FinishReason] = {"length": "length", "max_tokens": "length", "content_filter": "refusal"}
_ABORTED_REASONS = ("abort", "error")
"""Finish reasons of a reply that the server could not complete."""
_MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class PromptDelta:
    """Next part of the reply to one prompt."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class PromptFinished:
    """The reply to one prompt is complete. Emitted at once, before the other prompts finish."""

    index: int
    finish: FinishReason
    usage: Usage | None = None
    """Usage of this prompt, if the server reports it; vLLM does not report how much of it was cached."""


PromptEvent = PromptDelta | PromptFinished


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """Complete reply to one prompt."""

    index: int
    text: str
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class BatchReply:
    """Response to many prompts that is not streamed."""

    answers: tuple[PromptAnswer, ...]
    """In the order of the prompts."""
    missing: tuple[int, ...]
    """Prompts without a reply, or with one that the server aborted."""
    usage: Usage
    """Usage of all prompts together. vLLM counts the cached tokens of one prompt only."""


def decode_batch_reply(body: bytes, count: int) -> BatchReply:
    """Decodes a response to `count` prompts or conversations that is not streamed. Raises BackendError if it does not
    have the format, and for a reply without a valid index."""
    reply = read_object(body)
    choices = _choices(reply)
    if choices is None:
        raise BackendError(ErrorKind.SERVER, f"The response has no choices: {body[:200]!r}")
    found: dict[int, PromptAnswer | None] = {}
    for choice in choices:
        index = _index(choice, count)
        if index in found:
            raise BackendError(ErrorKind.SERVER, f"The server replied to prompt {index} twice.")
        found[index] = None if choice.get("finish_reason") in _ABORTED_REASONS else _answer(index, choice)
    answers = {index: answer for index, answer in sorted(found.items()) if answer is not None}
    missing = tuple(index for index in range(count) if index not in answers)
    return BatchReply(tuple(answers.values()), missing, openai_usage(reply.get("usage")) or Usage())


class BatchStreamDecoder:
    """Incremental decoder of one stream with the replies to `count` prompts, interleaved in any order.

    After a BackendError, from here or from the connection, replies that were emitted as finished stay valid; the other
    prompts must be sent again."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._events = SseParser()
        self._unfinished = set(range(count))
        self._aborted: set[int] = set()
        self._usage_by_prompt: dict[int, Usage] = {}
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[PromptEvent]:
        """Raises BackendError for an error that the server reports, and for a choice without a valid index."""
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
        """The end of the body. Raises BackendError if prompts have no complete reply."""
        self._ended = True
        if self._aborted:
            raise BackendError(ErrorKind.SERVER, f"The server aborted {_list_prompts(self._aborted)}.")
        if self._unfinished:
            raise BackendError(
                ErrorKind.CONNECTION, f"The stream ended before the replies to {_list_prompts(self._unfinished)}."
            )

    @property
    def ended(self) -> bool:
        return self._ended

    def _event(self, event: dict[str, Any]) -> Iterator[PromptEvent]:
        choices, usage = _choices(event) or [], openai_usage(event.get("usage"))
        for choice in choices:
            index = _index(choice, self._count)
            if usage is not None and len(choices) == 1:
                self._usage_by_prompt[index] = usage
            yield from self._choice(index, choice)

    def _choice(self, index: int, choice: Mapping[str, Any]) -> Iterator[PromptEvent]:
        text, reason = text_or_empty(choice.get("text")), choice.get("finish_reason")
        if index not in self._unfinished:
            if text:
                raise BackendError(ErrorKind.SERVER, f"The server continued prompt {index} after its finish_reason.")
            return
        if text:
            yield PromptDelta(index, text)
        if reason:
            self._unfinished.remove(index)
        if reason in _ABORTED_REASONS:
            self._aborted.add(index)
        elif reason:
            yield PromptFinished(index, _finish(reason), self._usage_by_prompt.get(index))


def _choices(answer: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    entries = answer.get("choices")
    return [choice for choice in entries if isinstance(choice, dict)] if isinstance(entries, list) else None


def _index(choice: Mapping[str, Any], count: int) -> int:
    """The prompt that a choice belongs to. It is never guessed: text under the wrong prompt is worse than an error."""
    index = choice.get("index", 0 if count == 1 else None)
    if type(index) is not int or not 0 <= index < count:
        raise BackendError(
            ErrorKind.SERVER, f"The server replied to prompt {index!r}, but the request has {count} prompts, from 0 on."
        )
    return index


def _answer(index: int, choice: Mapping[str, Any]) -> PromptAnswer:
    message = choice.get("message")
    if not isinstance(message, dict):
        message = {"content": choice.get("text")}
    return PromptAnswer(index, text_or_empty(message.get("content")), _finish(choice.get("finish_reason")))


def _finish(reason: Any) -> FinishReason:
    return _FINISH.get(reason, "stop") if isinstance(reason, str) else "stop"


def _list_prompts(indices: Iterable[int]) -> str:
    numbers = sorted(indices)
    more = f" and {len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else ""
    return f"prompt {', '.join(map(str, numbers[:_MAX_NAMED]))}{more}"
