"""Whose context is about to be thrown out of the server's cache while its agent waits for tools."""

from dataclasses import dataclass, field

from ..core.protocols import ServerLoad

_TOUCH = 256
"""Tokens that can be computed in the time that a touch takes."""
_BUSY_CACHE = 0.8
_BUSY_COMPUTING = 0.7
"""Of the speed at which the server was seen to compute prompts."""
_MOST_AT_ONCE = 16
_LOOKS_AHEAD = 3.0
_RATE_SECONDS = 0.5
_MISJUDGED = 0.9
_LEAST_KEPT = 0.5


@dataclass(slots=True)
class _Context:
    """What an agent's turns hold beside what all of them share."""

    tokens: int
    back_at: float | None
    """When its agent is likely back; None where nobody knows."""
    used_at: float
    """What the server had computed when it last used this context."""
    room: float
    """What could be kept beside the running requests then."""
    found: float
    """What was in the cache already at the last use: it went behind older contexts without being computed."""
    spent: float = 0.0
    """On touches during this wait, in tokens."""
    is_left: bool = False
    """Its agent does not wait any more."""


@dataclass(slots=True)
class KeepWarmPolicy:
    """Follows what the server computes. It throws out what was not used for longest: an unused context goes, its end
    first, when as much has been computed or used again since as there is room beside the running requests.

    What is touched too early costs for nothing, what is touched too late is computed again; on a server that has
    enough to do every touch costs more than it saves, so there are none. No wait is spent more on than its context is
    worth."""

    kv_tokens: int
    _contexts: dict[str, _Context] = field(default_factory=dict)
    """Least recently used first."""
    _kept: float = 1.0
    """The share of the room that contexts were seen to stay in."""
    _computed: float = 0.0
    _looked_at: float | None = None
    _room: float = 0.0
    _smooth: float | None = None
    _rate: float = 0.0
    """Tokens a second: the last look's or the usual, whichever is more."""
    _interval: float = 0.0

    def waits(self, agent: str, tokens: int, back_at: float | None) -> None:
        before = self._contexts.pop(agent, None)
        found = 0.0 if before is None else before.found
        self._contexts[agent] = _Context(tokens, back_at, self._computed, self._room, found)

    def returned(self, agent: str) -> None:
        """It uses its context now: what is older goes that much earlier, whether the agent waits again or ends."""
        context = self._contexts.pop(agent, None)
        if context is not None:
            self._contexts[agent] = context
            context.is_left, context.found = True, context.tokens

    def touched(self, agent: str, computed: int) -> bool:
        """Whether most of the context was still there, if so many tokens had to be computed."""
        context = self._contexts.get(agent)
        if context is None or context.is_left:
            return False
        self._contexts[agent] = self._contexts.pop(agent)
        context.used_at, context.room = self._computed, self._room
        context.found = max(0.0, context.tokens - computed)
        context.spent += max(_TOUCH, computed)
        was_there = 2 * computed <= context.tokens
        if not was_there:
            self._kept = max(_LEAST_KEPT, _MISJUDGED * self._kept)
        return was_there

    def looked(self, load: ServerLoad, now: float, speed: float | None, *, has_room: bool) -> list[str]:
        """The agents whose contexts to touch now. `speed`: tokens of prompts a second, at the server's best;
        `has_room`: nobody of this run waits for a slot or a place."""
        self._follow(load, now)
        self._forget_gone()
        if not has_room or self._rate <= 0 or self._is_busy(load, speed):
            return []
        due: list[str] = []
        # What later uses found, and what touches of older contexts will: it goes behind the context at hand.
        moved = sum(context.found for context in self._contexts.values())
        for agent, context in self._contexts.items():
            moved -= context.found
            room = self._kept * min(self._room, context.room)
            before_it = room - context.tokens - (self._computed - context.used_at)
            is_there = 2 * before_it > -context.tokens
            if is_there and not context.is_left and self._is_due(context, before_it - moved, now):
                due.append(agent)
                moved += context.tokens
        return due[:_MOST_AT_ONCE]

    def _forget_gone(self) -> None:
        """What is gone itself, and what is left and has none behind it that it could push out."""
        while self._contexts:
            agent, oldest = next(iter(self._contexts.items()))
            if not oldest.is_left and self._computed - oldest.used_at < self.kv_tokens:
                return
            del self._contexts[agent]

    def _follow(self, load: ServerLoad, now: float) -> None:
        if load.computed < self._computed:  # another server, or the same one started anew: all is gone
            self._contexts.clear()
            self._looked_at = self._smooth = None
            self._rate = 0.0
        self._room = self.kv_tokens * (1.0 - (load.kv_usage or 0.0))
        if self._looked_at is None:  # what was used before the first look counts from it
            for context in self._contexts.values():
                context.used_at, context.room = load.computed, self._room
        elif now > self._looked_at:
            self._follow_rate(load.computed - self._computed, now - self._looked_at)
        self._computed, self._looked_at = float(load.computed), now

    def _follow_rate(self, computed: float, seconds: float) -> None:
        # A server that said nothing for long is not expected to do so again.
        self._interval = min(seconds, 2 * self._interval) if self._interval else seconds
        rate = computed / seconds
        known = rate if self._smooth is None else self._smooth
        self._smooth = known + (rate - known) * seconds / (seconds + _RATE_SECONDS)
        self._rate = max(rate, self._smooth)

    def _is_busy(self, load: ServerLoad, speed: float | None) -> bool:
        is_computing = speed is not None and (self._smooth or 0.0) > _BUSY_COMPUTING * speed
        return load.waiting > 0 or (load.kv_usage or 0.0) > _BUSY_CACHE or is_computing

    def _is_due(self, context: _Context, left: float, now: float) -> bool:
        gone_in = max(0.0, left) / self._rate
        # If it is not back by then after all, there is one more look to find that out.
        comes_in_time = context.back_at is not None and now <= context.back_at <= now + gone_in - self._interval
        pays = context.spent + _TOUCH <= context.tokens
        return pays and not comes_in_time and gone_in <= _LOOKS_AHEAD * self._interval
