"""Waves of the batch lane: when a wave is closed, how it is divided into submissions, and how many may be enqueued."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import field

from ...core.fast_dataclass import dataclass

GRACE_SECONDS = 0.25
"""A wave stays open for so long after the last agent could arrive: an agent that is started, or that writes to the
checkpoint, is not counted for a moment."""
LINGER_SECONDS = 60.0
"""A wave waits for tools as long as other requests keep arriving within this time."""
MAX_OPEN_SECONDS = 600.0
"""A wave is closed so long after its first request, even if others keep arriving."""
_BYTES_PER_TOKEN = 4
_ENQUEUED_LIMIT = re.compile(r"[Ll]imit:?\s*([\d,_]+)")
"""In OpenAI's refusal: "Enqueued token limit reached for gpt-x in organization y. Limit: 90,000 enqueued tokens."."""
_MIN_ENQUEUED_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class WaveLine:
    """A request in a wave."""

    key: str
    size: int
    """Bytes."""

    @property
    def tokens(self) -> int:
        """Estimate of what the provider counts as enqueued."""
        return self.size // _BYTES_PER_TOKEN + 1


@dataclass(frozen=True, slots=True)
class SubmissionLimits:
    """What a provider takes in one batch."""

    lines: int = 50_000
    size: int = 100_000_000
    """Bytes."""


@dataclass(slots=True)
class Wave:
    """The requests that are collected now."""

    limits: SubmissionLimits
    lines: dict[str, WaveLine] = field(default_factory=dict)
    _opened: float = 0.0
    _last: float = 0.0
    _size: int = 0

    def add(self, line: WaveLine, now: float) -> None:
        if not self.lines:
            self._opened = now
        self._last = now
        self.lines[line.key] = line
        self._size += line.size

    def remove(self, key: str) -> None:
        """The agent no longer waits. May be called for a line that is not in the wave."""
        line = self.lines.pop(key, None)
        self._size -= 0 if line is None else line.size

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self.limits.lines or self._size >= self.limits.size

    def closes_at(self, on_their_way: int, changed: float) -> float | None:
        """When the wave is closed if nothing changes until then; None: it is empty. `on_their_way`: agents that may
        still arrive by themselves; `changed`: when that was last counted again."""
        if not self.lines:
            return None
        if self.is_full:
            return self._last
        if on_their_way <= 0:
            return max(self._last, changed) + GRACE_SECONDS
        return min(self._last + LINGER_SECONDS, self._opened + MAX_OPEN_SECONDS)


def divide(lines: Iterable[WaveLine], limits: SubmissionLimits, tokens: float) -> list[list[WaveLine]]:
    """The lines in order, as submissions within the limits. `tokens`: that may be enqueued. A line that exceeds a limit
    alone is a submission of its own: the provider decides."""
    parts: list[list[WaveLine]] = []
    size = used = 0.0
    for line in lines:
        size, used = size + line.size, used + line.tokens
        if not parts or len(parts[-1]) >= limits.lines or size > limits.size or used > tokens:
            parts.append([])
            size, used = line.size, line.tokens
        parts[-1].append(line)
    return parts


class EnqueuedTokens:
    """Account of the tokens that submissions have enqueued, with the limit as far as the provider has stated it."""

    def __init__(self) -> None:
        self.limit = float("inf")
        self._enqueued: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        return not self._enqueued

    @property
    def room(self) -> float:
        return self.limit - sum(self._enqueued.values())

    def fits(self, lines: Sequence[WaveLine]) -> bool:
        """Whether the lines may be submitted now. The first submission always may."""
        return self.is_empty or sum(line.tokens for line in lines) <= self.room

    def add(self, wave: str, lines: Sequence[WaveLine]) -> None:
        self._enqueued[wave] = sum(line.tokens for line in lines)

    def remove(self, wave: str) -> None:
        self._enqueued.pop(wave, None)

    def refused(self, wave: str, message: str) -> None:
        """The provider refused a submission because too much is enqueued."""
        refused = self._enqueued.pop(wave, 0)
        if (stated := _ENQUEUED_LIMIT.search(message)) is not None:
            self.limit = min(self.limit, float(stated[1].replace(",", "").replace("_", "") or "inf"))
        if self.is_empty and 0 < refused <= self.limit:  # it counts more than the estimate, or others use the limit too
            self.limit = max(_MIN_ENQUEUED_TOKENS, min(self.limit, refused) / 2)
