"""One endpoint of a fleet, opened when it is needed.

What several endpoints can do together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.protocols import Backend, Traits

OPENING = 15.0
"""Seconds in which an endpoint must show what it is, once another one has."""

Open = Callable[[str], Awaitable[Backend]]


class PoolEndpoint:
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
            raise delayed_error() from error
        except SpecError as error:
            raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error
        if found.traits.model != model:
            await found.aclose()
            raise BackendError(ErrorKind.NOT_FOUND, f"{self.url} serves {found.traits.model!r}, not {model!r}.")
        return found


def delayed_error() -> BackendError:
    return BackendError(ErrorKind.UNAVAILABLE, f"It does not answer within {OPENING:g} s.")


def combined_traits(urls: Sequence[str], each: Sequence[Traits | None]) -> Traits:
    """What all can do, of those that are there. Raises SpecError for different models."""
    known = [(url, traits) for url, traits in zip(urls, each, strict=True) if traits is not None]
    first_url, first = known[0]
    for url, traits in known:
        if traits.model != first.model:
            raise SpecError(
                f"The endpoints must serve the same model: {first_url} serves {first.model!r}, {url} {traits.model!r}. "
                "Name one that all serve with model=..., or run each on its own."
            )
    all_traits = [traits for _, traits in known]
    return replace(
        first,
        native_tools=all(traits.native_tools for traits in all_traits),
        json_schema=all(traits.json_schema for traits in all_traits),
        json_schema_with_tools=all(traits.json_schema_with_tools for traits in all_traits),
        inflight=sum(traits.inflight for traits in all_traits) * len(urls) // len(known),
        fixed_inflight=all(traits.fixed_inflight for traits in all_traits),
        context_tokens=_least([traits.context_tokens for traits in all_traits]),
        kv_tokens=_sum([traits.kv_tokens for traits in all_traits]),
        kv_running_tokens=_sum([traits.kv_running_tokens for traits in all_traits]),
        strict_schema=any(traits.strict_schema for traits in all_traits),
        has_agent_sessions=True,  # at least where each agent was
        detected=(f"{len(known)} of {len(urls)} endpoints", *first.detected),
    )


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)
