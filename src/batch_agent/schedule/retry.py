"""What follows a failed request."""

from ..core.errors import BackendError, ErrorKind
from ..core.options import Retry
from .backoff import Backoff

_LONGEST_RETRY_AFTER = 300.0
_PATIENCE = 10
"""A busy server is not a broken one: a 429 may be retried this many times as often."""
_OVERLOADED = 529
_SOONER = 5
"""A server that answers the others is there for this one too: the backoff is so many times shorter. Not that of one
which sends requests away without saying for how long."""


def asks_for_less(error: BackendError) -> bool:
    """Whether the server is there, and only wants fewer requests for a while."""
    if error.kind is ErrorKind.RATE_LIMITED:
        return True
    return error.kind is ErrorKind.UNAVAILABLE and (error.retry_after is not None or error.status == _OVERLOADED)


def retry_delay(
    retry: Retry, error: BackendError, failures: int, jitter: float, patience: int = 1, *, is_lone: bool = False
) -> float | None:
    """Seconds to wait before sending again, or None to give up.

    `failures` counts this one, of those of its sort: refusals by a busy server, or all others. It may be `patience`
    times what the user said; `jitter` is a number in [0, 1) that spreads agents which failed together; `is_lone`: most
    others are answered. The server's own Retry-After is honoured: never sooner, a little later. One of more than
    minutes is a no."""
    allowed = retry.max_retries * (_PATIENCE if asks_for_less(error) else patience)
    if not error.retryable or failures > allowed:
        return None
    ceiling = retry.backoff_max if patience == 1 else retry.backoff_max / 3
    is_soon = is_lone and (error.retry_after is not None or not asks_for_less(error))
    first = retry.backoff / _SOONER if is_soon else retry.backoff
    backoff = Backoff(first, ceiling)
    if error.retry_after is None:
        return backoff.jittered(failures - 1, jitter)
    if error.retry_after > _LONGEST_RETRY_AFTER:
        return None
    return error.retry_after + min(backoff.delay(failures - 1), max(1.0, error.retry_after)) * jitter
