"""Adaptive limit of the requests in flight: raised while the server has room, cut where it shows that it has not.

Refusals are judged by their rate, and by the number in flight at which it begins. Those that come at the same rate with
fewer in flight do not depend on the limit, and leave it alone: it is raised as if nothing had happened. Two things
lower it. Most requests are refused (`refusals` tells when): the limit falls to what the server had taken by then, where
that was less, and never below the last limit with which a round of requests went through. Or a raised limit has
significantly more refusals than the lower ones had: the last step is taken back.

The limit that was too much is remembered. It is approached in steps that become smaller and then rarer, and is
forgotten when several rounds in a row go well with it. A limit that went well once and is too much later shows a rate
limit rather than a bound: it is lowered by a half, then by a quarter, and raised more slowly each time."""

from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

from ..core.protocols import ServerLoad

_CEILING = 1024
_EPISODE = 1.0
_SHORT_QUEUE = 4
_CLEAR = 0.9
_ROUNDS_WITHOUT_LOOK = 4
_RESERVE = 1.5
"""Requests that may wait at the server, for each that it took up between the last two looks."""
_ROSE = 0.1
"""More refusals, as a share of a round, at a higher limit: less is no reason to lower it."""
_SIGNIFICANT = 3.0
"""Standard deviations by which the rate of refusals must have risen."""
_STEPS = 4
"""In which a limit that was too much is approached."""
_MOST_ROUNDS = 16
"""That go well before a limit which was too much is tried again."""
_ROUNDS_TO_FORGET = 4
"""That go well with a limit which was too much."""
_REMEMBERED = 256
"""Requests of which the usual rate of refusals is computed: older ones count less."""
_FULL = 0.9
_AFTER_PREEMPTION = 0.75
_NO_GAIN = 0.8
"""More in flight by some factor, and answers that take longer by more than this part of it: nothing was won."""


class LimitDecision(NamedTuple):
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
    _usual: "_Round | None" = None
    """Rounds that went well: the last one, with the answers and refusals of those before it."""
    _good: int = 0
    """The highest limit with which a round went well, since one like it was too much."""
    _bad: int | None = None
    """The lowest limit that was too much, until it is forgotten."""
    _rounds: int = 0
    """That went well since the limit changed."""
    _rounds_needed: int = 1
    """Before the limit is raised."""
    _quiet_until: float = float("-inf")
    _reports_load: bool = False
    _preemptions: int = 0
    _running: int = 0
    _answered: int = 0
    """Since the last look."""

    def __post_init__(self) -> None:
        self._most = self.current if self.fixed else max(self.current, _CEILING)
        self._is_searching = not self.fixed

    def succeeded(self, seconds: float, *, limit_binds: bool) -> LimitDecision | None:
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
        ended = _Round(self.current, self._answers, self._seconds / self._answers, self._sent_away)
        self._begin_round()
        return self._judge(ended)

    def sent_away(self) -> None:
        """The server had no room for one request."""
        self._sent_away += 1

    def refused(self, now: float, in_service: int) -> LimitDecision | None:
        """The server refuses most requests, of those that were sent since the limit was last lowered. It had taken so
        many before."""
        self._quiet_until = now + _EPISODE
        return self._back_off(in_service, "rate limited")

    def looked(self, load: ServerLoad, in_use: int, now: float) -> LimitDecision | None:
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

    def _judge(self, ended: "_Round") -> LimitDecision | None:
        """A round is over at this limit."""
        usual = self._usual
        if usual is not None and usual.limit < ended.limit:
            if self._is_searching and ended.is_slower_for_nothing(usual):
                self._is_searching = False
                return self._set(usual.limit, "more in flight only took longer")
            if ended.is_refused_more(usual):
                return self._back_off(0, "more in flight were refused more")
        self._usual = ended if usual is None else ended.after(usual)
        self._good, self._rounds = max(self._good, self.current), self._rounds + 1
        if self._bad is not None and self.current >= self._bad:
            if self._rounds < max(_ROUNDS_TO_FORGET, self._rounds_needed):
                return None
            self._bad, self._rounds_needed, self._is_searching = None, 1, not self.fixed
        return self._set(self._higher(), "room") if self._rounds >= self._rounds_needed else None

    def _higher(self) -> int:
        if self._is_searching:
            return 2 * self.current
        return self.current + (1 if self._bad is None else max(1, (self._bad - self.current) // _STEPS))

    def _back_off(self, in_service: int, reason: str) -> LimitDecision | None:
        limit, good = self.current, self._good
        self._is_searching, self._bad = False, limit
        if good < limit:
            was_last_step = limit <= good + max(1, good // _STEPS)
            self._rounds_needed = min(_MOST_ROUNDS, 2 * self._rounds_needed) if was_last_step else 1
            return self._set(max(good, limit // 2, min(in_service, limit - 1)), reason)
        self._good, self._usual = 0, None
        lower = limit // 2 if self._rounds_needed == 1 else limit * 3 // 4
        self._rounds_needed = min(_MOST_ROUNDS, 2 * self._rounds_needed)
        return self._set(min(lower, limit - 1), reason)

    def _set(self, limit: int, reason: str) -> LimitDecision | None:
        limit = max(1, min(limit, self._most))
        self._begin_round()
        if limit == self.current:
            return None
        self.current, self._rounds = limit, 0
        return LimitDecision(limit, reason)

    def _begin_round(self) -> None:
        self._answers, self._seconds, self._sent_away = 0, 0.0, 0


class _Round(NamedTuple):
    """As many answers as requests may be in flight."""

    limit: int
    answers: float
    seconds: float
    """An answer took, on average."""
    refused: float

    def after(self, before: "_Round") -> "_Round":
        kept = 0.5 if before.answers + before.refused > _REMEMBERED else 1.0
        return self._replace(answers=self.answers + kept * before.answers, refused=self.refused + kept * before.refused)

    def is_slower_for_nothing(self, before: "_Round") -> bool:
        """It takes longer by as much as there is more in flight."""
        return before.seconds > 0 and self.seconds / before.seconds >= _NO_GAIN * self.limit / before.limit

    def is_refused_more(self, before: "_Round") -> bool:
        """By more than chance explains."""
        sent, sent_before = self.answers + self.refused, before.answers + before.refused
        rose = self.refused / sent - before.refused / sent_before
        rate = (self.refused + before.refused) / (sent + sent_before)
        deviation = sqrt(rate * (1 - rate) * (1 / sent + 1 / sent_before))
        return rose > max(_ROSE, _SIGNIFICANT * deviation)
