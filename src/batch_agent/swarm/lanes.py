"""What is under way at each endpoint, and how fast it gets on. Time is an argument."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp

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


@dataclass(slots=True, eq=False)
class Asked:
    """A prompt on its way to an answer."""

    index: int
    prompt: str
    received: list[str] = field(default_factory=list)
    chars: int = 0
    failures: int = 0
    """How often a connection that it was on broke."""
    moves: int = 0

    def begin_anew(self) -> None:
        self.received.clear()
        self.chars = 0


@dataclass(slots=True, eq=False)
class Batch:
    """A list of prompts in one request."""

    place: int
    asked: Sequence[Asked]
    open: set[int] = field(default_factory=set)
    """Places in the list that have no answer yet."""
    is_taken_back: bool = False
    scope: asyncio.Timeout | None = None
    """Ends the request when it is rescheduled to now."""
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has begun to answer: none of the prompts is one that it refuses."""

    def __post_init__(self) -> None:
        self.open = set(range(len(self.asked)))

    @property
    def left(self) -> list[Asked]:
        return [self.asked[at] for at in sorted(self.open)]

    def progress(self, usual: float) -> float:
        """The share of its open answers that is there, on average."""
        left = self.left
        return sum(asked.chars for asked in left) / (usual * len(left)) if left and usual else 0.0


@dataclass(slots=True)
class Lane:
    """One endpoint: lists under way, and how fast answers get longer while there are any."""

    batches: list[Batch] = field(default_factory=list)
    unfinished: int = 0
    """Prompts without an answer."""
    pace: float | None = None
    """Characters per second of one answer. It hardly depends on how many there are, as long as all are worked on: who
    has less to do does not look slower for it."""
    _since: float = 0.0
    _busy: float = 0.0
    _chars: float = 0.0
    _seconds: float = 0.0
    _prompt_seconds: float = 0.0

    def began(self, batch: Batch, now: float) -> None:
        if not self.batches:
            self._since = now
        self.batches.append(batch)
        self.unfinished += len(batch.open)

    def heard(self, chars: int, now: float) -> None:
        """More of an answer has come."""
        passed, self._since = now - self._since, now
        self._busy += passed
        kept = exp(-passed / _MEMORY)
        self._chars = self._chars * kept + chars
        self._seconds = self._seconds * kept + passed
        self._prompt_seconds = self._prompt_seconds * kept + passed * self.unfinished
        if self._busy >= _SOONEST and self._prompt_seconds > 0:
            self.pace = self._chars / self._prompt_seconds

    def answered(self, batch: Batch, at: int) -> None:
        """The answer at this place of a list is whole."""
        if at in batch.open:
            batch.open.remove(at)
            self.unfinished -= 1

    def ended(self, batch: Batch) -> None:
        self.batches.remove(batch)
        self.unfinished -= len(batch.open)

    def seconds_left(self, usual: float, now: float) -> float | None:
        """Until its answers are all there, if they get as long as is usual; None where nobody knows. One that is
        silent is slower than it was."""
        if not self.batches:
            return 0.0
        silent = now - self._since
        if self.pace is None:
            return None if silent + self._busy < 4 * _SOONEST else float("inf")
        chars = sum(max(usual - asked.chars, _LEAST_LEFT * usual) for batch in self.batches for asked in batch.left)
        pace = self.pace * min(1.0, self._seconds / (self._seconds + max(0.0, silent - _SOONEST)))
        return chars / (self.unfinished * pace) if pace > 0 and self.unfinished else float("inf")


def lane_for(lanes: Sequence[Lane], usable: Iterable[int], count: int, most: int) -> int | None:
    """Where a list of so many prompts is done first; None while that one has enough to do. `most`: prompts that an
    endpoint may have under way."""
    known = [lane.pace for lane in lanes if lane.pace is not None]
    mean = sum(known) / len(known) if known else 1.0
    best = min(usable, key=lambda at: (lanes[at].unfinished + count) / (lanes[at].pace or mean), default=None)
    if best is None or (lanes[best].batches and lanes[best].unfinished + count > most):
        return None  # who waits for the quick one is done before those that the slow one takes
    return best


def to_take_back(lanes: Sequence[Lane], usable: Sequence[int], usual: float, now: float) -> Batch | None:
    """A list that would be done sooner elsewhere: of the endpoint which ends last, the one with the least progress."""
    lefts = {at: left for at, lane in enumerate(lanes) if (left := lane.seconds_left(usual, now)) is not None}
    helpers = [at for at in usable if at in lefts and lanes[at].pace is not None]
    slow = max((at for at in lefts if lanes[at].batches), key=lambda at: lefts[at], default=None)
    quick = min((at for at in helpers if at != slow), key=lambda at: lefts[at], default=None)
    if slow is None or quick is None:
        return None
    movable = [
        batch
        for batch in lanes[slow].batches
        if not batch.is_taken_back and batch.progress(usual) < _MOST_DONE and not any(each.moves for each in batch.left)
    ]
    batch = min(movable, key=lambda each: each.progress(usual), default=None)
    if batch is None:
        return None
    there = lefts[quick] + usual / (lanes[quick].pace or 1.0)
    return batch if there < _WORTH_MOVING * lefts[slow] else None
