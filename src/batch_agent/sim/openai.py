"""The bytes of OpenAI's answers, as vLLM writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from batch_agent.sim.answer import Reply

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Wire:
    """What every part of one answer repeats: whose it is and which of the two shapes it has."""

    number: int
    created: int
    model: str
    is_chat: bool

    def plain(self, replies: Sequence[Reply], usage: Usage) -> bytes:
        """The whole answer."""
        choice = self._chat_choice if self.is_chat else _text_choice
        return orjson.dumps(
            {
                "id": self._id(),
                "object": "chat.completion" if self.is_chat else "text_completion",
                "created": self.created,
                "model": self.model,
                "choices": [choice(index, reply) for index, reply in enumerate(replies)],
                "usage": usage.body(),
            }
        )

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

    def usage(self, usage: Usage) -> bytes:
        return b'%b[],"usage":%b}\n\n' % (self._event_head(), orjson.dumps(usage.body()))

    def _id(self) -> str:
        return f"chatcmpl-{self.number}" if self.is_chat else f"cmpl-{self.number}"

    def _event_head(self) -> bytes:
        shape = b"chat.completion.chunk" if self.is_chat else b"text_completion"
        names = (self._id().encode(), shape, self.created, orjson.dumps(self.model))
        return b'data: {"id":"%b","object":"%b","created":%d,"model":%b,"choices":' % names

    def _event(self, choice: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice["logprobs"] = None
        choice["finish_reason"] = finish_reason
        return b"%b[%b]}\n\n" % (self._event_head(), orjson.dumps(choice))

    def _piece(self, reply: Reply, call: int, opens: bool, arguments: str) -> dict[str, Any]:
        function: dict[str, str] = {"arguments": arguments}
        if not opens:
            return {"index": call, "function": function}
        function = {"name": reply.calls[call].name, **function}
        return {"index": call, "id": self._call_id(call), "type": "function", "function": function}

    def _call_id(self, call: int) -> str:
        return f"call_{self.number}_{call}"

    def _chat_choice(self, index: int, reply: Reply) -> dict[str, Any]:
        calls = [
            {
                "id": self._call_id(number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(reply.calls)
        ]
        message = {"role": "assistant", "content": reply.text or (None if calls else ""), "tool_calls": calls}
        return _choice(index, {"message": message}, reply)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def _text_choice(index: int, reply: Reply) -> dict[str, Any]:
    return _choice(index, {"text": reply.text}, reply)


def _choice(index: int, said: dict[str, Any], reply: Reply) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": reply.finish_reason, "stop_reason": None}
