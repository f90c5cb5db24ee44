"""Shared slots of a server that several workers use. Each worker has a quota, and quotas follow the demand."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson

from .. import aio
from ..core.coordinator import Document, Documents
from ..core.errors import StoreError
from ..core.fast_dataclass import dataclass
from ..engine.admission import AdmissionController
from ..engine.slots import Slots
from ..schedule.fair_share import Demand, SlotClaim, allocate, demand_for
from .document_change import ContentionError, change, retry_contention
from .membership import best_effort

_log = logging.getLogger("batch_agent")
_MEMBERS = "members"
SAFETY_FACTOR = 0.8
"""Fraction of the lease duration after which a worker that cannot renew stops by itself, before others consider it
gone."""
_MANY_WORKERS = 32
"""Number of workers above which each renews less often, because all of them change one document."""
_RENEWALS = 5
"""Minimum number of renewals per lease duration."""
_CALM_INTERVALS = 4
"""Intervals between two reads of the other workers' entries, while neither they nor this worker's demand change."""
CALM_SHARE = 0.6
"""An unchanged entry is written again when less than this share of its duration is left."""


def renewal_interval(interval: float, ttl: float, workers: int) -> float:
    """Seconds between two renewals of a worker."""
    return min(interval * max(1.0, workers / _MANY_WORKERS), ttl / _RENEWALS)


@asynccontextmanager
async def share_limits(
    documents: Documents, worker: str, gates: Mapping[str, AdmissionController], *, ttl: float, interval: float = 0.5
) -> AsyncIterator["LimitSharing"]:
    """Shares the limits of servers. Admission controllers of the same name lead to the same server. If the number of
    its slots is fixed, each worker gets a quota of them before anything is granted, and a new quota every `interval`
    seconds while the block runs. Together the quotas never exceed the limit. A worker that does not renew for `ttl`
    seconds loses its quota. Raises StoreError."""
    sharing = LimitSharing(documents, worker, gates, ttl)
    await retry_contention(sharing.renew)
    renewing = asyncio.get_running_loop().create_task(_renew_forever(sharing, interval, ttl))
    try:
        yield sharing
    finally:
        renewing.cancel()
        try:
            await asyncio.wait([renewing])
        finally:
            await sharing.leave()


async def _renew_forever(sharing: "LimitSharing", interval: float, ttl: float) -> None:
    waited = 0.0
    while True:  # until it is cancelled with the run
        pause = renewal_interval(interval, ttl, sharing.workers)
        await asyncio.sleep(pause)
        waited += pause
        if sharing.is_calm and waited + pause <= min(_CALM_INTERVALS * interval, ttl / _RENEWALS):
            continue
        waited = 0.0
        try:
            await sharing.renew()
        except StoreError as error:  # a quota that is not renewed expires
            _log.debug("Limits could not be shared: %s", error)


async def workers_of(documents: Documents) -> frozenset[str]:
    """Live workers that run agents or may run some. Raises StoreError."""
    return frozenset(_alive(await documents.read(_MEMBERS)))


@dataclass(slots=True)
class _Quota:
    """This worker's quota of the slots of one server."""

    slots: Slots
    in_force: int | None = None
    wants: int | None = 0

    def put(self, limit: int | None) -> None:
        if limit != self.in_force:
            self.in_force = limit
            self.slots.set_quota(limit)

    def lower(self, limit: int | None) -> None:
        if limit is not None and (self.in_force is None or limit < self.in_force):
            self.put(limit)


@dataclass(frozen=True, slots=True)
class _Member:
    """Another worker's entry."""

    until: float
    claims: dict[str, SlotClaim]


class LimitSharing:
    """One worker's part in the sharing of limits."""

    def __init__(self, documents: Documents, worker: str, gates: Mapping[str, AdmissionController], ttl: float) -> None:
        self._documents = documents
        self._worker = worker
        self._ttl = ttl
        self._quotas = {name: _Quota(gate.slots) for name, gate in gates.items()}
        for quota in self._quotas.values():
            quota.put(0)
        self._stopping: asyncio.TimerHandle | None = None
        self._members: dict[str, _Member] = {}
        """Entries of all live workers, including the current one of this worker."""
        self._is_confirmed = False
        """Whether this worker's last entry is known to have been written in time."""
        self._portions: dict[str, int | None] = {}
        self._demands: dict[str, Demand] | None = None
        """This worker's demand at its last renewal, if that renewal changed nothing."""
        self.is_isolated = False
        """Whether the coordinator was unreachable for so long that other workers may consider this one dead. If so,
        nothing is granted."""

    @property
    def workers(self) -> int:
        """Number of live workers."""
        return max(1, len(self._members))

    @property
    def is_calm(self) -> bool:
        """Whether the last renewal changed nothing, and this worker has the same demand, enough slots, and no pace: a
        joining worker gets its part of a pace at once."""
        demands = self._current_demands()
        is_paced = any(quota.slots.pace is not None for quota in self._quotas.values())
        return demands == self._demands and not is_paced and not any(each.is_short for each in demands.values())

    def _current_demands(self) -> dict[str, Demand]:
        """The demand to report. A worker that is alone reports no use, because no other one needs it."""
        demands = {name: quota.slots.demand() for name, quota in self._quotas.items()}
        return demands if self.workers > 1 else {name: replace(each, used=0) for name, each in demands.items()}

    async def renew(self) -> None:
        """Reports this worker's demand and applies its quotas. Raises StoreError."""
        began, self._demands = aio.now(), None
        await change(self._documents, _MEMBERS, self._edit)
        if aio.now() >= began + SAFETY_FACTOR * self._ttl:
            raise ContentionError("The coordinator responded so late that other workers may consider this one dead.")
        mine = self._members[self._worker]
        for name, quota in self._quotas.items():
            claims = [each.claims[name] for each in self._members.values() if name in each.claims]
            own = mine.claims[name]
            active = sum(claim is own or claim.used > 0 or claim.wants != 0 for claim in claims)
            quota.slots.set_workers(len(claims), sum(claim.used for claim in claims) - own.used, active)
            quota.wants = mine.claims[name].wants
            quota.put(self._portions[name])
        if not self._is_confirmed:
            self._is_confirmed = True
            self._postpone_stop(began)

    async def leave(self) -> None:
        """Releases this worker's quotas."""
        if self._stopping is not None:
            self._stopping.cancel()
        if self.is_isolated:
            return
        self._stop()
        await best_effort(change(self._documents, _MEMBERS, self._without))

    async def _edit(self, document: Document) -> bytes | None:
        members = _alive(document)
        claims: dict[str, SlotClaim] = {}
        for name, quota in self._quotas.items():
            others = {worker: each.claims[name] for worker, each in members.items() if name in each.claims}
            claims[name] = self._claim(name, quota, others, document.now)
        is_same, self._members = members == self._members, members
        before = members.get(self._worker)
        if (
            self._is_confirmed
            and before is not None
            and (before.claims == claims or (len(members) == 1 and _is_same_quota(before.claims, claims)))
            and before.until - document.now >= CALM_SHARE * self._ttl
        ):
            self._demands = self._current_demands() if is_same else None
            return None
        self._is_confirmed = False
        members[self._worker] = _Member(document.now + self._ttl, claims)
        return _encode(members)

    def _claim(self, name: str, quota: _Quota, claims: Mapping[str, SlotClaim], now: float) -> SlotClaim:
        """A decrease takes effect before it is written, an increase only afterwards."""
        demand, known = quota.slots.demand(), claims.get(self._worker)
        before = known or SlotClaim(0, 0, None, None, now)
        wants = None if known is None else demand_for(demand, before.held if quota.wants is None else quota.wants)
        claim = SlotClaim(before.held, demand.used, wants, demand.total, before.since)
        share = self._portions[name] = allocate({**claims, self._worker: claim}, self._worker, now)
        quota.lower(share)
        held = max(share or 0, demand.used)
        return SlotClaim(
            held, demand.used, wants, demand.total, before.since if bool(held) == bool(before.held) else now
        )

    async def _without(self, document: Document) -> bytes:
        members = _alive(document)
        members.pop(self._worker, None)
        return _encode(members)

    def _postpone_stop(self, began: float) -> None:
        self.is_isolated = False
        if self._stopping is not None:
            self._stopping.cancel()
        self._stopping = asyncio.get_running_loop().call_at(began + SAFETY_FACTOR * self._ttl, self._stop)

    def _stop(self) -> None:
        self.is_isolated, self._is_confirmed = True, False
        for quota in self._quotas.values():
            quota.put(0)


def _is_same_quota(before: Mapping[str, SlotClaim], claims: Mapping[str, SlotClaim]) -> bool:
    """Whether a joining worker would find the same slots taken."""
    return before.keys() == claims.keys() and all(
        before[name].total == claim.total and (claim.total is None or before[name].held == claim.held)
        for name, claim in claims.items()
    )


def _alive(document: Document) -> dict[str, _Member]:
    """Entries of workers that have not expired."""
    try:
        members = {
            worker: _Member(until, {name: SlotClaim(*claim) for name, claim in claims.items()})
            for worker, (until, claims) in orjson.loads(document.data or b"{}").items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            "The shared limits cannot be read. All workers of a run need the same version of batch_agent."
        ) from error
    return {worker: each for worker, each in members.items() if each.until > document.now}


def _encode(members: Mapping[str, _Member]) -> bytes:
    return orjson.dumps(
        {
            worker: [each.until, {name: [c.held, c.used, c.wants, c.total, c.since] for name, c in each.claims.items()}]
            for worker, each in members.items()
        }
    )
