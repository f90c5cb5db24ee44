"""Several endpoints as one backend. Each turn goes where its context is, or where there is least to do; what one was
doing that died is done by the others."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from .. import aio
from ..core.errors import BackendError, BatchAgentError, ErrorKind, SpecError
from ..core.messages import User
from ..core.protocols import Backend, CountsTokens, ReportsLoad, ServerLoad, Traits
from ..core.requests import Request
from ..schedule.retry import is_overload_refusal
from ..schedule.routing import Routing, Ticket
from . import pool_member as fleet_member
from .failover import ITS_FAULT, MAYBE_ITS_FAULT, EndpointRejection, PooledRequest
from .pool_member import Open, PoolEndpoint, combined_traits

_MAYBE_ITS_AGENTS = frozenset({ErrorKind.CONNECTION, ErrorKind.SERVER})
"""What a prompt may have brought about, wherever it goes."""
_PASSING = frozenset({ErrorKind.SERVER, ErrorKind.UNAVAILABLE})
"""Errors that a good endpoint may answer now and then."""
_HANGS = 10.0
"""Seconds without an answer after which it says something about the endpoint that nobody waits any longer."""
_HANGS_AT_LEAST = 1.0
_HANGS_BESIDE_OTHERS = 5.0
"""The same, in times that the slowest answer took so far: for turns that may not take `_HANGS` seconds."""

T = TypeVar("T")
Notify = Callable[[str], None]


class EndpointPool:
    """All of them serve the same model."""

    def __init__(self, members: Sequence[PoolEndpoint], traits: Traits, notify: Notify) -> None:
        self.traits = traits
        self.members = members
        self._notify = notify
        self.routing = Routing([member.url for member in members])
        self._unlucky: set[str] = set()
        """Agents whose last request broke an endpoint, as it seems."""
        self._failed_at: dict[str, set[int]] = {}
        """For agents whose last request failed, or was not answered in time: where. They are sent elsewhere."""
        self._slowest = 0.0
        """Seconds that an answer took, at most."""

    @classmethod
    async def open(cls, urls: Sequence[str], open_it: Open, notify: Notify) -> "EndpointPool":
        """Raises SpecError for endpoints that cannot work together, and BackendError if none can be reached: one that
        cannot is left for later."""
        opened: list[Backend] = []
        try:
            found = await _all_tried(open_it, urls, opened)
        except BaseException:
            await _at_once([each.aclose() for each in opened])
            raise
        there = [None if isinstance(each, BatchAgentError) else each for each in found]
        try:
            for each in found:
                if isinstance(each, SpecError):
                    raise each
            if not any(there):
                raise _all_down(urls, [each for each in found if isinstance(each, BackendError)])
            traits = combined_traits(urls, [None if each is None else each.traits for each in there])
        except BatchAgentError:
            await _at_once([each.aclose() for each in there if each is not None])
            raise
        members = [PoolEndpoint(url, open_it, each) for url, each in zip(urls, there, strict=True)]
        fleet = cls(members, traits, notify)
        for place, each in enumerate(found):
            if isinstance(each, BackendError):
                fleet.close(fleet.take(place), place, each)
                members[place].trouble = str(each)
                notify(f"{urls[place]} cannot be used, and the others do its work: {each}")
        return fleet

    def stream(self, request: Request) -> PooledRequest:
        return PooledRequest(self, request)

    async def load(self) -> ServerLoad | None:
        """Of all that say it."""
        said = [load for load in await _at_once([_load(member) for member in self.members]) if load is not None]
        if not said:
            return None
        known = [load.kv_usage for load in said if load.kv_usage is not None]
        return ServerLoad(
            sum(load.running for load in said),
            sum(load.waiting for load in said),
            sum(known) / len(known) if known else None,
            sum(load.preemptions for load in said),
            sum(load.computed for load in said),
        )

    async def count_tokens(self, text: str) -> int | None:
        for place in self.routing.available(aio.now()):
            backend = self.members[place].backend
            if isinstance(backend, CountsTokens) and (tokens := await backend.count_tokens(text)) is not None:
                return tokens
        return None

    async def leave(self, agent: str) -> None:
        self.routing.forget_origin(agent)
        self._unlucky.discard(agent)
        self._failed_at.pop(agent, None)
        await _at_once([each.backend.leave(agent) for each in self.members if each.backend is not None])

    async def aclose(self) -> None:
        await _at_once([each.backend.aclose() for each in self.members if each.backend is not None])

    def choose(self, request: Request, exclude: set[int]) -> int | None:
        """Where it failed before only if nobody else may be asked."""
        failed_at = self._failed_at.get(request.agent)
        if failed_at and (place := self._choose(request, exclude | failed_at)) is not None:
            return place
        return self._choose(request, exclude)

    def _choose(self, request: Request, exclude: set[int]) -> int | None:
        first = request.messages[0] if request.messages else None
        shared = first.text[: first.shared] if isinstance(first, User) and first.shared else None
        return self.routing.choose(
            1.0,
            aio.now(),
            prefix=shared,
            origin=request.agent or None,
            exclude=exclude,
            draw=(random.random(), random.random()),  # noqa: S311
        )

    def take(self, place: int) -> Ticket:
        return self.routing.sent(place, 1.0, aio.now())

    def close(self, ticket: Ticket, place: int, error: BackendError, *, is_certain: bool = False) -> None:
        """A request failed. One that is out must take a request to be back: a refusal is not enough. `is_certain`: a
        refusal is the endpoint's own."""
        is_gone = error.kind is ErrorKind.UNAVAILABLE and error.status is None
        is_closed = self.members[place].backend is None  # it was asked several times, and could not be opened
        is_refused = is_gone or is_closed or error.kind is ErrorKind.TURN_TIMEOUT
        is_blamed = is_certain or not self.routing.is_up(place)
        is_its_fault = error.kind in ITS_FAULT or (error.kind in MAYBE_ITS_FAULT and is_blamed)
        is_its_fault = is_its_fault and not is_overload_refusal(error)  # it is there, and had no time for this one
        is_its_fault = is_its_fault or is_closed
        has_answered = error.kind in _PASSING and error.status is not None
        self.routing.failed(
            ticket, aio.now(), is_endpoint_fault=is_its_fault, is_refused=is_refused, is_passing=has_answered
        )

    def blame(self, refusal: EndpointRejection) -> None:
        """Another endpoint took what this one refused."""
        self.routing.blame(refusal.place, refusal.ticket, aio.now())
        self.miss(refusal.place, refusal.error)

    def answered(self, ticket: Ticket, place: int, agent: str, seconds: float) -> None:
        self.routing.done(ticket, aio.now())
        self._slowest = max(self._slowest, seconds)
        self._unlucky.discard(agent)
        self._failed_at.pop(agent, None)
        self.greet(place)

    def failed(self, ticket: Ticket, place: int, agent: str, error: BackendError) -> None:
        """Of an agent that has met the same before, it says nothing about the endpoint."""
        may_be_its_own = error.kind in _MAYBE_ITS_AGENTS and bool(agent)
        if may_be_its_own and agent in self._unlucky and self.routing.is_up(place):
            self.routing.abandoned(ticket, aio.now())
        else:
            self.close(ticket, place, error)
            self.miss(place, error)
        if may_be_its_own:
            self._unlucky.add(agent)
        self.avoid(place, agent)

    def avoid(self, place: int, agent: str) -> None:
        """The next try of this agent goes elsewhere."""
        if agent:
            self._failed_at.setdefault(agent, set()).add(place)

    def hangs(self, seconds: float) -> bool:
        """Whether it says something about an endpoint that it did not answer for so long."""
        beside_others = max(_HANGS_AT_LEAST, _HANGS_BESIDE_OTHERS * self._slowest)
        return seconds >= (min(_HANGS, beside_others) if self._slowest else _HANGS)

    def miss(self, place: int, error: BackendError) -> None:
        """Says once that an endpoint is down."""
        member = self.members[place]
        member.trouble = str(error)
        if not member.is_missed and place not in self.routing.available(aio.now()):
            member.is_missed = True
            how = "refuses what others take" if error.kind in MAYBE_ITS_FAULT else "is down"
            self._notify(f"{member.url} {how}, and the others do its work: {error}")

    def greet(self, place: int) -> None:
        member = self.members[place]
        if member.is_missed:
            member.is_missed = False
            self._notify(f"{member.url} is back.")

    def unavailable(self) -> tuple[str, ...]:
        return tuple(f"{each.url}: {each.trouble}" for each in self.members if each.is_missed)

    def nobody(self, errors: Sequence[BackendError], places: Sequence[int] | None = None) -> BackendError:
        """What is said when no endpoint takes a request; `places`: of those that might."""
        for error in errors:
            if error.kind not in ITS_FAULT:  # refused, not broken: in the words of who did so
                return error
        kind = errors[-1].kind if errors else ErrorKind.UNAVAILABLE
        asked = range(len(self.members)) if places is None else places
        said = " ".join(f"{self.members[place].url}: {self._trouble(place)}" for place in asked)
        words = f"None of the {len(asked)} endpoints takes it. {said}"
        if errors and all(is_overload_refusal(error) for error in errors):
            pauses = [error.retry_after for error in errors if error.retry_after is not None]
            return BackendError(kind, words, retry_after=min(pauses, default=None), status=errors[-1].status)
        return BackendError(kind, words)

    def _trouble(self, place: int) -> str:
        if self.routing.is_up(place) and not self.routing.is_healthy(place):
            return "It is draining."
        return self.members[place].trouble or "It has enough to do."


async def _all_tried(open_it: Open, urls: Sequence[str], opened: list[Backend]) -> list[Backend | BatchAgentError]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_tried(open_it, url, opened)) for url in urls]
        pending = set(tasks)
        while pending and not opened:
            pending = (await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED))[1]
        for task in (await asyncio.wait(pending, timeout=fleet_member.OPENING))[1] if pending else ():
            task.cancel()
    return [fleet_member.delayed_error() if task.cancelled() else task.result() for task in tasks]


async def _tried(open_it: Open, url: str, opened: list[Backend]) -> Backend | BatchAgentError:
    try:
        backend = await open_it(url)
    except BatchAgentError as error:
        return error
    opened.append(backend)
    return backend


async def _at_once(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
    return [task.result() for task in tasks]


async def _load(member: PoolEndpoint) -> ServerLoad | None:
    return await member.backend.load() if isinstance(member.backend, ReportsLoad) else None


def _all_down(urls: Sequence[str], errors: Sequence[BackendError]) -> BackendError:
    said = " ".join(f"{url}: {error}" for url, error in zip(urls, errors, strict=False))
    return BackendError(errors[0].kind, f"None of the {len(urls)} endpoints can be used. {said}")
