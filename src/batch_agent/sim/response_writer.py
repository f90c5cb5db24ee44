"""Writer of responses: sends generated tokens to the client, or injects a fault."""

from collections.abc import Callable
from typing import Any

from .faults import Fault, Kind
from .generation import Generation
from .http import ClientConnection
from .openai_responses import DONE, usage_body

_GARBAGE_BODY = b'{"id": "chatcmpl-garbage", "choices": [{"message": {"content": '
_GARBAGE_EVENT = b'data: {"choices": [{"delta": {"content": \n\n'


class SimResponseWriter:
    """Response to one generation request. `abort` makes the engine drop its sequences.

    `fault` affects the whole response, at the beginning or in the middle of the reply at `fault_index`."""

    def __init__(
        self,
        generation: Generation,
        connection: ClientConnection,
        fault: Fault | None,
        fault_index: int,
        abort: Callable[[Generation], None],
    ) -> None:
        self._generation = generation
        self._connection = connection
        self._fault = fault.kind if fault else None
        self._fault_index = fault_index
        self._abort = abort
        self._unfinished = len(generation.sequences)
        self._first: int | None = None
        self._is_open = False
        self._is_aborted = False

    def open(self) -> None:
        """Begins a stream with its head and first event, unless it has begun. Also called by `progress`."""
        if self._generation.is_stream and not self._is_open:
            self._is_open = True
            self._connection.open_stream(self._generation.encoder.opening(self._prompt_tokens(0)))

    def progress(self, index: int, start: int, stop: int, *, finished: bool) -> None:
        """Sends tokens `start` to `stop` of the reply at `index`."""
        if self._is_aborted:
            return
        self._unfinished -= finished
        if self._generation.is_stream:
            self._send_events(index, start, stop, finished)
        elif not self._unfinished:
            self._send_body()

    def _send_body(self) -> None:
        # As in vLLM, the cached tokens of a list are those of its last prompt.
        encoder = self._generation.body_encoder
        body = encoder.plain(self._generation.replies, self._usage(-1))
        match self._fault:
            case Kind.RESET:
                self._connection.reset()
            case Kind.GARBAGE:
                self._connection.reply(200, _GARBAGE_BODY)
            case Kind.TRUNCATED:
                self._connection.reply_short(body)
            case _:
                self._connection.reply(200, body, encoder.content_type)

    def _send_events(self, index: int, start: int, stop: int, finished: bool) -> None:
        self.open()
        if self._first is None:
            self._first = index
        if self._should_abort(index, stop):
            half = self._generation.replies[index].tokens // 2
            self._abort_stream(self._events(index, start, half, finished=False))
            return
        events = self._events(index, start, stop, finished)
        if self._fault is Kind.GARBAGE and index == self._fault_index and not start:
            events = _GARBAGE_EVENT + events
        if self._unfinished:
            self._connection.send(events)
        else:
            # As in vLLM, the cached tokens of a list are those of the first prompt to get a token.
            usage = self._generation.encoder.usage(self._usage(self._first)) if self._generation.include_usage else b""
            self._connection.end_stream(events + usage + DONE)

    def _events(self, index: int, start: int, stop: int, finished: bool) -> bytes:
        encoder, reply = self._generation.encoder, self._generation.replies[index]
        chunk, prompt_tokens = self._generation.chunk_tokens, self._prompt_tokens(index)
        if not finished:
            return encoder.tokens(index, reply, start, stop, chunk, prompt_tokens)
        last = stop if encoder.is_chat else start + max(0, stop - start - 1) // chunk * chunk
        events = encoder.tokens(index, reply, start, last, chunk, prompt_tokens)
        return events + encoder.ending(index, reply, last, prompt_tokens)

    def _should_abort(self, index: int, stop: int) -> bool:
        if self._fault not in (Kind.RESET, Kind.TRUNCATED) or index != self._fault_index:
            return False
        return stop >= self._generation.replies[index].tokens // 2

    def _abort_stream(self, events: bytes) -> None:
        self._is_aborted = True
        self._abort(self._generation)
        if self._fault is Kind.RESET:
            self._connection.send(events)
            self._connection.reset()
        else:
            self._connection.end_stream(events)

    def _prompt_tokens(self, index: int) -> int | None:
        """Prompt tokens, if usage is requested in every event."""
        return self._generation.sequences[index].prompt_tokens if self._generation.continuous_usage else None

    def _usage(self, cached_index: int) -> dict[str, Any]:
        prompt_tokens = completion_tokens = 0
        sequences = self._generation.sequences
        for sequence in sequences:
            prompt_tokens += sequence.prompt_tokens
            completion_tokens += sequence.generated
        cached_tokens = sequences[cached_index].cached if self._generation.reports_cached else None
        return usage_body(prompt_tokens, completion_tokens, cached_tokens)
