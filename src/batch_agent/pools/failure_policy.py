"""What it means for prompts, and for an endpoint, that a request of theirs went wrong."""

from collections.abc import Collection

from ..core.errors import BackendError, ErrorKind
from ..schedule.retry import is_overload_refusal
from .endpoint_state import EndpointState, PendingPrompt, PromptBatch

REFUSED = frozenset({ErrorKind.BAD_REQUEST, ErrorKind.CONTEXT_OVERFLOW})
"""The server has read the list, and would say the same again."""
TAKEN_BACK = BackendError(ErrorKind.CONNECTION, "It was taken back, to be done elsewhere.")
_MAYBE_THEIRS = frozenset({ErrorKind.SERVER, ErrorKind.CONNECTION, ErrorKind.TURN_TIMEOUT, *REFUSED})
"""What prompts may have brought about; not that nobody is there."""
_MOST_FAILURES = 3
"""Requests that may break off under a prompt, at two endpoints where there are two, before it is given up."""
_MOST_FAILURES_AT_ONE = 6
_MOST_WAITS = 10
"""Refusals for want of time before a prompt is given up."""


def is_refusal(batch: PromptBatch, error: BackendError) -> bool:
    """Whether one of its prompts is such that the server takes no list with it."""
    return error.kind in REFUSED and not batch.accepted.is_set()


def record_failure(
    batch: PromptBatch, error: BackendError, lane: EndpointState, places: Collection[int]
) -> list[PendingPrompt]:
    """Notes it for each prompt that is left. Those which are to be given up; `places`: who may be asked."""
    left, is_alone = batch.left, len(batch.asked) == 1
    is_mute = error.kind is ErrorKind.TURN_TIMEOUT and lane.start is None
    for each in left:
        if error is TAKEN_BACK:
            each.avoids.add(batch.place)
            each.moves += 1
        elif is_overload_refusal(error):
            each.waits += 1
        elif error.kind in _MAYBE_THEIRS:
            each.broke_off(batch.place, len(left))
    if error is TAKEN_BACK:
        return []
    if is_mute:  # and will not say more to fewer
        return [each for each in left if each.avoids.issuperset(places)]
    if is_overload_refusal(error):
        return [each for each in left if each.waits >= _MOST_WAITS]
    if error.kind in REFUSED and is_alone:
        return left
    return [each for each in left if is_alone and error.kind in _MAYBE_THEIRS and _is_hopeless(each, places)]


def are_next(error: BackendError) -> bool:
    """Whether these prompts are the next to be sent. Not where nobody took them: then another finds out who is back,
    for it may be theirs after all."""
    return error is TAKEN_BACK or error.kind in _MAYBE_THEIRS


def blames_endpoint(batch: PromptBatch, error: BackendError, lane: EndpointState) -> bool:
    """Not if the same befell these prompts before, or if the endpoint goes on with others."""
    if error.kind is ErrorKind.TURN_TIMEOUT:
        return lane.is_silent(batch)
    return error.kind not in _MAYBE_THEIRS or not any(each.failures for each in batch.asked)


def _is_hopeless(asked: PendingPrompt, places: Collection[int]) -> bool:
    is_shown = len(asked.avoids) > 1 or len(places) == 1
    return asked.failures >= (_MOST_FAILURES if is_shown else _MOST_FAILURES_AT_ONE)
