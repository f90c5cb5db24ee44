"""Carries what the engine computed to the client, or fails to in the ordered way."""

from collections.abc import Callable
from typing import Any

from .faults import Fault, Kind
from .http import Connection
from .openai import DONE, usage_body
from .requests import Generation

_GARBAGE_BODY = b'{"id": "chatcmpl-garbage", "choices": [{"message": {"content": '
_GARBAGE_EVENT = b'data: {"choices": [{"delta": {"content": \n\n'


class Delivery:
    """One generation on its way to the client who waits for it; `abort` makes the engine forget the rest of it."""

    def __init__(
        self,
        generation: Generation,
        connection: Connection,
        fault: Fault | None,
        abort: Callable[[Generation], None],
        chunk_tokens: int,
    ) -> None:
        self._generation = generation
        self._connection = connection
        self._fault = fault.kind if fault else None
        self._abort = abort
        self._chunk_tokens = chunk_tokens
        self._unfinished = len(generation.sequences)
        self._is_open = False
        self._is_broken_off = False

    def open(self) -> None:
        """Begin a stream with its head and opening event; `progress` does it where nobody did before."""
        if self._generation.is_stream and not self._is_open:
            self._is_open = True
            self._connection.open_stream(self._generation.wire.opening())

    def progress(self, index: int, start: int, stop: int, *, finished: bool) -> None:
        """The answer at `index` has got its tokens `start` to `stop`: send what shows of them."""
        if self._is_broken_off:
            return
        self._unfinished -= finished
        if self._generation.is_stream:
            self._send_events(index, start, stop, finished)
        elif not self._unfinished:
            self._send_body()

    def _send_body(self) -> None:
        body = self._generation.wire.plain(self._generation.replies, self._usage())
        match self._fault:
            case Kind.RESET:
                self._connection.reset()
            case Kind.GARBAGE:
                self._connection.reply(200, _GARBAGE_BODY)
            case Kind.TRUNCATED:
                self._connection.reply_short(body)
            case _:
                self._connection.reply(200, body)

    def _send_events(self, index: int, start: int, stop: int, finished: bool) -> None:
        wire, reply = self._generation.wire, self._generation.replies[index]
        self.open()
        breaks_off_at = reply.tokens // 2 if self._fault in (Kind.RESET, Kind.TRUNCATED) else reply.tokens + 1
        events = wire.tokens(index, reply, start, min(stop, breaks_off_at), self._chunk_tokens)
        if stop >= breaks_off_at:
            self._break_off(events)
            return
        if self._fault is Kind.GARBAGE and not start:
            events = _GARBAGE_EVENT + events
        if finished:
            events += wire.ending(index, reply)
        if self._unfinished:
            self._connection.send(events)
        else:
            usage = wire.usage(self._usage()) if self._generation.include_usage else b""
            self._connection.end_stream(events + usage + DONE)

    def _break_off(self, events: bytes) -> None:
        self._is_broken_off = True
        self._abort(self._generation)
        if self._fault is Kind.RESET:
            self._connection.send(events)
            self._connection.reset()
        else:
            self._connection.end_stream(events)

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = completion_tokens = cached_tokens = 0
        for sequence in self._generation.sequences:
            prompt_tokens += sequence.prompt_tokens
            completion_tokens += sequence.generated
            cached_tokens += sequence.cached
        return usage_body(prompt_tokens, completion_tokens, cached_tokens)
