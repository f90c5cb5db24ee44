"""Deadline of a run: one moment at which everything that it waits for ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from ..core.errors import BackendError, ErrorKind, RunStopped


class RunDeadline:
    """Counts from when it is made."""

    def __init__(self, seconds: float | None) -> None:
        """None: for ever."""
        self._seconds = seconds
        self.at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        """On the loop's clock."""

    @property
    def has_passed(self) -> bool:
        return self.at is not None and asyncio.get_running_loop().time() >= self.at

    @property
    def error(self) -> BackendError:
        """What fails because of it."""
        return BackendError(ErrorKind.BUDGET, f"The run's deadline of {self._seconds:g} s has passed.")

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Ends what is inside at the deadline. Raises BackendError then."""
        if self.at is None:
            yield
            return
        clock = asyncio.timeout_at(self.at)
        try:
            async with clock:
                yield
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise self.error from error


@contextmanager
def starting(deadline: RunDeadline) -> Iterator[None]:
    """Raises RunStopped where the deadline comes before the run can begin."""
    try:
        yield
    except BackendError as error:
        if error.kind is not ErrorKind.BUDGET or not deadline.has_passed:
            raise
        message = f"{error} Its inputs, its backend or its tools were not ready by then."
        raise RunStopped(error.kind, message) from error
