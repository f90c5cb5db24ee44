"""Backend with token ids, without a server: a template whose messages end with an id, and a model that splits its text
into other tokens than the template does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from batch_agent.core.messages import Assistant, Message, ToolResults, User
from batch_agent.core.requests import Delta, Finished, Request, TurnTokens, packed_ids, packed_logprobs
from batch_agent.testing import ScriptedBackend

END, NEWLINE, OPEN = 2, 10, 1
SAMPLED = 1000
"""Added to the ids that the model samples, which the template never writes."""


class TokenBackend(ScriptedBackend):
    """`takes_ids`: whether it takes a prompt of ids, or ignores it as an old server does."""

    def __init__(self, script: Any, *, takes_ids: bool = True, renders: bool = True, **traits: Any) -> None:
        super().__init__(script, **{"token_ids": True, **traits})
        self._takes_ids = takes_ids
        self._renders = renders
        self.rendered = 0
        self.engine_log: list[tuple[bytes, bytes]] = []
        """Ids of each prompt and of what was sampled."""

    async def render_prompt(self, request: Request) -> bytes | None:
        self.rendered += 1
        return packed_ids(rendered(request)) if self._renders else None

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        async with super().stream(request) as deltas:
            yield self._with_tokens(request, deltas)

    async def _with_tokens(self, request: Request, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        said = ""
        async for delta in deltas:
            said += f"{delta!r}" if not isinstance(delta, Finished) else ""
            if isinstance(delta, Finished) and request.tokens is not None:
                yield replace(delta, tokens=self._tokens(request, said))
            else:
                yield delta

    def _tokens(self, request: Request, said: str) -> TurnTokens:
        given = request.tokens.prompt_ids if request.tokens is not None else b""
        prompt = given if given and self._takes_ids else packed_ids(rendered(request))
        sampled = packed_ids([SAMPLED + ord(char) % 64 for char in said[:12]] + [END])
        self.engine_log.append((prompt, sampled))
        logprobs = packed_logprobs([-0.5] * (len(sampled) // 4))
        return TurnTokens(prompt, sampled, logprobs, "stop", "tiny", "v1")


def rendered(request: Request) -> list[int]:
    """The prompt as the template renders it."""
    ids = [id for message in request.messages for id in [OPEN, *_text(message), END, NEWLINE]]
    return [OPEN, *map(ord, request.prompt.system), END, NEWLINE, *ids, OPEN]


def _text(message: Message) -> list[int]:
    match message:
        case User() | Assistant():
            calls = "".join(f"{call.name}{call.arguments}" for call in getattr(message, "calls", ()))
            return [100 + ord(char) % 800 for char in f"{message.text}{calls}"]
        case ToolResults():
            return [100 + ord(char) % 800 for result in message.results for char in result.content]
