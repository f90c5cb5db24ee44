"""State of each endpoint: prompts and batches in flight, and the speed of its answers. Time is an argument."""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf
from typing import NamedTuple

from ..backends.endpoints.failover import EndpointRejection
from ..schedule.overload_detector import OverloadDetector
from ..schedule.retry import Backoff

_PACE_MEMORY = 2.0
"""Seconds over which the pace is averaged."""
_MIN_PACE_SECONDS = 0.25
"""Seconds of work before the pace is considered reliable."""
_MIN_REMAINING = 0.1
"""Assumed remaining share of an answer that is already longer than the typical one."""
_BATCHES_PER_ENDPOINT = 4
"""Number of batches that an endpoint's share is split into, which are the units in which a slow endpoint gives work
back."""
_MIN_SPLIT_SIZE = 8
"""Minimum size of a batch that is worth splitting further."""
_BACKOFF = Backoff(first=0.5, ceiling=30.0)
"""Pauses of an overloaded endpoint that sends no Retry-After."""


@dataclass(slots=True, eq=False)
class PendingPrompt:
    """A prompt without a response."""

    index: int
    prompt: str
    received: list[str] = field(default_factory=list)
    chars: int = 0
    failures: int = 0
    """Number of interrupted requests with this prompt."""
    avoids: set[int] = field(default_factory=set)
    """Endpoints where a request was interrupted or from which it was reclaimed. Others are preferred."""
    max_batch_size: int = sys.maxsize
    """Halved each time a request is interrupted, because this prompt may be the cause."""
    refusals: int = 0
    """Number of times that an endpoint refused the prompt because of load."""
    moves: int = 0
    """Number of times that it was reclaimed from an endpoint."""
    rejections: list[EndpointRejection] = field(default_factory=list)
    """Rejections by endpoints that received the prompt alone."""
    proven_empty: int = 0
    """Number of empty answers by endpoints that answer other prompts."""

    def reset(self) -> None:
        """Drops the partial answer before the prompt is sent again."""
        self.received.clear()
        self.chars = 0

    def on_interrupted(self, endpoint: int, batch_size: int) -> None:
        """Counts an interrupted request with this many prompts. The first time may be chance."""
        self.failures += 1
        self.avoids.add(endpoint)
        if self.failures > 1:
            self.max_batch_size = max(1, ceil(batch_size / 2))


@dataclass(slots=True, eq=False)
class PromptBatch:
    """The prompts of one request."""

    endpoint: int
    prompts: Sequence[PendingPrompt]
    is_unstreamed: bool = False
    """Whether the answer arrives in one piece, so that its progress is unknown."""
    number: int = 0
    """Sequence number at its endpoint."""
    open: set[int] = field(default_factory=set)
    """Indices of the prompts without a complete answer."""
    sent_at: float = 0.0
    was_proven: bool = False
    """Whether the endpoint answered other requests when this one failed."""
    is_reclaimed: bool = False
    scope: asyncio.Timeout | None = None
    """Ends the request when it is rescheduled to now."""
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to answer, which means that it rejects none of the prompts."""

    def __post_init__(self) -> None:
        self.open = set(range(len(self.prompts)))

    @property
    def unanswered(self) -> list[PendingPrompt]:
        return [self.prompts[at] for at in sorted(self.open)]

    @property
    def moves(self) -> int:
        """The maximum number of times that an unanswered prompt was reclaimed."""
        return max((prompt.moves for prompt in self.unanswered), default=0)

    def progress(self, typical_chars: float) -> float:
        """Mean share that has arrived of the answers to unanswered prompts."""
        prompts = self.unanswered
        if not (prompts and typical_chars):
            return 0.0
        return sum(prompt.chars for prompt in prompts) / (typical_chars * len(prompts))


class EndpointSpeed(NamedTuple):
    """Current speed of an endpoint."""

    rate: float
    """Characters per second of all answers together."""
    answer_rate: float
    """Characters per second of one answer after its beginning."""
    waiting: float
    """Number of prompts that wait at the server."""


@dataclass(slots=True)
class EndpointState:
    """One endpoint: its batches in flight, and the speed at which its answers grow."""

    batches: list[PromptBatch] = field(default_factory=list)
    unfinished: int = 0
    """Number of prompts without a complete answer."""
    running: int = 0
    """Number of prompts whose answers have begun."""
    pace: float | None = None
    """Characters per second of one answer. It hardly depends on the number of answers while the server works on all of
    them, so an endpoint with less to do does not look slower."""
    start_seconds: float | None = None
    """Recent time from sending a batch to the first output."""
    slowest_start: float = 0.0
    last_output_at: float = -inf
    paused_until: float = -inf
    """Until this time, the endpoint is overloaded and gets nothing."""
    _sent: int = 0
    """Number of batches sent so far."""
    _overload: OverloadDetector = field(default_factory=OverloadDetector)
    _pauses: int = 0
    """Number of consecutive pauses without output in between."""
    _since: float = 0.0
    _busy: float = 0.0
    _chars: float = 0.0
    _seconds: float = 0.0
    _prompt_seconds: float = 0.0
    _running_seconds: float = 0.0

    def on_sent(self, batch: PromptBatch, now: float) -> None:
        if not self.batches:
            self._since = now
        batch.sent_at = now
        self._sent += 1
        batch.number = self._sent
        self.batches.append(batch)
        self.unfinished += len(batch.open)

    def on_accepted(self, batch: PromptBatch, now: float) -> None:
        """Handles the beginning of the server's response."""
        seconds = now - batch.sent_at
        self.start_seconds = seconds if self.start_seconds is None else (self.start_seconds + seconds) / 2
        self.slowest_start = max(self.slowest_start, seconds)
        batch.accepted.set()

    def on_begun(self) -> None:
        """Handles the first characters of an answer."""
        self.running += 1

    def on_output(self, chars: int, now: float) -> None:
        """Handles the growth of an answer."""
        self.last_output_at = now
        self._pauses = 0
        passed, self._since = now - self._since, now
        self._busy += passed
        kept = exp(-passed / _PACE_MEMORY)
        self._chars = self._chars * kept + chars
        self._seconds = self._seconds * kept + passed
        self._prompt_seconds = self._prompt_seconds * kept + passed * self.unfinished
        self._running_seconds = self._running_seconds * kept + passed * self.running
        if self._busy >= _MIN_PACE_SECONDS and self._prompt_seconds > 0:
            self.pace = self._chars / self._prompt_seconds

    def on_answered(self, batch: PromptBatch, index: int) -> None:
        """Handles the completion of the answer to the prompt with this index in the batch."""
        if index in batch.open:
            batch.open.remove(index)
            self.unfinished -= 1
            self.running -= batch.prompts[index].chars > 0

    def on_ended(self, batch: PromptBatch) -> None:
        self.batches.remove(batch)
        self.unfinished -= len(batch.open)
        self.running -= sum(prompt.chars > 0 for prompt in batch.unanswered)

    def on_refused(self, batch: PromptBatch, retry_after: float | None, now: float) -> bool:
        """Handles a refusal. Returns whether the endpoint is overloaded: it refuses most batches, and is paused."""
        is_first = now >= self.paused_until  # otherwise another batch has already started this pause
        if not (self._overload.is_relevant(batch.number) and self._overload.is_overloaded(batch.number, self._sent)):
            return not is_first
        if is_first:
            self.paused_until = now + refusal_delay(self._pauses, retry_after)
            self._pauses += 1
        return True

    def is_silent(self, batch: PromptBatch) -> bool:
        """Whether the endpoint has sent no output since it received this batch."""
        return self.last_output_at <= batch.sent_at

    def seconds_left(self, typical_chars: float, now: float) -> float | None:
        """Time until all answers are complete, if they reach the typical length; None if the pace is unknown. A silent
        endpoint is assumed to have become slower."""
        if not self.batches:
            return 0.0
        if self.pace is None:
            return None
        silent = now - self._since
        chars = self.chars_left(typical_chars)
        pace = self.pace * min(1.0, self._seconds / (self._seconds + max(0.0, silent - _MIN_PACE_SECONDS)))
        return chars / (self.unfinished * pace) if pace > 0 and self.unfinished else float("inf")

    @property
    def longest_unfinished(self) -> int:
        """Length of the longest incomplete answer, in characters."""
        return max((prompt.chars for batch in self.batches for prompt in batch.unanswered), default=0)

    @property
    def is_pace_steady(self) -> bool:
        """Whether the pace was measured for as long as the time over which it is averaged."""
        return self._busy >= _PACE_MEMORY

    def chars_left(self, typical_chars: float) -> float:
        """Characters missing from the answers, if they reach the typical length."""
        return sum(
            max(typical_chars - prompt.chars, _MIN_REMAINING * typical_chars)
            for batch in self.batches
            for prompt in batch.unanswered
        )

    def speed(self) -> EndpointSpeed | None:
        """The current speed; None while unknown. All values are averages, so answers that begin or end together change
        nothing at once."""
        if not self.pace or not self._running_seconds:
            return None
        waiting = max(0.0, self.unfinished - self._running_seconds / self._seconds)
        return EndpointSpeed(self._chars / self._seconds, self._chars / self._running_seconds, waiting)

    def answer_seconds(self, typical_chars: float) -> float | None:
        """Time for an answer of this length; None if unknown. An idle endpoint that was never busy long enough for a
        pace answers within that time."""
        if self.pace:
            return typical_chars / self.pace
        return None if self.start_seconds is None or self.batches else self.start_seconds + _MIN_PACE_SECONDS


def refusal_delay(attempt: int, retry_after: float | None) -> float:
    """Seconds to wait after a refusal that follows `attempt` others."""
    return _BACKOFF.delay(attempt) if retry_after is None else min(retry_after, _BACKOFF.ceiling)


def fair_batch_size(prompts: int, endpoints: int) -> int:
    """Number of prompts per batch, given the numbers of prompts and endpoints."""
    each = ceil(prompts / max(1, endpoints))
    parts = _BATCHES_PER_ENDPOINT if each >= _BATCHES_PER_ENDPOINT * _MIN_SPLIT_SIZE else 1
    if parts == 1 and each >= 2 * _MIN_SPLIT_SIZE:
        parts = 2
    return max(1, ceil(each / parts))


def choose_endpoint(states: Sequence[EndpointState], usable: Iterable[int], count: int, max_prompts: int) -> int | None:
    """The endpoint that would finish a batch of `count` prompts first; None while it has no room for half of it.
    `max_prompts`: maximum number of prompts in flight at an endpoint."""
    known = [state.pace for state in states if state.pace is not None]
    mean = sum(known) / len(known) if known else 1.0
    best = min(usable, key=lambda at: (states[at].unfinished + count) / (states[at].pace or mean), default=None)
    if best is None or (states[best].batches and states[best].unfinished + ceil(count / 2) > max_prompts):
        return None  # waiting for the fast endpoint is quicker than using a slow one with room
    return best
