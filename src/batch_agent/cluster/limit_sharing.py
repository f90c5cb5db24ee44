"""Limits of a server that several workers use: each has its portion, and portions go to where the work is."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import orjson

from .. import aio
from ..core.coordinator import Document
from ..core.errors import StoreError
from ..core.fast_dataclass import dataclass
from ..engine.admission import AdmissionController
from ..schedule.backoff import Backoff
from ..schedule.fair_share import Demand, SlotClaim, allocate, demand_for
from .membership import best_effort

_log = logging.getLogger("batch_agent")
_MEMBERS = "members"
CAUTION = 0.8
"""Of the time after which others take a worker that they do not hear of for gone: then it stops by itself."""
_TRIES = 20
_BACKOFF = Backoff(first=0.002, ceiling=0.25)
"""The longest pause between tries: workers that began together go apart."""
_CROWD = 32
"""More workers than this say less often how they are: they all change one document."""
_BEATS = 5
"""In the time that a lease lasts, at least."""


class Documents(Protocol):
    """What is needed of a hub here."""

    async def read(self, name: str) -> Document: ...

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool: ...


async def change(hub: Documents, name: str, edit: Callable[[Document], Awaitable[bytes]]) -> None:
    """Puts what `edit` makes of a document in its place; `edit` is asked again when another worker was quicker. Raises
    StoreError."""
    for tried in range(_TRIES):
        document = await hub.read(name)
        if await hub.compare_and_set(name, document.data, await edit(document)):
            return
        await asyncio.sleep(random.random() * _BACKOFF.delay(tried))  # noqa: S311
    raise ContentionError(
        f"{_TRIES} times another worker was quicker to change {name!r}. Use fewer workers for one run."
    )


class ContentionError(StoreError):
    """The hub is there, but it took too long to be understood: the next time may be in time."""


async def retry_contention(join: Callable[[], Awaitable[None]]) -> None:
    """Tries again what was only late: many may join at once, and a machine may stand still for a moment."""
    for _ in range(_TRIES):
        try:
            return await join()
        except ContentionError as late:
            failure = late
    raise failure


def pause(interval: float, ttl: float, workers: int) -> float:
    """Seconds from one beat of a worker to its next."""
    return min(interval * max(1.0, workers / _CROWD), ttl / _BEATS)


@asynccontextmanager
async def share_limits(
    hub: Documents, worker: str, gates: Mapping[str, AdmissionController], *, ttl: float, interval: float = 0.5
) -> AsyncIterator["LimitSharing"]:
    """Gates of the same name lead to the same server. Of its slots, where their number is fixed, and of its KV cache,
    where its size is known, each worker gets a portion before anything is granted, and another every `interval`
    seconds, for as long as the block runs. Together the portions never come to more than there is. A worker that is
    not heard of for `ttl` seconds loses its own. Raises StoreError."""
    sharing = LimitSharing(hub, worker, gates, ttl)
    await retry_contention(sharing.beat)
    beating = asyncio.get_running_loop().create_task(_beat(sharing, interval, ttl))
    try:
        yield sharing
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await sharing.leave()


async def _beat(sharing: "LimitSharing", interval: float, ttl: float) -> None:
    while True:  # until it is cancelled with the run
        await asyncio.sleep(pause(interval, ttl, sharing.workers))
        try:
            await sharing.beat()
        except StoreError as error:  # what is not renewed ends by itself
            _log.debug("Limits were not shared for a moment: %s", error)


async def workers_of(hub: Documents) -> frozenset[str]:
    """Those that are alive, and run agents or may. Raises StoreError."""
    return frozenset(_alive(await hub.read(_MEMBERS)))


class _Shared(Protocol):
    """Something of which each worker has its portion."""

    def demand(self) -> Demand: ...

    def set_quota(self, quota: int | None) -> None: ...


@dataclass(slots=True)
class _Part:
    """This worker's side of it."""

    shared: _Shared
    in_force: int | None = None
    wants: int | None = 0

    def put(self, most: int | None) -> None:
        if most != self.in_force:
            self.in_force = most
            self.shared.set_quota(most)

    def lower(self, most: int | None) -> None:
        if most is not None and (self.in_force is None or most < self.in_force):
            self.put(most)


@dataclass(frozen=True, slots=True)
class _Member:
    """What a worker has said."""

    until: float
    claims: dict[str, SlotClaim]


class LimitSharing:
    """One worker among those that share the gates."""

    def __init__(self, hub: Documents, worker: str, gates: Mapping[str, AdmissionController], ttl: float) -> None:
        self._hub = hub
        self._worker = worker
        self._gates = gates
        self._ttl = ttl
        self._slots = {f"slots {name}": _Part(gate.slots) for name, gate in gates.items()}
        self._parts = dict(self._slots)
        for name, gate in gates.items():
            if gate.residency is not None and gate.residency.capacity is not None:
                self._parts[f"kv {name}"] = _Part(gate.residency)
        for part in self._parts.values():
            part.put(0)
        self._stopping: asyncio.TimerHandle | None = None
        self._said: dict[str, _Member] = {}
        """By all that are alive, with what this one says now."""
        self._portions: dict[str, int | None] = {}
        self.is_cut_off = False
        """The hub was not reached for so long that others may take this worker for gone. Nothing is granted then."""

    @property
    def workers(self) -> int:
        """That are alive."""
        return max(1, len(self._said))

    async def beat(self) -> None:
        """Says how this worker is, and takes the portions that are there for it. Raises StoreError."""
        began = aio.now()
        await change(self._hub, _MEMBERS, self._edit)
        if aio.now() >= began + CAUTION * self._ttl:
            raise ContentionError("The hub took so long to answer that others may take this worker for gone.")
        mine = self._said[self._worker]
        for name, gate in self._gates.items():
            claims = [said.claims[f"slots {name}"] for said in self._said.values() if f"slots {name}" in said.claims]
            gate.set_workers(len(claims), sum(claim.used for claim in claims) - mine.claims[f"slots {name}"].used)
        for name, part in self._parts.items():
            part.wants = mine.claims[name].wants
            part.put(self._portions[name])
        self._renew(began)

    async def leave(self) -> None:
        """Others may have it all."""
        if self._stopping is not None:
            self._stopping.cancel()
        if self.is_cut_off:
            return
        self._stop()
        await best_effort(change(self._hub, _MEMBERS, self._without))

    async def _edit(self, document: Document) -> bytes:
        said = _alive(document)
        claims: dict[str, SlotClaim] = {}
        for name, part in self._parts.items():
            others = {who: each.claims[name] for who, each in said.items() if name in each.claims}
            claims[name] = self._claim(name, part, others, document.now)
        said[self._worker] = _Member(document.now + self._ttl, claims)
        self._said = said
        return _encode(said)

    def _claim(self, name: str, part: _Part, claims: Mapping[str, SlotClaim], now: float) -> SlotClaim:
        """What is lowered is in force before it is said, what is raised only after it."""
        demand, known = part.shared.demand(), claims.get(self._worker)
        before = known or SlotClaim(0, 0, None, None, now)
        wants = None if known is None else demand_for(demand, before.held if part.wants is None else part.wants)
        asked = SlotClaim(before.held, demand.used, wants, demand.total, before.since)
        most = self._portions[name] = allocate({**claims, self._worker: asked}, self._worker, now)
        part.lower(most)
        held = max(most or 0, demand.used)
        return SlotClaim(
            held, demand.used, wants, demand.total, before.since if bool(held) == bool(before.held) else now
        )

    async def _without(self, document: Document) -> bytes:
        said = _alive(document)
        said.pop(self._worker, None)
        return _encode(said)

    def _renew(self, began: float) -> None:
        self.is_cut_off = False
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.get_running_loop().call_at(began + CAUTION * self._ttl, self._stop)

    def _stop(self) -> None:
        self.is_cut_off = True
        for part in self._slots.values():
            part.put(0)


def _alive(document: Document) -> dict[str, _Member]:
    """What is said by those that are heard of."""
    try:
        said = {
            who: _Member(until, {name: SlotClaim(*claim) for name, claim in claims.items()})
            for who, (until, claims) in orjson.loads(document.data or b"{}").items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            "The limits that workers share cannot be read. All workers of a run need the same version of batch_agent."
        ) from error
    return {who: each for who, each in said.items() if each.until > document.now}


def _encode(said: Mapping[str, _Member]) -> bytes:
    return orjson.dumps(
        {
            who: [each.until, {name: [c.held, c.used, c.wants, c.total, c.since] for name, c in each.claims.items()}]
            for who, each in said.items()
        }
    )
