"""Backend that makes a small model call tools: each turn's text has to match a pattern, within which the model
samples freely."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from batch_agent.backends.connect import connect
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import Assistant
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, Request, Sampling

NAME = "[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?"
ANSWER = r"The ship [a-zA-Z ,]{8,60}\."


def call_of(tool: str, argument: str, value: str) -> str:
    """Pattern of a call in the model's own format."""
    return rf'<tool_call>\n\{{"name": "{tool}", "arguments": \{{"{argument}": "{value}"\}}\}}\n</tool_call>'


class ForcedCalls:
    """A real server, whose model calls a tool in the first turns of a conversation and answers in the next one."""

    def __init__(self, server: HttpBackend, call: str, calls: int) -> None:
        self.server = server
        self._call = call
        self._calls = calls
        self.renderings = 0
        """Prompts that the server was asked to render."""
        self._samplings: dict[tuple[int, str], tuple[Sampling, Sampling]] = {}

    @classmethod
    async def open(cls, url: str, scheme: str, call: str, calls: int = 1, model: str = "smollm2") -> "ForcedCalls":
        """`call`: the pattern of a call."""
        address = f"{scheme}://{url.removeprefix('http://')}"
        server = await connect(address, model, uses_tools=True, notify=lambda text: None)
        assert isinstance(server, HttpBackend)
        return cls(server, call, calls)

    @property
    def traits(self) -> Traits:
        return self.server.traits

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        return self.server.stream(self._forced(request))

    async def render_prompt(self, request: Request) -> bytes | None:
        self.renderings += 1
        return await self.server.render_prompt(request)

    async def leave(self, agent: str) -> None:
        await self.server.leave(agent)

    async def aclose(self) -> None:
        await self.server.aclose()

    def _forced(self, request: Request) -> Request:
        turns = sum(isinstance(message, Assistant) for message in request.messages)
        pattern = self._call if request.prompt.tools and turns < self._calls else ANSWER
        key = id(request.sampling), pattern
        if key not in self._samplings:  # requests with the same sampling share their encoding
            extra = {"structured_outputs": {"regex": pattern}} if self.traits.name == "vllm" else {"regex": pattern}
            self._samplings[key] = request.sampling, replace(request.sampling, extra=extra)
        return replace(request, sampling=self._samplings[key][1], may_call_tools=True)
