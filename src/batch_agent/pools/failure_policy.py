"""Consequences of a failed request for its prompts and for its endpoint."""

from collections.abc import Collection

from ..core.errors import BackendError, ErrorKind
from ..schedule.retry import is_overload_refusal
from .endpoint_state import EndpointState, PendingPrompt, PromptBatch

_REJECTIONS = frozenset({ErrorKind.BAD_REQUEST, ErrorKind.CONTEXT_OVERFLOW})
"""Errors after which the server has read the request, and would reject it again."""
RECLAIMED = BackendError(ErrorKind.CONNECTION, "The request was cancelled, to be sent to another endpoint.")
_PROMPT_MAY_CAUSE = frozenset({ErrorKind.SERVER, ErrorKind.CONNECTION, ErrorKind.TURN_TIMEOUT, *_REJECTIONS})
"""Errors that a prompt may have caused. Those of an unreachable endpoint are not among them, except that a gateway may
report one (502, 503) while the endpoint answers others: an engine may have crashed on the prompt."""
_MAX_FAILURES = 3
"""Number of interrupted requests with a prompt before it fails, on two endpoints if possible."""
_MAX_FAILURES_ON_ONE_ENDPOINT = 6
_MAX_REFUSALS = 10
"""Number of refusals because of load before a prompt fails."""


def is_rejection(batch: PromptBatch, error: BackendError) -> bool:
    """Whether the server rejected the batch because of one of its prompts."""
    return error.kind in _REJECTIONS and not batch.accepted.is_set()


def record_failure(
    batch: PromptBatch, error: BackendError, state: EndpointState, endpoints: Collection[int]
) -> list[PendingPrompt]:
    """Counts the failure for each unanswered prompt, and returns those that fail for good. `endpoints`: endpoints that
    may be used."""
    prompts, is_single = batch.unanswered, len(batch.prompts) == 1
    for prompt in prompts:
        if error is RECLAIMED:
            prompt.avoids.add(batch.endpoint)
            prompt.moves += 1
        elif is_overload_refusal(error):
            prompt.refusals += 1
        elif _prompt_may_cause(batch, error):
            prompt.on_interrupted(batch.endpoint, len(prompts))
    if error is RECLAIMED:
        return []
    if error.kind is ErrorKind.TURN_TIMEOUT and state.start_seconds is None:  # smaller batches would not help
        return [prompt for prompt in prompts if prompt.avoids.issuperset(endpoints)]
    if is_overload_refusal(error):
        return [prompt for prompt in prompts if prompt.refusals >= _MAX_REFUSALS]
    if error.kind in _REJECTIONS and is_single:
        return prompts
    may_fail = is_single and _prompt_may_cause(batch, error)
    return [prompt for prompt in prompts if may_fail and _is_hopeless(prompt, endpoints)]


def goes_first(batch: PromptBatch, error: BackendError) -> bool:
    """Whether the unanswered prompts are sent again before all others. Not if the endpoint was unreachable: other
    prompts should probe it then, in case these are the cause after all."""
    return error is RECLAIMED or _prompt_may_cause(batch, error)


def blames_endpoint(batch: PromptBatch, error: BackendError, state: EndpointState) -> bool:
    """Whether the endpoint is at fault. It is not if these prompts failed before, or if it answers others meanwhile."""
    if error.kind is ErrorKind.TURN_TIMEOUT:
        return state.is_silent(batch)
    return not _prompt_may_cause(batch, error) or not any(prompt.failures for prompt in batch.prompts)


def _prompt_may_cause(batch: PromptBatch, error: BackendError) -> bool:
    is_gateway = error.kind is ErrorKind.UNAVAILABLE and error.status is not None
    return error.kind in _PROMPT_MAY_CAUSE or (is_gateway and batch.was_proven)


def _is_hopeless(prompt: PendingPrompt, endpoints: Collection[int]) -> bool:
    is_confirmed = len(prompt.avoids) > 1 or len(endpoints) == 1
    return prompt.failures >= (_MAX_FAILURES if is_confirmed else _MAX_FAILURES_ON_ONE_ENDPOINT)
