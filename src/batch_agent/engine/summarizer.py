"""Long tool results, shortened by the model: once for all agents that share the result."""

from dataclasses import dataclass, field

from ..core.errors import BackendError
from ..core.interfaces import Backend
from ..core.messages import User
from ..core.prompt import Prompt
from ..core.requests import Request, Sampling, Usage
from ..schedule.admission import Rank
from .replies import collect
from .slots import Slots

_CHARS_PER_TOKEN = 4
_CONTEXT = 32_000
_MOST_PARTS = 8
_PROMPT = Prompt("You shorten texts. Keep every name, number, date and reference in them. Add nothing.")


@dataclass(slots=True)
class Summarizer:
    """Asks in the ordinary way, for a slot like everybody. `usage` is what it cost."""

    backend: Backend
    slots: Slots
    model: str
    usage: Usage = field(default_factory=Usage)

    async def shorten(self, text: str, tokens: int) -> str:
        """At most about `tokens` long. Never raises for a backend that fails: the text is cut instead, and says so."""
        room = (self.backend.traits.context_tokens or _CONTEXT) - tokens
        size = max(1_000, room * _CHARS_PER_TOKEN // 2)
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        read = "".join(parts[:_MOST_PARTS])
        rest = f", of which the first {len(read)} were read" if len(read) < len(text) else ""
        try:
            shortened = [await self._ask(part, tokens // len(parts[:_MOST_PARTS])) for part in parts[:_MOST_PARTS]]
        except BackendError as error:
            most = tokens * _CHARS_PER_TOKEN
            return f"{text[:most]}\n[cut here: {most} of {len(text)} characters are shown; no summary: {error}]"
        return "\n".join([f"[a summary of {len(text)} characters{rest}]", *shortened])

    async def _ask(self, text: str, tokens: int) -> str:
        asked = f"Shorten this to at most {max(20, tokens * 2 // 3)} words:\n\n{text}"
        sampling = Sampling(temperature=0.0, max_tokens=max(32, tokens))
        slot = await self.slots.acquire(Rank(is_fresh=False))
        try:
            async with self.backend.stream(Request(_PROMPT, (User(asked),), self.model, sampling)) as deltas:
                reply, _ = await collect(deltas, lambda: 0.0)
        finally:
            slot.release()
        self.usage += reply.usage
        return reply.text.strip()
