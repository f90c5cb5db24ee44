"""Stragglers: batches that another endpoint would finish sooner. Time is an argument."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from .endpoint_state import EndpointState, PromptBatch

_LATE = 1.1
"""An endpoint is late if a further prompt takes this many times as long there as elsewhere. More than 1, because speeds
are measured."""
_BARELY_BEGUN = 0.1
"""Maximum share of its answers up to which a batch is moved while further prompts are queued."""
_WORTH_MOVING = 0.6
"""A batch is reclaimed if another endpoint would finish it within this share of the remaining time here."""
_MAX_PROGRESS = 0.5
"""Maximum progress of a reclaimed batch, because reclaiming loses what was generated."""
_MIN_SILENT_SECONDS = 1.0
_SILENT_FACTOR = 5.0
"""An endpoint is silent if it takes this many times as long as the others to begin an answer, and at least
`_MIN_SILENT_SECONDS`."""
_MIN_UNSTREAMED_SECONDS = 5.0
"""Seconds that an unstreamed answer may always take."""


class AnswerLengths:
    """Lengths of a call's complete answers in characters, from which the lengths of the others are estimated."""

    def __init__(self) -> None:
        self._count = 0
        self._chars = 0
        self._longest = 0

    def add(self, chars: int) -> None:
        self._count += 1
        self._chars += chars
        self._longest = max(self._longest, chars)

    def typical(self, longest_unfinished: int, unanswered: int) -> float:
        """Expected length of an answer. Short answers finish first, so the longest one in progress counts too, and
        twice while few answers are complete."""
        mean = self._chars / self._count if self._count else 0.0
        share = self._count / max(1, self._count + unanswered)
        return max(1.0, mean, (2.0 - share) * longest_unfinished)

    def evenness(self, longest_unfinished: int) -> float:
        """The mean length as a share of the longest one; 1 while no answer is complete."""
        longest = max(self._longest, longest_unfinished)
        return self._chars / (self._count * longest) if self._chars else 1.0


def late_endpoints(
    states: Sequence[EndpointState], usable: Collection[int], queued: int, evenness: float
) -> dict[int, float]:
    """Endpoints where a further prompt would be answered later than by waiting for the others, each with the time there
    as a multiple of the time elsewhere. `queued`: number of unsent prompts. `evenness`: the mean length of an answer as
    a share of the longest. Times are in longest answers, so their length cancels out."""
    speeds = {at: speed for at in usable if (speed := states[at].speed()) is not None}
    if len(speeds) < 2:
        return {}
    waiting = queued + sum(speed.waiting for speed in speeds.values())
    wait = evenness * waiting / sum(speed.rate for speed in speeds.values())
    elsewhere = wait + 1 / max(speed.answer_rate for speed in speeds.values())
    found = {
        at: (evenness * each.waiting / each.rate + 1 / each.answer_rate) / elsewhere for at, each in speeds.items()
    }
    return {at: times for at, times in found.items() if times > _LATE}


def find_early(
    states: Sequence[EndpointState], late: Mapping[int, float], own: Iterable[PromptBatch], typical_chars: float
) -> list[PromptBatch]:
    """The last batch at each late endpoint, if moving it loses (almost) nothing."""
    last = {
        batch.endpoint: batch
        for batch in own
        if batch.endpoint in late and not (batch.is_unstreamed or batch.moves or batch.is_reclaimed)
    }
    return [
        batch
        for at, batch in last.items()
        if not batch.accepted.is_set()
        or (
            _WORTH_MOVING * late[at] > 1.0
            and states[at].is_pace_steady
            and batch.progress(typical_chars) < _BARELY_BEGUN
        )
    ]


def find_stragglers(
    states: Sequence[EndpointState],
    usable: Sequence[int],
    own: Collection[PromptBatch],
    typical_chars: float,
    now: float,
) -> list[PromptBatch]:
    """The `own` batches that another endpoint would finish sooner: all batches of a silent endpoint, otherwise the
    batch with the least progress at the endpoint that would finish last."""
    if silent := _silent_batches(states, usable, own, now):
        return silent
    own = [batch for batch in own if not batch.is_unstreamed]
    remaining = {
        at: left for at, state in enumerate(states) if (left := state.seconds_left(typical_chars, now)) is not None
    }
    helpers = [at for at in usable if at in remaining and states[at].answer_seconds(typical_chars) is not None]
    slow = max(
        {batch.endpoint for batch in own if batch.endpoint in remaining}, key=lambda at: remaining[at], default=None
    )
    quick = min((at for at in helpers if at != slow), key=lambda at: remaining[at], default=None)
    if slow is None or quick is None:
        return []
    elsewhere = remaining[quick] + (states[quick].answer_seconds(typical_chars) or 0.0)
    if elsewhere >= _WORTH_MOVING * remaining[slow]:
        return []
    movable = [
        batch
        for batch in states[slow].batches
        if batch in own and not batch.is_reclaimed and not batch.moves and batch.progress(typical_chars) < _MAX_PROGRESS
    ]
    return sorted(movable, key=lambda batch: batch.progress(typical_chars))[:1]


def _silent_batches(
    states: Sequence[EndpointState], usable: Sequence[int], own: Collection[PromptBatch], now: float
) -> list[PromptBatch]:
    starts = [state.start_seconds for state in states if state.start_seconds is not None]
    streamed = max(_MIN_SILENT_SECONDS, _SILENT_FACTOR * max(starts, default=0.0))
    unstreamed = max(_MIN_UNSTREAMED_SECONDS, _SILENT_FACTOR * max(state.slowest_start for state in states))
    return [
        batch
        for batch in own
        if not batch.is_reclaimed
        and _is_late(batch, states, now, unstreamed if batch.is_unstreamed else streamed)
        and any(states[at].start_seconds is not None for at in usable if at != batch.endpoint)
    ]


def _is_late(batch: PromptBatch, states: Sequence[EndpointState], now: float, limit: float) -> bool:
    if now - batch.sent_at <= limit:
        return False
    if batch.is_unstreamed:  # output of other batches says nothing: this one may hang, or merely be long
        return not batch.moves
    return states[batch.endpoint].is_silent(batch) and batch.moves < len(states)
