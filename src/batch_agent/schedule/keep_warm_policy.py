"""Keep-warm policy: which contexts the server is about to evict while their agents wait for tools."""

from dataclasses import dataclass, field

from ..core.protocols.backend import ServerLoad

_REQUEST_COST = 256
"""Cost of a keep-warm request, in tokens that could be computed in the same time."""
_BUSY_KV_USAGE = 0.8
_BUSY_PREFILL_SHARE = 0.7
"""Share of the measured prefill speed."""
_MAX_REQUESTS = 16
_POLLS_AHEAD = 3.0
_RATE_SMOOTHING_SECONDS = 0.5
_ROOM_CORRECTION = 0.9
_MIN_ROOM_SHARE = 0.5


@dataclass(slots=True)
class _Context:
    """An agent's context in the cache, without the shared prefix."""

    tokens: int
    back_at: float | None
    """When its tools are expected to return; None if unknown."""
    used_at: float
    """Tokens that the server had computed when it last used this context."""
    room: float
    """Tokens of cache that the running requests left free at that time."""
    reused: float
    """Tokens that were cached at the last use: they became most recently used without being computed."""
    spent: float = 0.0
    """Cost of keep-warm requests during this wait, in tokens."""
    has_returned: bool = False
    """Its agent no longer waits."""


@dataclass(slots=True)
class KeepWarmPolicy:
    """Predicts evictions from the tokens that the server computes. Servers evict the least recently used context: an
    unused one is evicted, its end first, after as many tokens were computed or reused as the running requests leave
    free.

    A request that is sent too early is wasted, and one that is sent too late recomputes the context. On a busy server
    every request costs more than it saves, so none are sent. No wait may cost more than its context is worth."""

    kv_tokens: int
    _contexts: dict[str, _Context] = field(default_factory=dict)
    """Least recently used first."""
    _room_share: float = 1.0
    """Share of the free cache in which contexts were observed to survive."""
    _computed: float = 0.0
    _polled_at: float | None = None
    _room: float = 0.0
    _smoothed_rate: float | None = None
    _rate: float = 0.0
    """Tokens per second: the last measurement or the smoothed rate, whichever is higher."""
    _interval: float = 0.0

    def on_wait(self, agent: str, tokens: int, back_at: float | None) -> None:
        before = self._contexts.pop(agent, None)
        found = 0.0 if before is None else before.reused
        self._contexts[agent] = _Context(tokens, back_at, self._computed, self._room, found)

    def on_return(self, agent: str) -> None:
        """The agent uses its context again, so older contexts are evicted that much earlier."""
        context = self._contexts.pop(agent, None)
        if context is not None:
            self._contexts[agent] = context
            context.has_returned, context.reused = True, context.tokens

    def on_reply(self, agent: str, computed: int) -> bool:
        """Whether most of the context was still cached, given the tokens that a keep-warm request computed."""
        context = self._contexts.get(agent)
        if context is None or context.has_returned:
            return False
        self._contexts[agent] = self._contexts.pop(agent)
        context.used_at, context.room = self._computed, self._room
        context.reused = max(0.0, context.tokens - computed)
        context.spent += max(_REQUEST_COST, computed)
        was_cached = 2 * computed <= context.tokens
        if not was_cached:
            self._room_share = max(_MIN_ROOM_SHARE, _ROOM_CORRECTION * self._room_share)
        return was_cached

    def on_load(self, load: ServerLoad, now: float, speed: float | None, *, has_room: bool) -> list[str]:
        """The agents whose contexts need a keep-warm request now. `speed`: the server's prefill speed in tokens per
        second; `has_room`: no agent of this run waits for a slot or residency."""
        self._follow(load, now)
        self._forget_evicted()
        if not has_room or self._rate <= 0 or self._is_busy(load, speed):
            return []
        due: list[str] = []
        # Tokens that later uses, and keep-warm requests of older contexts, move ahead of this context.
        moved = sum(context.reused for context in self._contexts.values())
        for agent, context in self._contexts.items():
            moved -= context.reused
            room = self._room_share * min(self._room, context.room)
            before_it = room - context.tokens - (self._computed - context.used_at)
            is_there = 2 * before_it > -context.tokens
            if is_there and not context.has_returned and self._is_due(context, before_it - moved, now):
                due.append(agent)
                moved += context.tokens
        return due[:_MAX_REQUESTS]

    def _forget_evicted(self) -> None:
        """Drops contexts that were evicted, and the oldest ones whose agents have returned."""
        while self._contexts:
            agent, oldest = next(iter(self._contexts.items()))
            if not oldest.has_returned and self._computed - oldest.used_at < self.kv_tokens:
                return
            del self._contexts[agent]

    def _follow(self, load: ServerLoad, now: float) -> None:
        if load.computed < self._computed:  # another or a restarted server: the cache is empty
            self._contexts.clear()
            self._polled_at = self._smoothed_rate = None
            self._rate = 0.0
        self._room = self.kv_tokens * (1.0 - (load.kv_usage or 0.0))
        if self._polled_at is None:  # earlier uses count from the first poll
            for context in self._contexts.values():
                context.used_at, context.room = load.computed, self._room
        elif now > self._polled_at:
            self._follow_rate(load.computed - self._computed, now - self._polled_at)
        self._computed, self._polled_at = float(load.computed), now

    def _follow_rate(self, computed: float, seconds: float) -> None:
        # A single long gap between polls does not set the interval.
        self._interval = min(seconds, 2 * self._interval) if self._interval else seconds
        rate = computed / seconds
        known = rate if self._smoothed_rate is None else self._smoothed_rate
        self._smoothed_rate = known + (rate - known) * seconds / (seconds + _RATE_SMOOTHING_SECONDS)
        self._rate = max(rate, self._smoothed_rate)

    def _is_busy(self, load: ServerLoad, speed: float | None) -> bool:
        is_computing = speed is not None and (self._smoothed_rate or 0.0) > _BUSY_PREFILL_SHARE * speed
        return load.waiting > 0 or (load.kv_usage or 0.0) > _BUSY_KV_USAGE or is_computing

    def _is_due(self, context: _Context, left: float, now: float) -> bool:
        evicted_in = max(0.0, left) / self._rate
        # If the tools are late, one more poll detects it.
        comes_in_time = context.back_at is not None and now <= context.back_at <= now + evicted_in - self._interval
        pays = context.spent + _REQUEST_COST <= context.tokens
        return pays and not comes_in_time and evicted_in <= _POLLS_AHEAD * self._interval
