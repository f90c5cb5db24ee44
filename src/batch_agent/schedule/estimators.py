"""What was measured of the past, to tell how long things will take."""

from collections import deque
from dataclasses import dataclass, field

from ..core.requests import Usage

_LONGEST = 1.0
_LATENCIES = 4
_FORGETTING = 0.999
_LITTLE = 0.1
_WORTH_TIMING = 256
_REMEMBERED = 64
_SOME = 4


@dataclass(slots=True)
class PrefillSpeed:
    """Tokens of prompts that a server computes in a second when it has enough to do: the best that was seen, slowly
    forgotten. What is counted together was computed between the first start and the last first token of the requests
    counted, so this is hardly ever more than the server can do, and what is concluded from it errs towards keeping
    contexts."""

    tokens_per_second: float | None = None
    _per_output: float = float("inf")
    """Seconds for a token of an answer, at the server's best."""
    _began: float | None = None
    _computed_by: float = 0.0
    _last: float = 0.0
    _tokens: int = 0

    def heard(self, usage: Usage, seconds: float, ttft: float | None, now: float) -> None:
        """A request was answered after so long. Where its first token was not seen, the time for the others is what
        they take at least."""
        started, computed = now - seconds, max(0, usage.input - usage.cached)
        if usage.output and computed <= _LITTLE * usage.input:
            self._per_output = min(seconds / usage.output, self._per_output / _FORGETTING)
        if ttft is None:
            ttft = seconds - usage.output * self._per_output if self._per_output < float("inf") else seconds
        first = started + max(ttft, _LITTLE * seconds)
        was_idle = started > self._last
        if self._began is None or was_idle or now - self._began > max(_LONGEST, _LATENCIES * seconds):
            self._began, self._computed_by, self._tokens = started, first, 0
        self._began = min(self._began, started)
        self._computed_by = max(self._computed_by, first)
        self._last = now
        self._tokens += computed
        if self._tokens >= _WORTH_TIMING and self._computed_by > self._began:
            speed = self._tokens / (self._computed_by - self._began)
            self.tokens_per_second = max(speed, (self.tokens_per_second or 0.0) * _FORGETTING)


@dataclass(slots=True)
class ToolWaits:
    """How long agents wait for each tool."""

    _waits: dict[str, deque[float]] = field(default_factory=dict)
    _known: dict[str, float] = field(default_factory=dict)

    def waited(self, tool: str, seconds: float) -> None:
        waits = self._waits.setdefault(tool, deque(maxlen=_REMEMBERED))
        waits.append(seconds)
        if len(waits) >= _SOME:
            self._known[tool] = sorted(waits)[3 * len(waits) // 4]

    def likely(self, tools: list[str]) -> float | None:
        """Three of four waits for all of these are over by then; None while too little is known."""
        known = [self._known.get(tool) for tool in tools]
        return None if None in known else max((each for each in known if each is not None), default=0.0)
