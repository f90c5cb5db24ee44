"""A backend whose server does the work of every turn, and whose words come from a script."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace

from batch_agent.core.messages import Prompt, ToolCall, User
from batch_agent.core.protocols.backend import Backend, CountsTokens, ReportsLoad, ServerLoad, TakesHints
from batch_agent.core.requests import CallDelta, ContextHint, Delta, Finished, Request, Sampling, TextDelta, Usage

from .scenario import TOOL, Scene
from .turn_recorder import Watch, now


class Played:
    """Sends every turn on, for exactly `scene.output` tokens, and gives back what the scene says in their place, with
    the usage and the time of the first token as they were. A request that is not a turn of the scene is left as it is.

    Tools are not sent: a server without a tool parser refuses them, and one with a parser has nothing to parse. The
    calls and results of earlier turns are, so that a turn's prompt is a prefix of the next one's.
    """

    def __init__(self, inner: Backend, scene: Scene, watch: Watch) -> None:
        self.traits = replace(inner.traits, native_tools=True)
        self._inner = inner
        self._scene = scene
        self._watch = watch
        self._prompts: dict[Prompt, Prompt] = {}
        self._samplings: dict[Sampling, Sampling] = {}

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        agent = self._agent(request)
        request = replace(request, prompt=self._without_tools(request.prompt))
        if agent is None or request.sampling.max_tokens == 1:  # a prefix is being warmed
            return self._inner.stream(request)
        return self._turn(replace(request, sampling=self._of_fixed_length(request.sampling)), agent)

    async def leave(self, agent: str) -> None:
        await self._inner.leave(agent)

    async def hint(self, hint: ContextHint) -> None:
        if isinstance(self._inner, TakesHints):
            await self._inner.hint(hint)

    async def load(self) -> ServerLoad | None:
        return await self._inner.load() if isinstance(self._inner, ReportsLoad) else None

    async def count_tokens(self, text: str) -> int | None:
        return await self._inner.count_tokens(text) if isinstance(self._inner, CountsTokens) else None

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _agent(self, request: Request) -> int | None:
        first = request.messages[0]
        if not isinstance(first, User):
            return None
        return self._scene.numbers.get(first.text.rpartition("</references>\n\n")[2])  # references stand before it

    def _without_tools(self, prompt: Prompt) -> Prompt:
        """The same object for the same prompt: dialects serialise a prompt once."""
        if prompt not in self._prompts:
            self._prompts[prompt] = replace(prompt, tools=())
        return self._prompts[prompt]

    def _of_fixed_length(self, sampling: Sampling) -> Sampling:
        if sampling not in self._samplings:
            extra = {**sampling.extra, "ignore_eos": True}
            self._samplings[sampling] = replace(sampling, max_tokens=self._scene.output, extra=extra)
        return self._samplings[sampling]

    @asynccontextmanager
    async def _turn(self, request: Request, agent: int) -> AsyncIterator[AsyncIterator[Delta]]:
        sent = now()
        async with (
            self._inner.stream(request) as deltas,
            aclosing(self._play(deltas, agent, request.turn, sent)) as played,
        ):
            yield played

    async def _play(self, deltas: AsyncIterator[Delta], agent: int, turn: int, sent: float) -> AsyncGenerator[Delta]:
        first: float | None = None
        async for delta in deltas:
            if first is None:
                first = now()
                yield TextDelta("")  # the engine takes the time of the first delta
            if isinstance(delta, Finished):
                self._watch.turn_done(agent, turn, self._scene.key(agent, turn - 1), sent, first, delta.usage)
                for said in self._said(agent, turn, delta.usage):
                    yield said

    def _said(self, agent: int, turn: int, usage: Usage) -> list[Delta]:
        if self._scene.is_last(turn):
            return [TextDelta("done"), Finished("stop", usage)]
        call = ToolCall(f"call-{turn}", TOOL, self._scene.arguments(agent, turn))
        return [TextDelta(self._scene.said), CallDelta(call), Finished("calls", usage)]
