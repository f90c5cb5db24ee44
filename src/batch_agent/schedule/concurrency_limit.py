"""Adaptive limit of requests in flight: raised while the server has capacity, cut when it shows overload.

Refusals are judged by their rate, and by the limit at which it rises. Refusals at the same rate with fewer requests in
flight do not depend on the limit, and do not change it. Two things lower it. Most requests are refused (see
`overload_detector`): the limit falls to the number of requests that the server had accepted, if that is lower, but
never below the last limit with which a round of requests succeeded. Or a raised limit has significantly more refusals
than the lower ones had: the last increase is undone.

The limit that was too high is remembered. It is approached in steps that become smaller and then rarer, and forgotten
after several successful rounds at it. A limit that worked before and is too high later indicates a rate limit rather
than a concurrency limit: it is lowered by a half, then by a quarter, and raised more slowly each time."""

from dataclasses import field
from math import sqrt
from typing import NamedTuple

from ..core.fast_dataclass import dataclass
from ..core.protocols.backend import ServerLoad

_MAX_LIMIT = 1024
_EPISODE_SECONDS = 1.0
_SHORT_QUEUE = 4
_WORTH_CUTTING = 0.9
_ROUNDS_WITHOUT_LOAD = 4
_QUEUE_RESERVE = 1.5
"""Requests that may be queued at the server, for each that it started between the last two polls."""
_MIN_RISE = 0.1
"""Smallest rise of the refusal rate at a higher limit that lowers it."""
_SIGMAS = 3.0
"""Standard deviations by which the refusal rate must have risen."""
_STEPS = 4
"""Steps in which a limit that was too high is approached."""
_MAX_ROUNDS_NEEDED = 16
"""Successful rounds before a limit that was too high is tried again, at most."""
_ROUNDS_TO_FORGET = 4
"""Successful rounds after which a limit is no longer considered too high."""
_REMEMBERED_REQUESTS = 256
"""Requests from which the usual refusal rate is computed; older ones count less."""
_FULL_KV_USAGE = 0.9
_AFTER_PREEMPTION = 0.75
_NO_GAIN = 0.8
"""If latency rises by more than this share of the factor by which the limit rose, nothing was gained."""


class LimitDecision(NamedTuple):
    """A new limit and the reason for it."""

    limit: int
    reason: str


@dataclass(slots=True)
class InflightLimit:
    """Grows only while the limit binds: doubling until the first sign of overload, then more slowly. A server that
    reports its load shows with each poll whether it has capacity, requests are queued, or some were preempted. For any
    other server the signs are refusals and rising latency, and the limit grows by rounds of answers. There is one cut
    per episode. A fixed limit is cut too, and grows back to its value."""

    current: int
    fixed: bool
    queue_ceiling: int | None = None
    """Requests that may be queued at the server, if the user sets it."""
    _max: int = field(init=False)
    _is_searching: bool = field(init=False)
    _answers: int = 0
    _seconds: float = 0.0
    _refused: int = 0
    """Refusals in the current round."""
    _usual: "_Round | None" = None
    """The last successful round, with the answers and refusals of those before it."""
    _highest_good: int = 0
    """Highest limit of a successful round, since such a limit was last too high."""
    _too_high: int | None = None
    """Lowest limit that was too high, until it is forgotten."""
    _rounds: int = 0
    """Successful rounds since the limit changed."""
    _rounds_needed: int = 1
    """Successful rounds before the limit is raised."""
    _quiet_until: float = float("-inf")
    _reports_load: bool = False
    _preemptions: int = 0
    _running: int = 0
    _bound: int = 0
    """Answers for which the limit still counts as binding: answers that arrive together find slots free that were just
    in use."""
    _answered: int = 0
    """Answers since the last poll."""

    def __post_init__(self) -> None:
        self._max = self.current if self.fixed else max(self.current, _MAX_LIMIT)
        self._is_searching = not self.fixed

    @property
    def highest(self) -> int:
        """Value beyond which the limit never grows."""
        return self._max

    def set_highest(self, highest: int) -> LimitDecision | None:
        """Sets the value beyond which the limit never grows. A lower limit grows as before; a fixed limit that was not
        cut becomes the new one at once."""
        follows = self.fixed and self.current == self._max
        self._max = highest
        return self._set(highest if follows else self.current, "max_inflight was changed")

    def scale(self, factor: float, reason: str) -> LimitDecision | None:
        """Scales the limit, because the capacity of the backend has changed by this factor. A limit that was too high
        may now fit."""
        self._max = max(1, round(self._max * factor)) if self.fixed else self._max
        self._too_high, self._rounds_needed, self._usual, self._highest_good = None, 1, None, 0
        self._is_searching = not self.fixed
        return self._set(round(self.current * factor), reason)

    def on_success(self, seconds: float, *, limit_binds: bool) -> LimitDecision | None:
        """Records an answer that took `seconds`. Returns the new limit, if it changes."""
        self._answered += 1
        if self._answered > _ROUNDS_WITHOUT_LOAD * self.current:
            self._reports_load = False
        self._bound = self.current if limit_binds else self._bound - 1
        if self._bound <= 0 or self.current >= self._max or self._reports_load:
            return None
        self._answers += 1
        self._seconds += seconds
        if self._answers < self.current:
            return None
        ended = _Round(self.current, self._answers, self._seconds / self._answers, self._refused)
        self._begin_round()
        return self._end_round(ended)

    def on_refusal(self) -> None:
        """Records that the server refused a request."""
        self._refused += 1

    def on_overload(self, now: float, in_service: int) -> LimitDecision | None:
        """The server refuses most of the requests that were sent since the limit was last lowered. It processes
        `in_service` earlier ones."""
        self._quiet_until = now + _EPISODE_SECONDS
        return self._back_off(in_service, "rate limited")

    def on_load(self, load: ServerLoad, in_use: int, now: float) -> LimitDecision | None:
        """The server reported its load, with `in_use` requests in flight. Requests that are queued at the server cannot
        be reordered any more, so no more are sent than it will start before the next poll."""
        is_first, self._reports_load = not self._reports_load, True
        preempted, self._preemptions = load.preemptions - self._preemptions, load.preemptions
        answered, self._answered = self._answered, 0
        started, self._running = max(0, answered + load.running - self._running), load.running
        if is_first:  # what ran before is unknown
            return None
        queue = max(_SHORT_QUEUE, int(_QUEUE_RESERVE * started)) if self.queue_ceiling is None else self.queue_ceiling
        if now < self._quiet_until:
            return None
        if preempted > 0:
            self._quiet_until = now + _EPISODE_SECONDS
            self._is_searching = False
            return self._set(int(_AFTER_PREEMPTION * self.current), f"the server preempted {preempted}")
        if load.waiting > queue and answered:  # before any answer, a burst looks like a queue
            enough = max(in_use - (load.waiting - queue), in_use // 2)
            return (
                self._set(enough, f"{load.waiting} queued at the server")
                if enough < _WORTH_CUTTING * self.current
                else None
            )
        is_full = load.kv_usage is not None and load.kv_usage >= _FULL_KV_USAGE
        if in_use >= self.current and 2 * load.waiting <= queue and not is_full:
            return self._set(
                2 * self.current if self._is_searching else self.current * 5 // 4 + 1, "capacity available"
            )
        return None

    def _end_round(self, ended: "_Round") -> LimitDecision | None:
        """A round ended at this limit."""
        usual = self._usual
        if usual is not None and usual.limit < ended.limit:
            if self._is_searching and ended.is_slower_for_nothing(usual):
                self._is_searching = False
                return self._set(usual.limit, "a higher limit only raised latency")
            if ended.is_refused_more(usual):
                return self._back_off(0, "a higher limit was refused more often")
        self._usual = ended if usual is None else ended.after(usual)
        self._highest_good, self._rounds = max(self._highest_good, self.current), self._rounds + 1
        if self._too_high is not None and self.current >= self._too_high:
            if self._rounds < max(_ROUNDS_TO_FORGET, self._rounds_needed):
                return None
            self._too_high, self._rounds_needed, self._is_searching = None, 1, not self.fixed
        return self._set(self._higher(), "capacity available") if self._rounds >= self._rounds_needed else None

    def _higher(self) -> int:
        if self._is_searching:
            return 2 * self.current
        step = 1 if self._too_high is None else max(1, (self._too_high - self.current) // _STEPS)
        return min(2 * self.current, self.current + step)

    def _back_off(self, in_service: int, reason: str) -> LimitDecision | None:
        limit, good = self.current, self._highest_good
        self._is_searching, self._too_high = False, limit
        if good < limit:
            was_last_step = limit <= good + max(1, good // _STEPS)
            self._rounds_needed = min(_MAX_ROUNDS_NEEDED, 2 * self._rounds_needed) if was_last_step else 1
            return self._set(max(good, limit // 2, min(in_service, limit - 1)), reason)
        self._highest_good, self._usual = 0, None
        lower = limit // 2 if self._rounds_needed == 1 else limit * 3 // 4
        self._rounds_needed = min(_MAX_ROUNDS_NEEDED, 2 * self._rounds_needed)
        return self._set(min(max(lower, in_service), limit - 1), reason)

    def _set(self, limit: int, reason: str) -> LimitDecision | None:
        limit = max(1, min(limit, self._max))
        self._begin_round()
        if limit == self.current:
            return None
        self.current, self._rounds = limit, 0
        return LimitDecision(limit, reason)

    def _begin_round(self) -> None:
        self._answers, self._seconds, self._refused = 0, 0.0, 0


class _Round(NamedTuple):
    """A round: as many answers as the limit."""

    limit: int
    answers: float
    seconds: float
    """Mean latency."""
    refused: float

    def after(self, before: "_Round") -> "_Round":
        kept = 0.5 if before.answers + before.refused > _REMEMBERED_REQUESTS else 1.0
        return self._replace(answers=self.answers + kept * before.answers, refused=self.refused + kept * before.refused)

    def is_slower_for_nothing(self, before: "_Round") -> bool:
        """Whether latency rose in proportion to the limit."""
        return before.seconds > 0 and self.seconds / before.seconds >= _NO_GAIN * self.limit / before.limit

    def is_refused_more(self, before: "_Round") -> bool:
        """Whether the refusal rate rose by more than chance explains."""
        sent, sent_before = self.answers + self.refused, before.answers + before.refused
        rose = self.refused / sent - before.refused / sent_before
        rate = (self.refused + before.refused) / (sent + sent_before)
        deviation = sqrt(rate * (1 - rate) * (1 / sent + 1 / sent_before))
        return rose > max(_MIN_RISE, _SIGMAS * deviation)
