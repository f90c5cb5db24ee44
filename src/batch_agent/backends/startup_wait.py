"""Waiting for a server before a run: an attempt is repeated a few times, and the user is told what is waited for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .. import aio
from ..core.errors import BackendError, ErrorKind, WebPage
from ..schedule.retry import Backoff

T = TypeVar("T")
Notify = Callable[[str], None]

_NOTICE_AFTER = 1.0
_MAX_ATTEMPTS = 4
_BACKOFF = Backoff(first=0.5, ceiling=10.0)
_MAX_DROPS = 1
"""Repeated attempts at a server that has never answered: it may be something else, or expect TLS."""
_SOON = 5.0
"""Seconds in which a connection is dropped, rather than silent."""


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    name: str = "the server",
    timeout: float = 0.0,
    notify: Notify | None = None,
    *,
    has_answered: bool = False,
) -> T:
    """Repeats an attempt a few times while the server is busy or drops connections. A server that is unreachable is not
    waited for. After a second, `notify` is called with what is waited for and how long that may still take. `timeout`:
    of an attempt. `has_answered`: the server has answered another request."""
    wait = _Wait(f"Waiting for {name}, for at most {timeout:.0f} s.", notify)
    max_drops = _MAX_ATTEMPTS if has_answered else _MAX_DROPS
    try:
        for attempt_number in range(_MAX_ATTEMPTS):
            began = aio.now()
            try:
                return await attempt()
            except BackendError as error:
                is_busy = error.retryable and error.status is not None and not isinstance(error, WebPage)
                is_drop = error.kind is ErrorKind.CONNECTION and error.status is None and aio.now() - began < _SOON
                max_drops -= is_drop
                if not (is_busy or (is_drop and max_drops >= 0)) or attempt_number == _MAX_ATTEMPTS - 1:
                    raise
                delays = [_delay(error, number) for number in range(attempt_number, _MAX_ATTEMPTS - 1)]
                wait.explain(error, sum(delays))
                await asyncio.sleep(delays[0])
        raise AssertionError("unreachable")
    finally:
        wait.end()


def _delay(error: BackendError, failures: int) -> float:
    return min(_BACKOFF.ceiling, error.retry_after or _BACKOFF.delay(failures))


class _Wait:
    """Notice of a wait, given once."""

    def __init__(self, text: str, notify: Notify | None) -> None:
        self._text = text
        self._until: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = None if notify is None else self._loop.call_later(_NOTICE_AFTER, self._give, notify)

    def explain(self, error: BackendError, seconds: float) -> None:
        """The server is asked again for so many seconds."""
        self._text, self._until = str(error), self._loop.time() + seconds

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give(self, notify: Notify) -> None:
        if self._until is not None:
            rest = max(1.0, self._until - self._loop.time())
            self._text = f"{self._text.removesuffix('.')}. It is asked again for {rest:.0f} s."
        notify(self._text)
