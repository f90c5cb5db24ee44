"""Client sessions of the gateway: one per agent, identified by an API key."""

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import assert_never

from ...core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from ...core.program_runtime import CompletionRequest
from ...core.requests import Reply
from .gateway_error import GatewayError
from .mask import Mask, TextReplacer
from .reply_memory import ReplyMemory


@dataclass(slots=True, eq=False)
class ClientSession:
    """State of one agent's program. Replaces agent-specific strings in requests and replies, and remembers replies."""

    agent: str
    key: str
    mask: Mask
    memory: ReplyMemory = field(default_factory=ReplyMemory)
    _requests: set[asyncio.Task[object]] = field(default_factory=set)

    def mask_request(self, request: CompletionRequest) -> CompletionRequest:
        """Returns the request as the model reads it. Raises RecursionError for data that is nested too deep."""
        hide = self.mask.hide
        return replace(
            request,
            system=hide.text(request.system),
            tools=tuple(ToolSpec(t.name, hide.text(t.description), hide.data(t.parameters)) for t in request.tools),
            messages=tuple(self._messages(request.messages, hide)),
            answer_schema=None if request.answer_schema is None else hide.data(request.answer_schema),
        )

    def unmask_reply(self, reply: Reply, request: CompletionRequest) -> Reply:
        """Returns the reply to `request` as the program reads it."""
        show = self.mask.show
        kept = self.memory.keep(reply, request.messages)
        shown = _replaced(Assistant(kept.text, kept.calls, kept.thoughts), show)
        return replace(kept, text=shown.text, calls=shown.calls, thoughts=shown.thoughts)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Registers the current task as a request of this program, so that it can be cancelled."""
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            yield
        finally:
            self._requests.discard(task)

    def cancel_requests(self) -> None:
        """Cancels the requests in progress."""
        for task in self._requests:
            task.cancel()

    def _messages(self, messages: tuple[Message, ...], hide: TextReplacer) -> Iterator[Message]:
        calls: dict[str, ToolCall] = {}
        for message in messages:
            match message:
                case User(text):
                    yield User(hide.text(text))
                case Assistant():
                    own = self.memory.restore(_replaced(message, hide))
                    calls |= {call.id: call for call in own.calls}
                    yield own
                case ToolResults(results):
                    yield ToolResults(tuple(_result(each, calls, hide) for each in results))
                case _:
                    assert_never(message)


def _replaced(message: Assistant, replacer: TextReplacer) -> Assistant:
    return Assistant(
        replacer.text(message.text),
        tuple(ToolCall(call.id, call.name, replacer.json(call.arguments)) for call in message.calls),
        tuple(Thought(replacer.text(each.text), each.signature, each.redacted) for each in message.thoughts),
    )


def _result(result: ToolResult, calls: dict[str, ToolCall], hide: TextReplacer) -> ToolResult:
    return replace(result, call=calls.get(result.call.id, result.call), content=hide.text(result.content))


_KEY_HEADERS = ("x-api-key", "api-key")
"""Headers whose whole value is the key."""


class ClientSessions:
    """The sessions of a run, by agent and by key."""

    def __init__(self) -> None:
        self._by_agent: dict[str, ClientSession] = {}
        self._by_key: dict[str, ClientSession] = {}

    def admit(self, agent: str, hides: Mapping[str, str]) -> str:
        session = self._by_agent.get(agent)
        if session is None:
            session = ClientSession(agent, f"sk-batch-agent-{secrets.token_hex(16)}", Mask(hides))
            self._by_agent[agent] = self._by_key[session.key] = session
        elif session.mask.hides != hides:
            session.mask = Mask(hides)
        return session.key

    def dismiss(self, agent: str) -> None:
        session = self._by_agent.pop(agent, None)
        if session is not None:
            del self._by_key[session.key]
            session.cancel_requests()

    def dismiss_all(self) -> None:
        for agent in list(self._by_agent):
            self.dismiss(agent)

    def authenticate(self, headers: Mapping[str, str]) -> ClientSession:
        """Returns the session of the key in the headers. Raises GatewayError."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        keys = [token.strip()] if scheme.lower() == "bearer" else []
        keys += [headers[name].strip() for name in _KEY_HEADERS if name in headers]
        for key in keys:
            if key in self._by_key:
                return self._by_key[key]
        what = "The API key is unknown or has been revoked" if any(keys) else "The request has no API key"
        raise GatewayError(
            f"{what}. Send the key of this agent in the header Authorization: Bearer or x-api-key.",
            status=401,
            code="invalid_api_key",
        )
