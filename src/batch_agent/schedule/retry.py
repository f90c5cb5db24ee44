"""What follows a failed request."""

from ..core.errors import BackendError, ErrorKind
from ..core.spec import Retry

_LONGEST_RETRY_AFTER = 300.0
_MOST_DOUBLINGS = 60
_PATIENCE = 10
"""A busy server is not a broken one: a 429 may be retried this many times as often."""


def retry_delay(retry: Retry, error: BackendError, failures: int, jitter: float) -> float | None:
    """Seconds to wait before sending again, or None to give up.

    `failures` counts this one; `jitter` is a number in [0, 1) that spreads agents which failed together.
    The server's own Retry-After is honoured: never sooner, a little later. One of more than minutes is a no."""
    allowed = retry.max_retries * (_PATIENCE if error.kind is ErrorKind.RATE_LIMITED else 1)
    if not error.retryable or failures > allowed:
        return None
    backoff = min(retry.backoff_max, retry.backoff * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    if error.retry_after is None:
        return backoff * (0.5 + jitter / 2)
    return error.retry_after + backoff * jitter if error.retry_after <= _LONGEST_RETRY_AFTER else None
