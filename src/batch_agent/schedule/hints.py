"""Whose context is about to be thrown out of the server's cache while its agent waits for tools."""

from dataclasses import dataclass, field

from ..core.load import Load

_WORTH_KEEPING = 512
"""Tokens; a shorter context is computed again as quickly as it is touched."""
_BUSY_CACHE = 0.8
_BUSY_COMPUTING = 0.5
"""Of the speed at which the server was seen to compute prompts."""
_MOST_AT_ONCE = 8
_LOOKS_AHEAD = 2.5


@dataclass(slots=True)
class _Context:
    tokens: int
    back_at: float | None
    """When its agent is likely back; None where nobody knows."""
    used_at: float
    """What the server had computed when it last used this context."""


@dataclass(slots=True)
class WarmthPlan:
    """Follows how much the server computes: a context that was not used goes when as much has been computed since as
    there is room beside the running requests. What is touched too early costs for nothing, what is touched too late
    is computed again; on a server that has enough to do every touch costs more than it saves, so there are none."""

    kv_tokens: int
    _contexts: dict[str, _Context] = field(default_factory=dict)
    _computed: float = 0.0
    _looked_at: float | None = None
    _rate: float = 0.0
    _interval: float = 0.0

    def waits(self, agent: str, tokens: int, back_at: float | None) -> None:
        self._contexts[agent] = _Context(tokens, back_at, self._computed)

    def returned(self, agent: str) -> None:
        self._contexts.pop(agent, None)

    def touched(self, agent: str) -> None:
        if agent in self._contexts:
            self._contexts[agent].used_at = self._computed

    def looked(self, load: Load, now: float, speed: float | None, *, has_room: bool) -> list[str]:
        """The agents whose contexts to touch now. `speed`: tokens of prompts a second, at the server's best;
        `has_room`: nobody of this run waits for a slot or a place."""
        self._follow(load, now)
        is_busy = load.waiting > 0 or (load.kv_usage or 0.0) > _BUSY_CACHE
        if speed is not None and self._rate > _BUSY_COMPUTING * speed:
            is_busy = True
        if is_busy or not has_room or self._rate <= 0:
            return []
        room = self.kv_tokens * (1.0 - (load.kv_usage or 0.0))
        ending = sorted(
            (left, agent)
            for agent, context in self._contexts.items()
            if (left := room - (self._computed - context.used_at)) > 0 and self._is_due(context, left, now)
        )
        return [agent for _, agent in ending[:_MOST_AT_ONCE]]

    def _follow(self, load: Load, now: float) -> None:
        if self._looked_at is not None and now > self._looked_at:
            self._interval = now - self._looked_at
            self._rate += 0.5 * ((load.computed - self._computed) / self._interval - self._rate)
        else:  # contexts that were left before the first look count from it
            for context in self._contexts.values():
                context.used_at = load.computed
        self._computed, self._looked_at = float(load.computed), now

    def _is_due(self, context: _Context, left: float, now: float) -> bool:
        gone_in = left / self._rate
        comes_in_time = context.back_at is not None and now <= context.back_at <= now + gone_in
        return context.tokens >= _WORTH_KEEPING and not comes_in_time and gone_in <= _LOOKS_AHEAD * self._interval
