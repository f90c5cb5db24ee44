"""The program of one agent, as the gateway knows it.

Which programs may ask.
"""

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import assert_never

from ...core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from ...core.program_runtime import CompletionRequest
from ...core.requests import Reply
from .errors import GatewayError
from .masking import Mask, TextReplacer
from .reply_memory import ReplyMemory


@dataclass(slots=True, eq=False)
class ClientSession:
    """Stands between what a program says and hears, and what the model does."""

    agent: str
    key: str
    mask: Mask
    memory: ReplyMemory = field(default_factory=ReplyMemory)
    _requests: set[asyncio.Task[object]] = field(default_factory=set)

    def heard(self, asked: CompletionRequest) -> CompletionRequest:
        """What the model is to read. Raises RecursionError for data that is nested too deep."""
        hide = self.mask.hide
        return replace(
            asked,
            system=hide.text(asked.system),
            tools=tuple(ToolSpec(t.name, hide.text(t.description), hide.data(t.parameters)) for t in asked.tools),
            messages=tuple(self._messages(asked.messages, hide)),
            answer_schema=None if asked.answer_schema is None else hide.data(asked.answer_schema),
        )

    def said(self, reply: Reply, asked: CompletionRequest) -> Reply:
        """What the program is to hear of what the model said to `asked`."""
        show = self.mask.show
        kept = self.memory.keep(reply, asked.messages)
        words = _swapped(Assistant(kept.text, kept.calls, kept.thoughts), show)
        return replace(kept, text=words.text, calls=words.calls, thoughts=words.thoughts)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a request of this program is under way."""
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            yield
        finally:
            self._requests.discard(task)

    def leave(self) -> None:
        """Nobody waits any more for what is under way."""
        for task in self._requests:
            task.cancel()

    def _messages(self, messages: tuple[Message, ...], hide: TextReplacer) -> Iterator[Message]:
        calls: dict[str, ToolCall] = {}
        for message in messages:
            match message:
                case User(text):
                    yield User(hide.text(text))
                case Assistant():
                    own = self.memory.recall(_swapped(message, hide))
                    calls |= {call.id: call for call in own.calls}
                    yield own
                case ToolResults(results):
                    yield ToolResults(tuple(_result(each, calls, hide) for each in results))
                case _:
                    assert_never(message)


def _swapped(words: Assistant, swap: TextReplacer) -> Assistant:
    return Assistant(
        swap.text(words.text),
        tuple(ToolCall(call.id, call.name, swap.json(call.arguments)) for call in words.calls),
        tuple(Thought(swap.text(each.text), each.signature, each.redacted) for each in words.thoughts),
    )


def _result(result: ToolResult, calls: dict[str, ToolCall], hide: TextReplacer) -> ToolResult:
    return replace(result, call=calls.get(result.call.id, result.call), content=hide.text(result.content))


_KEY_HEADERS = ("x-api-key", "api-key")
"""They hold nothing but a key."""


class ClientSessions:
    """Known by their keys, one for each agent."""

    def __init__(self) -> None:
        self._by_agent: dict[str, ClientSession] = {}
        self._by_key: dict[str, ClientSession] = {}

    def admit(self, agent: str, hides: Mapping[str, str]) -> str:
        guest = self._by_agent.get(agent)
        if guest is None:
            guest = ClientSession(agent, f"sk-batch-agent-{secrets.token_hex(16)}", Mask(hides))
            self._by_agent[agent] = self._by_key[guest.key] = guest
        elif guest.mask.hides != hides:
            guest.mask = Mask(hides)
        return guest.key

    def dismiss(self, agent: str) -> None:
        guest = self._by_agent.pop(agent, None)
        if guest is not None:
            del self._by_key[guest.key]
            guest.leave()

    def dismiss_all(self) -> None:
        for agent in list(self._by_agent):
            self.dismiss(agent)

    def who_asks(self, headers: Mapping[str, str]) -> ClientSession:
        """Raises Refused."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        keys = [token.strip()] if scheme.lower() == "bearer" else []
        keys += [headers[name].strip() for name in _KEY_HEADERS if name in headers]
        for key in keys:
            if key in self._by_key:
                return self._by_key[key]
        what = "This key is not known, or its agent has left" if any(keys) else "There is no key"
        raise GatewayError(
            f"{what}: send the one that was made for this agent, as Authorization: Bearer or as x-api-key.",
            status=401,
            code="invalid_api_key",
        )
