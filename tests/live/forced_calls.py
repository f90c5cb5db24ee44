"""Backend that makes a small model call tools: each turn's text has to match a pattern, within which the model
samples freely."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from batch_agent.backends.connect import connect
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.protocols import Traits
from batch_agent.core.requests import Delta, Request, Sampling

CALL = r'<tool_call>\n\{"name": "berth_of", "arguments": \{"ship": "[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?"\}\}\n</tool_call>'
ANSWER = r"The ship [a-zA-Z ,]{8,60}\."


class ForcedCalls:
    """A real server, whose model calls `berth_of` in the first turns and answers in the next one."""

    def __init__(self, server: HttpBackend, calls: int) -> None:
        self.server = server
        self._calls = calls
        self._samplings: dict[tuple[int, str], Sampling] = {}

    @classmethod
    async def open(cls, url: str, scheme: str, calls: int = 1) -> "ForcedCalls":
        address = f"{scheme}://{url.removeprefix('http://')}"
        server = await connect(address, "smollm2", uses_tools=True, notify=lambda text: None)
        assert isinstance(server, HttpBackend)
        return cls(server, calls)

    @property
    def traits(self) -> Traits:
        return self.server.traits

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        return self.server.stream(self._forced(request))

    async def render_prompt(self, request: Request) -> bytes | None:
        return await self.server.render_prompt(request)

    async def leave(self, agent: str) -> None:
        await self.server.leave(agent)

    async def aclose(self) -> None:
        await self.server.aclose()

    def _forced(self, request: Request) -> Request:
        pattern = CALL if request.turn < self._calls else ANSWER
        key = id(request.sampling), pattern
        if key not in self._samplings:  # requests with the same sampling share their encoding
            is_vllm = self.traits.name == "vllm"
            extra = {"structured_outputs": {"regex": pattern}} if is_vllm else {"regex": pattern}
            self._samplings[key] = replace(request.sampling, extra=extra)
        return replace(request, sampling=self._samplings[key], may_call_tools=True)
