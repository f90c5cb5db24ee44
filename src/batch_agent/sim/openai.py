"""The bytes of OpenAI's answers, as vLLM writes them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from .answer import Call, Reply

DONE = b"data: [DONE]\n\n"


class Wire(NamedTuple):
    """What every part of one answer repeats: whose it is and which of the two shapes it has."""

    number: int
    created: int
    model: str
    is_chat: bool

    def plain(self, replies: Sequence[Reply], usage: dict[str, Any]) -> bytes:
        """The whole answer."""
        choice = self._chat_choice if self.is_chat else _text_choice
        choices = [choice(index, reply) for index, reply in enumerate(replies)]
        shape = b"chat.completion" if self.is_chat else b"text_completion"
        return b'%b%b,"usage":%b}' % (self._head(shape), orjson.dumps(choices), orjson.dumps(usage))

    def opening(self) -> bytes:
        """The event that names the speaker; a text completion has none."""
        return self._event({"index": 0, "delta": {"role": "assistant", "content": ""}}) if self.is_chat else b""

    def tokens(self, index: int, reply: Reply, start: int, stop: int, chunk_tokens: int) -> bytes:
        """The events for tokens `start` to `stop`, at most `chunk_tokens` in each; none for tokens that do not show."""
        head = self._event_head()
        head += b'[{"index":0,"delta":{"content":' if self.is_chat else b'[{"index":%d,"text":' % index
        tail = b'%b,"logprobs":null,"finish_reason":null}]}\n\n' % (b"}" if self.is_chat else b"")
        events = []
        for first in range(start, stop, chunk_tokens):
            last = min(first + chunk_tokens, stop)
            if text := reply.text_between(first, last):
                events.append(head + orjson.dumps(text) + tail)
            if reply.calls:
                pieces = reply.arguments_between(first, last)
                events += [self._event({"index": 0, "delta": {"tool_calls": [self._piece(reply, *p)]}}) for p in pieces]
        return b"".join(events)

    def ending(self, index: int, reply: Reply) -> bytes:
        empty: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return self._event({"index": index, **empty}, reply.finish_reason)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return b'%b[],"usage":%b}\n\n' % (self._event_head(), orjson.dumps(usage))

    def _event_head(self) -> bytes:
        return b"data: " + self._head(b"chat.completion.chunk" if self.is_chat else b"text_completion")

    def _head(self, shape: bytes) -> bytes:
        names = (b"chatcmpl" if self.is_chat else b"cmpl", self.number, shape, self.created, orjson.dumps(self.model))
        return b'{"id":"%b-%d","object":"%b","created":%d,"model":%b,"choices":' % names

    def _event(self, choice: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice["logprobs"] = None
        choice["finish_reason"] = finish_reason
        return b"%b[%b]}\n\n" % (self._event_head(), orjson.dumps(choice))

    def _piece(self, reply: Reply, call: int, opens: bool, arguments: str) -> dict[str, Any]:
        if not opens:
            return {"index": call, "function": {"arguments": arguments}}
        return {"index": call, **self._call(call, Call(reply.calls[call].name, arguments))}

    def _call(self, number: int, call: Call) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{self.number}_{number}", "type": "function", "function": function}

    def _chat_choice(self, index: int, reply: Reply) -> dict[str, Any]:
        calls = [self._call(number, call) for number, call in enumerate(reply.calls)]
        message = {"role": "assistant", "content": reply.text or (None if calls else ""), "tool_calls": calls}
        return {"index": index, "message": message, **_end(reply)}


def usage_body(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def _text_choice(index: int, reply: Reply) -> dict[str, Any]:
    return {"index": index, "text": reply.text, **_end(reply)}


def _end(reply: Reply) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": reply.finish_reason, "stop_reason": None}
