"""Encoder of OpenAI responses, byte for byte as vLLM writes them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from .answer import Call, SimReply

DONE = b"data: [DONE]\n\n"


class OpenAIBytes(NamedTuple):
    """Fields that all parts of a response share, and whether it is a chat or a text completion."""

    number: int
    created: int
    model: str
    is_chat: bool
    service_tier: str | None = None
    """The service tier to name in the response."""

    @property
    def content_type(self) -> bytes:
        """Content type of a non-streamed response."""
        return b"application/json"

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return error_body(status, message, kind, param)

    def plain(self, replies: Sequence[SimReply], usage: dict[str, Any]) -> bytes:
        """A non-streamed response."""
        choice = self._chat_choice if self.is_chat else _text_choice
        choices = [choice(index, reply) for index, reply in enumerate(replies)]
        shape = b"chat.completion" if self.is_chat else b"text_completion"
        return b'%b%b,"usage":%b}' % (self._head(shape), orjson.dumps(choices), orjson.dumps(usage))

    def opening(self, prompt_tokens: int | None = None) -> bytes:
        """The first event, which has the role. A text completion has none."""
        if not self.is_chat:
            return b""
        return self._event({"index": 0, "delta": {"role": "assistant", "content": ""}}, None, prompt_tokens, 0)

    def tokens(
        self, index: int, reply: SimReply, start: int, stop: int, chunk_tokens: int, prompt_tokens: int | None = None
    ) -> bytes:
        """The events for tokens `start` to `stop`, at most `chunk_tokens` in each; none for invisible tokens.

        With `prompt_tokens`, each event has the usage of this reply so far."""
        head = self._event_head()
        head += b'[{"index":%d,"delta":{"content":' % index if self.is_chat else b'[{"index":%d,"text":' % index
        tail = b'%b,"logprobs":null,"finish_reason":null}]' % (b"}" if self.is_chat else b"")
        uncounted = tail + _closing(None, 0)
        has_calls = bool(reply.calls)
        events = []
        for first in range(start, stop, chunk_tokens):
            last = min(first + chunk_tokens, stop)
            if text := reply.text_between(first, last):
                end = uncounted if prompt_tokens is None else tail + _closing(prompt_tokens, last)
                events.append(head + orjson.dumps(text) + end)
            for piece in reply.arguments_between(first, last) if has_calls else ():
                delta = {"tool_calls": [self._piece(reply, *piece)]}
                events.append(self._event({"index": index, "delta": delta}, None, prompt_tokens, last))
        return b"".join(events)

    def ending(self, index: int, reply: SimReply, start: int, prompt_tokens: int | None = None) -> bytes:
        """The event with the finish reason. For a text completion, it also has the text from token `start` on."""
        shown: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": reply.text_between(start, reply.tokens)}
        return self._event({"index": index, **shown}, reply.finish_reason, prompt_tokens, reply.tokens)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return b'%b[],"usage":%b}\n\n' % (self._event_head(), orjson.dumps(usage))

    def _event_head(self) -> bytes:
        return b"data: " + self._head(b"chat.completion.chunk" if self.is_chat else b"text_completion")

    def _head(self, shape: bytes) -> bytes:
        names = (b"chatcmpl" if self.is_chat else b"cmpl", self.number, shape, self.created, orjson.dumps(self.model))
        tier = b"" if self.service_tier is None else b'"service_tier":"%b",' % self.service_tier.encode()
        return b'{"id":"%b-%d","object":"%b","created":%d,"model":%b,%b"choices":' % (*names, tier)

    def _event(
        self, choice: dict[str, Any], finish_reason: str | None, prompt_tokens: int | None, tokens: int
    ) -> bytes:
        choice["logprobs"] = None
        choice["finish_reason"] = finish_reason
        return b"%b[%b]%b" % (self._event_head(), orjson.dumps(choice), _closing(prompt_tokens, tokens))

    def _piece(self, reply: SimReply, call: int, opens: bool, arguments: str) -> dict[str, Any]:
        if not opens:
            return {"index": call, "function": {"arguments": arguments}}
        return {"index": call, **self._call(call, Call(reply.calls[call].name, arguments))}

    def _call(self, number: int, call: Call) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{self.number}_{number}", "type": "function", "function": function}

    def _chat_choice(self, index: int, reply: SimReply) -> dict[str, Any]:
        calls = [self._call(number, call) for number, call in enumerate(reply.calls)]
        message = {"role": "assistant", "content": reply.text or (None if calls else ""), "tool_calls": calls}
        return {"index": index, "message": message, **_end(reply)}


def usage_body(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
    }


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def flex_unavailable() -> bytes:
    """Body of the 429 for a flex request without capacity, with OpenAI's code."""
    message = "Flex processing has no capacity for this request now. Try again later, or use another service tier."
    code = "resource_unavailable"
    return orjson.dumps({"error": {"message": message, "type": code, "param": None, "code": code}})


def _closing(prompt_tokens: int | None, tokens: int) -> bytes:
    """The end of an event, with the usage of one reply if requested."""
    if prompt_tokens is None:
        return b"}\n\n"
    counts = (prompt_tokens, prompt_tokens + tokens, tokens)
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n' % counts


def _text_choice(index: int, reply: SimReply) -> dict[str, Any]:
    return {"index": index, "text": reply.text, **_end(reply)}


def _end(reply: SimReply) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": reply.finish_reason, "stop_reason": None}
