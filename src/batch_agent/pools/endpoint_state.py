"""What is under way at each endpoint, and how fast it gets on. Time is an argument."""

import asyncio
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf

from ..backends.failover import EndpointRejection
from ..schedule.backoff import Backoff
from ..schedule.overload_detector import OverloadDetector

_MEMORY = 2.0
"""Seconds over which a speed is averaged."""
_SOONEST = 0.25
"""Seconds of work before a speed is believed."""
_WORTH_MOVING = 0.6
"""Work is taken from an endpoint if it is done elsewhere in this share of the time that it would take here."""
_MOST_DONE = 0.5
"""What was generated so far is lost: work is not moved that is half done."""
_LEAST_LEFT = 0.1
"""Of an answer of usual length, for one that is already longer."""
_LISTS_EACH = 4
"""Lists of an endpoint: what it turns out to be slow with can be taken back in so many parts."""
_WORTH_LISTS = 8
"""Prompts in a list that is worth to be split further."""
_BACKOFF = Backoff(first=0.5, ceiling=30.0)
"""For an endpoint that has too much to do and does not say for how long."""
_SOON = 1.0
_LATE = 5.0
"""Times as long as others take to begin an answer, and no less than `_SOON` seconds: one that says nothing for longer
does not get to it."""
_LONG = 5.0
"""Seconds that an answer which comes whole may take, whatever others take."""


@dataclass(slots=True, eq=False)
class PendingPrompt:
    """A prompt on its way to an answer."""

    index: int
    prompt: str
    received: list[str] = field(default_factory=list)
    chars: int = 0
    failures: int = 0
    """How often a request that it was in broke off."""
    avoids: set[int] = field(default_factory=set)
    """Endpoints where that was, or which it was taken from: others come first."""
    company: int = sys.maxsize
    """Prompts in a list that it may be in: half as many each time that one breaks off, for it may be why."""
    waits: int = 0
    """How often an endpoint had no time for it."""
    moves: int = 0
    refusals: list[EndpointRejection] = field(default_factory=list)
    """By endpoints that it was sent to alone."""

    def begin_anew(self) -> None:
        self.received.clear()
        self.chars = 0

    def broke_off(self, place: int, company: int) -> None:
        """So did a request with so many prompts. The first time may have been chance."""
        self.failures += 1
        self.avoids.add(place)
        if self.failures > 1:
            self.company = max(1, ceil(company / 2))


@dataclass(slots=True, eq=False)
class PromptBatch:
    """A list of prompts in one request."""

    place: int
    asked: Sequence[PendingPrompt]
    is_whole: bool = False
    """Its answer comes all at once: how far it is cannot be seen."""
    number: int = 0
    """Of those that its endpoint was sent."""
    open: set[int] = field(default_factory=set)
    """Places in the list that have no answer yet."""
    began_at: float = 0.0
    is_taken_back: bool = False
    scope: asyncio.Timeout | None = None
    """Ends the request when it is rescheduled to now."""
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has begun to answer: none of the prompts is one that it refuses."""

    def __post_init__(self) -> None:
        self.open = set(range(len(self.asked)))

    @property
    def left(self) -> list[PendingPrompt]:
        return [self.asked[at] for at in sorted(self.open)]

    @property
    def moves(self) -> int:
        """How often one of the prompts that are left was taken from an endpoint."""
        return max((each.moves for each in self.left), default=0)

    def progress(self, usual: float) -> float:
        """The share of its open answers that is there, on average."""
        left = self.left
        return sum(asked.chars for asked in left) / (usual * len(left)) if left and usual else 0.0


@dataclass(slots=True)
class EndpointState:
    """One endpoint: lists under way, and how fast answers get longer while there are any."""

    batches: list[PromptBatch] = field(default_factory=list)
    unfinished: int = 0
    """Prompts without an answer."""
    pace: float | None = None
    """Characters per second of one answer. It hardly depends on how many there are, as long as all are worked on: who
    has less to do does not look slower for it."""
    start: float | None = None
    """Seconds before it begins to answer a list, lately."""
    slowest_start: float = 0.0
    heard_at: float = -inf
    rests_until: float = -inf
    """It has asked to be left alone until then."""
    _sent: int = 0
    """Lists, so far."""
    _tests: OverloadDetector = field(default_factory=OverloadDetector)
    _refusals: int = 0
    """Times in a row that it refused most."""
    _since: float = 0.0
    _busy: float = 0.0
    _chars: float = 0.0
    _seconds: float = 0.0
    _prompt_seconds: float = 0.0

    def began(self, batch: PromptBatch, now: float) -> None:
        if not self.batches:
            self._since = now
        batch.began_at = now
        self._sent += 1
        batch.number = self._sent
        self.batches.append(batch)
        self.unfinished += len(batch.open)

    def accepted(self, batch: PromptBatch, now: float) -> None:
        """It begins to answer."""
        seconds = now - batch.began_at
        self.start = seconds if self.start is None else (self.start + seconds) / 2
        self.slowest_start = max(self.slowest_start, seconds)
        batch.accepted.set()

    def heard(self, chars: int, now: float) -> None:
        """More of an answer has come."""
        self.heard_at = now
        self._refusals = 0
        passed, self._since = now - self._since, now
        self._busy += passed
        kept = exp(-passed / _MEMORY)
        self._chars = self._chars * kept + chars
        self._seconds = self._seconds * kept + passed
        self._prompt_seconds = self._prompt_seconds * kept + passed * self.unfinished
        if self._busy >= _SOONEST and self._prompt_seconds > 0:
            self.pace = self._chars / self._prompt_seconds

    def answered(self, batch: PromptBatch, at: int) -> None:
        """The answer at this place of a list is whole."""
        if at in batch.open:
            batch.open.remove(at)
            self.unfinished -= 1

    def ended(self, batch: PromptBatch) -> None:
        self.batches.remove(batch)
        self.unfinished -= len(batch.open)

    def refused(self, batch: PromptBatch, retry_after: float | None, now: float) -> bool:
        """It has no time for this list. Whether it has none for anybody: it refuses most, and rests for a while."""
        is_first = now >= self.rests_until  # or else it has said so already, to another list
        if not (self._tests.is_relevant(batch.number) and self._tests.is_overloaded(batch.number, self._sent)):
            return not is_first
        if is_first:
            self.rests_until = now + pause(self._refusals, retry_after)
            self._refusals += 1
        return True

    def is_silent(self, batch: PromptBatch) -> bool:
        """Whether nothing at all was heard since it has this list."""
        return self.heard_at <= batch.began_at

    def seconds_left(self, usual: float, now: float) -> float | None:
        """Until its answers are all there, if they get as long as is usual; None where nobody knows. One that is
        silent is slower than it was."""
        if not self.batches:
            return 0.0
        if self.pace is None:
            return None
        silent = now - self._since
        chars = sum(max(usual - asked.chars, _LEAST_LEFT * usual) for batch in self.batches for asked in batch.left)
        pace = self.pace * min(1.0, self._seconds / (self._seconds + max(0.0, silent - _SOONEST)))
        return chars / (self.unfinished * pace) if pace > 0 and self.unfinished else float("inf")


def pause(before: int, retry_after: float | None) -> float:
    """Seconds to wait after a refusal, and so many before it."""
    return _BACKOFF.delay(before) if retry_after is None else min(retry_after, _BACKOFF.ceiling)


def fair_list(count: int, places: int) -> int:
    """Prompts in a list, of so many for so many endpoints."""
    each = ceil(count / max(1, places))
    parts = _LISTS_EACH if each >= _LISTS_EACH * _WORTH_LISTS else 2 if each >= 2 * _WORTH_LISTS else 1
    return max(1, ceil(each / parts))


def choose_endpoint(lanes: Sequence[EndpointState], usable: Iterable[int], count: int, most: int) -> int | None:
    """Where a list of so many prompts is done first; None while that one has no room for half of it. `most`: prompts
    that an endpoint may have under way."""
    known = [lane.pace for lane in lanes if lane.pace is not None]
    mean = sum(known) / len(known) if known else 1.0
    best = min(usable, key=lambda at: (lanes[at].unfinished + count) / (lanes[at].pace or mean), default=None)
    if best is None or (lanes[best].batches and lanes[best].unfinished + ceil(count / 2) > most):
        return None  # who waits for the quick one is done before those that the slow one takes
    return best


def find_stragglers(
    lanes: Sequence[EndpointState], usable: Sequence[int], own: Collection[PromptBatch], usual: float, now: float
) -> list[PromptBatch]:
    """Of `own` lists those that would be done sooner elsewhere: all that an endpoint says nothing to, else of the
    endpoint which ends last the one with the least progress."""
    if silent := _unheard(lanes, usable, own, now):
        return silent
    own = [batch for batch in own if not batch.is_whole]
    lefts = {at: left for at, lane in enumerate(lanes) if (left := lane.seconds_left(usual, now)) is not None}
    helpers = [at for at in usable if at in lefts and lanes[at].pace is not None]
    slow = max({batch.place for batch in own if batch.place in lefts}, key=lambda at: lefts[at], default=None)
    quick = min((at for at in helpers if at != slow), key=lambda at: lefts[at], default=None)
    if slow is None or quick is None:
        return []
    there = lefts[quick] + usual / (lanes[quick].pace or 1.0)
    if there >= _WORTH_MOVING * lefts[slow]:
        return []
    movable = [
        batch
        for batch in lanes[slow].batches
        if batch in own and not batch.is_taken_back and not batch.moves and batch.progress(usual) < _MOST_DONE
    ]
    return sorted(movable, key=lambda each: each.progress(usual))[:1]


def _unheard(
    lanes: Sequence[EndpointState], usable: Sequence[int], own: Collection[PromptBatch], now: float
) -> list[PromptBatch]:
    starts = [lane.start for lane in lanes if lane.start is not None]
    late = max(_SOON, _LATE * max(starts, default=0.0))
    late_whole = max(_LONG, _LATE * max(lane.slowest_start for lane in lanes))
    return [
        batch
        for batch in own
        if not batch.is_taken_back
        and _is_unheard(batch, lanes, now, late_whole if batch.is_whole else late)
        and any(lanes[at].start is not None for at in usable if at != batch.place)
    ]


def _is_unheard(batch: PromptBatch, lanes: Sequence[EndpointState], now: float, late: float) -> bool:
    if now - batch.began_at <= late:
        return False
    if batch.is_whole:  # others of the same endpoint may be done: this one may still hang, or only be long
        return not batch.moves
    return lanes[batch.place].is_silent(batch) and batch.moves < len(lanes)
