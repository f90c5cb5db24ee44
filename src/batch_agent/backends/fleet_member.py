"""One endpoint of a fleet, opened when it is needed."""

import asyncio
from collections.abc import Awaitable, Callable

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.interfaces import Backend

OPENING = 15.0
"""Seconds in which an endpoint must show what it is, once another one has."""

Open = Callable[[str], Awaitable[Backend]]


class Member:
    """One endpoint. One that is not there yet is opened when it gets its first request."""

    def __init__(self, url: str, open_it: Open, backend: Backend | None) -> None:
        self.url = url
        self.backend = backend
        self.is_missed = backend is None
        """It was said to be down."""
        self.trouble = ""
        """What it said, or what was said of it, when it last failed."""
        self._open = open_it
        self._opening = asyncio.Lock()
        self._failures = 0
        """Attempts to open it that failed."""
        self._failure: BackendError | None = None
        """The last one."""

    async def opened(self, model: str) -> Backend:
        """Requests that wait for the same attempt share its failure. Raises BackendError."""
        failures = self._failures
        async with self._opening:
            if self.backend is None and self._failure is not None and self._failures > failures:
                raise self._failure
            if self.backend is None:
                try:
                    self.backend = await self._attempt(model)
                except BackendError as error:
                    self._failures, self._failure = self._failures + 1, error
                    raise
            return self.backend

    async def _attempt(self, model: str) -> Backend:
        try:
            async with asyncio.timeout(OPENING):
                found = await self._open(self.url)
        except TimeoutError as error:
            raise late() from error
        except SpecError as error:
            raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error
        if found.traits.model != model:
            await found.aclose()
            raise BackendError(ErrorKind.NOT_FOUND, f"{self.url} serves {found.traits.model!r}, not {model!r}.")
        return found


def late() -> BackendError:
    return BackendError(ErrorKind.UNAVAILABLE, f"It does not answer within {OPENING:g} s.")
