"""Fakes for tests of code that uses batch_agent: a scripted backend, and an event loop with virtual time."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from .core.errors import BackendError
from .core.messages import Assistant, ToolCall
from .core.protocols.backend import Traits
from .core.requests import CallDelta, Delta, Finished, ReasoningDelta, Reply, Request, TextDelta, Usage
from .virtual_time import VirtualTimeLoop as VirtualTimeLoop
from .virtual_time import run_virtual as run_virtual

Answer = Reply | BackendError
Script = Callable[[Request], Answer | Awaitable[Answer]]

_TRAITS = Traits(
    name="scripted",
    model="scripted",
    native_tools=True,
    json_schema=True,
    json_schema_with_tools=True,
    inflight=8,
)


def say(text: str, usage: Usage | None = None) -> Reply:
    """Reply that ends the agent with `text`."""
    return Reply(text, "stop", usage or Usage())


def call(tool: str, **arguments: Any) -> Reply:
    """Reply that calls one tool; for several, use `calls`."""
    return calls(ToolCall("", tool, orjson.dumps(arguments).decode()))


def calls(*wanted: ToolCall) -> Reply:
    """Reply that calls several tools at once."""
    return Reply("", "calls", Usage(), wanted)


def by_turn(*answers: Answer) -> Script:
    """Script that gives every agent these answers, one per turn, and repeats the last one."""

    def answer(request: Request) -> Answer:
        turn = sum(isinstance(message, Assistant) for message in request.messages)
        return answers[min(turn, len(answers) - 1)]

    return answer


class ScriptedBackend:
    """Backend without a server: `BatchAgent.run(..., backend=ScriptedBackend(by_turn(call("look"), say("42"))))`.

    The script is a function of the request, sync or async; the request fails with a BackendError that it returns
    or raises. Every request takes `seconds` on the loop's clock, plus the time that an async script waits."""

    def __init__(self, script: Script, *, seconds: float = 0.0, **traits: Any) -> None:
        self.traits = replace(_TRAITS, **traits)
        self.requests: list[Request] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.left: list[str] = []
        """The agents for which `leave` was called."""
        self.is_closed = False
        self._script = script
        self._seconds = seconds

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            async with aclosing(self._deltas(request)) as deltas:
                yield deltas
        finally:
            self.in_flight -= 1

    async def leave(self, agent: str) -> None:
        self.left.append(agent)

    async def aclose(self) -> None:
        self.is_closed = True

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        scripted = self._script(request)
        answer = await scripted if inspect.isawaitable(scripted) else scripted
        if isinstance(answer, BackendError):
            raise answer
        if not isinstance(answer, Reply):
            raise TypeError(f"a script returns what say(), call() or calls() makes, or a BackendError, not {answer!r}")
        for thought in answer.thoughts:
            yield ReasoningDelta(thought.text, thought.signature, thought.redacted)
        if answer.text:
            yield TextDelta(answer.text)
        for wanted in answer.calls:
            yield CallDelta(wanted)
        yield Finished(answer.finish, answer.usage)
