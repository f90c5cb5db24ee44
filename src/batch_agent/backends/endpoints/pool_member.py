"""Endpoint of an endpoint pool, connected when it is needed, and the traits that all endpoints share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from ...core.errors import BackendError, ErrorKind, SpecError
from ...core.protocols.backend import Backend, PaceKind, ReportsRateLimits, ServiceLimit, Traits
from .failover import AnswerRecord

START_TIMEOUT = 5.0
"""Seconds in which an endpoint must respond to the probe at the start of a run, once another one has: the run waits."""
OPEN_TIMEOUT = 15.0
"""The same later, when requests go to the other endpoints meanwhile."""

OpenBackend = Callable[[str], Awaitable[Backend]]


class PoolEndpoint:
    """One endpoint. An endpoint that was unreachable at the start is connected when it gets its first request."""

    def __init__(self, url: str, open_backend: OpenBackend, backend: Backend | None) -> None:
        self.url = url
        self.backend = backend
        self.is_down = backend is None
        """Whether users were notified that it is down."""
        self.last_error = ""
        """Message of its last failure."""
        self.record = AnswerRecord()
        self.has_left = False
        """Whether it was drained, and its connections are closed."""
        self.on_limits: Callable[[Mapping[PaceKind, ServiceLimit]], None] | None = None
        """Called with the limits per minute that its responses report."""
        self._open_backend = open_backend
        self._open_lock = asyncio.Lock()
        self._failed_attempts = 0
        """Failed attempts to connect."""
        self._open_error: BackendError | None = None
        """Error of the last failed attempt."""

    async def get_backend(self, needed: Traits) -> Backend:
        """The connected backend, which has these traits. Requests that wait for the same attempt share its error.
        Raises BackendError."""
        attempts_before = self._failed_attempts
        async with self._open_lock:
            if self.backend is None and self._open_error is not None and self._failed_attempts > attempts_before:
                raise self._open_error
            if self.backend is None:
                try:
                    self.backend = await connect_member(self.url, self._open_backend, needed)
                    self.observe_limits()
                except BackendError as error:
                    self._failed_attempts, self._open_error = self._failed_attempts + 1, error
                    raise
            return self.backend

    def leave(self) -> Backend | None:
        """It was drained. Returns the backend that is to be closed."""
        backend, self.backend = self.backend, None
        self.has_left, self.is_down = True, False
        return backend

    def rejoin(self, backend: Backend) -> None:
        """It is back, after it had left."""
        self.backend, self.has_left, self.last_error, self.record = backend, False, "", AnswerRecord()

    def observe_limits(self) -> None:
        if self.on_limits is not None and isinstance(self.backend, ReportsRateLimits):
            self.backend.observe_rate_limits(self.on_limits)


async def connect_member(url: str, open_backend: OpenBackend, needed: Traits) -> Backend:
    """Connects to an endpoint that must have the traits of the others. Raises BackendError."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT):
            backend = await open_backend(url)
    except TimeoutError as error:
        raise timeout_error(OPEN_TIMEOUT) from error
    except SpecError as error:
        raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error.__cause__
    try:
        _check_fits(url, needed, backend.traits)
    except BackendError:
        await backend.aclose()
        raise
    return backend


def _check_fits(url: str, needed: Traits, found: Traits) -> None:
    """Raises BackendError for an endpoint that cannot answer what the others can."""
    if found.model != needed.model:
        raise BackendError(ErrorKind.NOT_FOUND, f"{url} serves {found.model!r}, not {needed.model!r}.")
    if lacking := missing_traits(needed, found):
        raise BackendError(ErrorKind.NOT_FOUND, f"{url} lacks what the other endpoints support: {', '.join(lacking)}.")


def timeout_error(timeout: float) -> BackendError:
    return BackendError(ErrorKind.UNAVAILABLE, f"No response within {timeout:g} s.")


def combined_traits(urls: Sequence[str], members: Sequence[Traits | None]) -> Traits:
    """Traits that all connected endpoints have. Raises SpecError if they serve different models."""
    known = [(url, traits) for url, traits in zip(urls, members, strict=True) if traits is not None]
    first_url, first = known[0]
    for url, traits in known:
        if traits.model != first.model:
            raise SpecError(
                f"The endpoints must serve the same model: {first_url} serves {first.model!r}, {url} {traits.model!r}. "
                "Pass a model that all of them serve as model=..., or use the endpoints in separate runs."
            )
    all_traits = [traits for _, traits in known]
    common = replace(
        first,
        native_tools=all(traits.native_tools for traits in all_traits),
        json_schema=all(traits.json_schema for traits in all_traits),
        json_schema_with_tools=all(traits.json_schema_with_tools for traits in all_traits),
        fixed_inflight=all(traits.fixed_inflight for traits in all_traits),
        context_tokens=_least([traits.context_tokens for traits in all_traits]),
        strict_schema=any(traits.strict_schema for traits in all_traits),
        takes_hints=any(traits.takes_hints for traits in all_traits),
        token_ids=all(traits.token_ids for traits in all_traits),
        images=_all_known([traits.images for traits in all_traits]),
        max_image_bytes=_least([traits.max_image_bytes for traits in all_traits]),
        max_image_side=_least([traits.max_image_side for traits in all_traits]),
        image_tokens=max(traits.image_tokens for traits in all_traits),
        lanes=tuple(
            # A batch is at one server.
            lane
            for lane in first.lanes
            if lane != "batch" and all(lane in traits.lanes for traits in all_traits)
        ),
        reports_rate_limits=any(traits.reports_rate_limits for traits in all_traits),
        has_agent_sessions=True,  # at least the routing of each agent
        detected=(f"{len(known)} of {len(urls)} endpoints", *first.detected),
    )
    return with_capacity(common, all_traits, len(urls))


def with_capacity(traits: Traits, known: Sequence[Traits], endpoints: int) -> Traits:
    """Traits of a pool, with what grows with the number of its endpoints. `known`: of those that are connected."""
    return replace(
        traits,
        inflight=sum(each.inflight for each in known) * endpoints // len(known),
        kv_tokens=_sum([each.kv_tokens for each in known]),
        kv_running_tokens=_sum([each.kv_running_tokens for each in known]),
    )


def missing_traits(needed: Traits, found: Traits) -> list[str]:
    """What the endpoints of a pool have in common, so that a run may use it, and a further one does not have."""
    lacking = [
        text
        for name, text in (
            ("native_tools", "tool calls"),
            ("json_schema", "answers by a JSON schema"),
            ("json_schema_with_tools", "a JSON schema together with tools"),
            ("token_ids", "token ids"),
            ("images", "images"),
        )
        if getattr(needed, name) and getattr(found, name) is False
    ]
    if needed.context_tokens and found.context_tokens and found.context_tokens < needed.context_tokens:
        lacking.append(f"a context window of {needed.context_tokens:,} tokens (it has {found.context_tokens:,})")
    return lacking


def kv_capacities(members: Mapping[str, Traits | None]) -> dict[str, int] | None:
    """Tokens of each KV cache; None if that of a connected endpoint is unknown. An endpoint that is not connected is
    assumed to be as large as the smallest of the others."""
    known = [traits.kv_tokens for traits in members.values() if traits is not None]
    least = _least(known)
    if least is None or None in known:
        return None
    return {
        name: least if traits is None or traits.kv_tokens is None else traits.kv_tokens
        for name, traits in members.items()
    }


def _all_known(values: Sequence[bool | None]) -> bool | None:
    """False if any is; None if any is unknown."""
    return False if False in values else None if None in values else True


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)
