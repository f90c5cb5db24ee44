"""Retry policy: exponential backoff, and whether and when a failed request is sent again."""

from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.options import Retry

MAX_RETRY_AFTER = 300.0
"""Seconds. A server that asks for a longer wait is not asked again."""
_REFUSAL_RETRY_FACTOR = 10
"""Refusals may be retried this many times as often as other failures: a busy server is not a broken one."""
_OVERLOADED = 529
_SPEEDUP = 5
"""If most other requests succeed, the backoff is this many times shorter. Not for refusals without Retry-After."""
_RANDOM_GROWTH = 4
"""If most other requests succeed, refusals without Retry-After are random: the backoff grows to so many times its first
value. What is refused four times in a row by chance need not wait longer."""
_MAX_DOUBLINGS = 60
"""Keeps the power within the range of a float for any number of failures."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds that double with each failure, up to a ceiling."""

    first: float
    ceiling: float

    def delay(self, failures: int) -> float:
        """Seconds to wait after a failure with `failures` before it."""
        return min(self.ceiling, self.first * 2.0 ** min(failures, _MAX_DOUBLINGS))

    def jittered(self, failures: int, jitter: float) -> float:
        """Half of the delay to the full delay. `jitter` is a random number in [0, 1) that spreads clients apart."""
        return self.delay(failures) * (0.5 + jitter / 2)


def is_overload_refusal(error: BackendError) -> bool:
    """Whether the server is available and refused the request because of load."""
    if error.kind is ErrorKind.RATE_LIMITED:
        return True
    return error.kind is ErrorKind.UNAVAILABLE and (error.retry_after is not None or error.status == _OVERLOADED)


def retry_delay(
    retry: Retry,
    error: BackendError,
    failures: int,
    jitter: float,
    retry_factor: int = 1,
    *,
    others_succeed: bool = False,
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    `failures`: failures of the same sort (refusals, or all others), including this one; at most `retry_factor` times
    the user's limit. `jitter`: a random number in [0, 1) that spreads agents which failed together. `others_succeed`:
    most other requests succeed. The server's Retry-After is honored, plus a little; one of more than five minutes gives
    up."""
    allowed = retry.max_retries * (_REFUSAL_RETRY_FACTOR if is_overload_refusal(error) else retry_factor)
    if not error.retryable or failures > allowed:
        return None
    ceiling = retry.backoff_max if retry_factor == 1 else retry.backoff_max / 3
    if others_succeed and is_overload_refusal(error):
        ceiling = min(ceiling, _RANDOM_GROWTH * retry.backoff)
    is_soon = others_succeed and (error.retry_after is not None or not is_overload_refusal(error))
    first = retry.backoff / _SPEEDUP if is_soon else retry.backoff
    backoff = Backoff(first, ceiling)
    if error.retry_after is None:
        return backoff.jittered(failures - 1, jitter)
    if error.retry_after > MAX_RETRY_AFTER:
        return None
    return error.retry_after + min(backoff.delay(failures - 1), max(1.0, error.retry_after)) * jitter
