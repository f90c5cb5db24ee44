"""Summarizer, which shortens long tool results with the model."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field

from ..core.errors import BackendError
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt, User
from ..core.protocols.backend import Backend
from ..core.requests import Request, Sampling, Usage
from ..schedule.slot_queue import Priority
from .reply_assembly import collect
from .slots import Slots

_CHARS_PER_TOKEN = 4
_DEFAULT_CONTEXT_TOKENS = 32_000
_MAX_PARTS = 8
_PROMPT = Prompt("You shorten texts. Keep every name, number, date and reference in them. Add nothing.")


@dataclass(slots=True)
class Summarizer:
    """Requests summaries from the backend, each with a slot like any turn. `usage` is their total usage."""

    backend: Backend
    slots: Slots
    model: str
    usage: Usage = field(default_factory=Usage)

    async def shorten(self, text: str, tokens: int) -> str:
        """A summary of about `tokens` at most. If the backend fails, the text is truncated instead, with a note."""
        try:
            summary, read = await self._summary(text, tokens, self.model)
        except BackendError as error:
            size = tokens * _CHARS_PER_TOKEN
            return f"{text[:size]}\n[cut here: {size} of {len(text)} characters are shown; no summary: {error}]"
        rest = f", of which the first {read} were read" if read < len(text) else ""
        return f"[a summary of {len(text)} characters{rest}]\n{summary}"

    async def summaries(
        self, texts: Mapping[int, tuple[str, int]], model: str | None = None, seconds: float | None = None
    ) -> Mapping[int, str]:
        """Summaries of texts, each with its maximum of tokens. Those that fail or take longer than `seconds` are
        missing."""
        found: dict[int, str] = {}

        async def one(name: int, text: str, tokens: int) -> None:
            with suppress(BackendError):  # other summaries may succeed
                found[name], _ = await self._summary(text, tokens, model or self.model)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for name, (text, tokens) in texts.items():
                    group.create_task(one(name, text, tokens))
        return found

    async def _summary(self, text: str, tokens: int, model: str) -> tuple[str, int]:
        """The summary, and how many characters of the text were read for it. Raises BackendError."""
        room = (self.backend.traits.context_tokens or _DEFAULT_CONTEXT_TOKENS) - tokens
        size = max(1_000, room * _CHARS_PER_TOKEN // 2)
        parts = [text[start : start + size] for start in range(0, len(text), size)][:_MAX_PARTS]
        shortened = [await self._ask(part, tokens // len(parts), model) for part in parts]
        return "\n".join(shortened), sum(map(len, parts))

    async def _ask(self, text: str, tokens: int, model: str) -> str:
        prompt = f"Shorten this to at most {max(20, tokens * 2 // 3)} words:\n\n{text}"
        sampling = Sampling(temperature=0.0, max_tokens=max(32, tokens))
        slot = await self.slots.acquire(Priority(is_fresh=False))
        try:
            async with self.backend.stream(Request(_PROMPT, (User(prompt),), model, sampling)) as deltas:
                reply, _ = await collect(deltas, lambda: 0.0)
            slot.settle(reply.usage)
        finally:
            slot.release()
        self.usage += reply.usage
        return reply.text.strip()
