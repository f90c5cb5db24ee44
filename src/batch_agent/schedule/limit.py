"""How many requests may be in flight: found by trying more, and cut when the server shows that it was too much."""

from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.load import Load

_CEILING = 1024
_LONGEST_EPISODE = 300.0
_EPISODE = 1.0
_SHORT_QUEUE = 4
_CLEAR = 0.9
_ROUNDS_WITHOUT_LOOK = 4
_RESERVE = 1.5
"""Requests that may wait at the server, for each that it took up between the last two looks."""
_NO_ROOM = 0.1
"""Of a round of requests, sent away: then there is no room for more."""
_FULL = 0.9
_AFTER_PREEMPTION = 0.75
_NO_GAIN = 0.8
"""More in flight by some factor, and answers that take longer by more than this part of it: nothing was won."""


class Change(NamedTuple):
    limit: int
    reason: str


@dataclass(slots=True)
class InflightLimit:
    """Grows only while the limit binds: doubling until the first sign of too much, then more slowly. A server that
    tells its load shows at each look whether there is room, or requests wait there, or it had to throw some out; of any
    other, refusals and answers that slow down are the signs, and the limit grows by rounds of answers. One cut per
    episode. A fixed limit is cut too, and grows back to what it was."""

    current: int
    fixed: bool
    queue_ceiling: int | None = None
    """Requests that may wait at the server, where the user says so."""
    _most: int = field(init=False)
    _is_searching: bool = field(init=False)
    _answers: int = 0
    _seconds: float = 0.0
    _sent_away: int = 0
    """Since the round began."""
    _round_before: tuple[int, float] | None = None
    _quiet_until: float = float("-inf")
    _reports_load: bool = False
    _preemptions: int = 0
    _running: int = 0
    _answered: int = 0
    """Since the last look."""

    def __post_init__(self) -> None:
        self._most = self.current if self.fixed else max(self.current, _CEILING)
        self._is_searching = not self.fixed

    def succeeded(self, seconds: float, *, limit_binds: bool) -> Change | None:
        """A request was answered, after so long. The new limit, if it changes."""
        self._answered += 1
        if self._answered > _ROUNDS_WITHOUT_LOOK * self.current:
            self._reports_load = False
        if not limit_binds or self.current >= self._most or self._reports_load:
            return None
        self._answers += 1
        self._seconds += seconds
        if self._answers < self.current:
            return None
        mean, sent_away = self._seconds / self._answers, self._sent_away
        self._begin_round()
        if sent_away > _NO_ROOM * self.current:
            return None
        if not self._is_searching:
            return self._set(self.current + 1, "room")
        if self._gained_nothing(mean):
            assert self._round_before is not None
            self._is_searching = False
            return self._set(self._round_before[0], "more in flight only took longer")
        self._round_before = (self.current, mean)
        return self._set(2 * self.current, "room")

    def sent_away(self) -> None:
        """The server had no room for one request."""
        self._sent_away += 1

    def refused(self, now: float, retry_after: float | None) -> Change | None:
        """The server asked for less. Refusals of requests sent before the cut took effect belong to the same
        episode."""
        self._begin_round()
        if now < self._quiet_until:
            return None
        self._quiet_until = now + min(max(_EPISODE, retry_after or 0.0), _LONGEST_EPISODE)
        self._is_searching = False
        return self._set(self.current // 2, "rate limited")

    def looked(self, load: Load, in_use: int, now: float) -> Change | None:
        """What the server says of its load, with so many requests in flight. What waits at the server cannot be
        ordered any more, so no more is sent than it will take up before the next look."""
        is_first, self._reports_load = not self._reports_load, True
        threw_out, self._preemptions = load.preemptions - self._preemptions, load.preemptions
        answered, self._answered = self._answered, 0
        taken_up, self._running = max(0, answered + load.running - self._running), load.running
        if is_first:  # what ran before is not known
            return None
        queue = max(_SHORT_QUEUE, int(_RESERVE * taken_up)) if self.queue_ceiling is None else self.queue_ceiling
        if now < self._quiet_until:
            return None
        if threw_out > 0:
            self._quiet_until = now + _EPISODE
            self._is_searching = False
            return self._set(int(_AFTER_PREEMPTION * self.current), f"the server threw {threw_out} out for room")
        if load.waiting > queue and answered:  # before any answer, a burst looks like a queue
            enough = max(in_use - (load.waiting - queue), in_use // 2)
            return self._set(enough, f"{load.waiting} waited at the server") if enough < _CLEAR * self.current else None
        is_full = load.kv_usage is not None and load.kv_usage >= _FULL
        if in_use >= self.current and 2 * load.waiting <= queue and not is_full:
            return self._set(2 * self.current if self._is_searching else self.current * 5 // 4 + 1, "room")
        return None

    def _gained_nothing(self, mean: float) -> bool:
        if self._round_before is None:
            return False
        limit, before = self._round_before
        return before > 0 and mean / before >= _NO_GAIN * self.current / limit

    def _set(self, limit: int, reason: str) -> Change | None:
        limit = max(1, min(limit, self._most))
        self._begin_round()
        if limit == self.current:
            return None
        self.current = limit
        return Change(limit, reason)

    def _begin_round(self) -> None:
        self._answers, self._seconds, self._sent_away = 0, 0.0, 0
