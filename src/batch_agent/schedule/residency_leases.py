"""Residency leases: how long residents keep their residency while their tools run."""

from dataclasses import dataclass, field

from .reference_tree import Path


@dataclass(slots=True)
class Resident:
    """Account of one started agent, with or without residency."""

    first: float
    """Tokens of its first prompt, without the shared prefix."""
    own: float
    """Tokens of its context, without the shared prefix and its references."""
    order: int
    prompt: int = 0
    """Tokens of its last prompt, with the shared prefix."""
    is_resident: bool = False
    is_overcommitted: bool = False
    """Admitted beyond the capacity."""
    is_cold: bool = True
    """Since its last answer it had no residency, or its context was rewritten: a cache miss is expected, and says
    nothing about the capacity."""
    overcommit_changes: int = 0
    """The ledger's count of overcommit changes at its last answer."""
    waiting_since: float = 0.0
    """When its tools last started."""
    references: Path = ()
    """References in its prompt, which other residents may have too."""


@dataclass(slots=True)
class ResidencyLeases:
    """Residents that wait for their tools, longest wait first. A lease expires at its end, or at once if the tools are
    known to take longer than a lease."""

    expired_own: float = 0.0
    """Tokens of residents whose lease has expired."""
    expired_first: float = 0.0
    _active: dict[str, Resident] = field(default_factory=dict)
    _expired: dict[str, Resident] = field(default_factory=dict)

    @property
    def expired_count(self) -> int:
        """Residents whose lease has expired."""
        return len(self._expired)

    def begin(self, agent: str, resident: Resident, *, is_expired: bool) -> None:
        if is_expired:
            self._expire(agent, resident)
        else:
            self._active[agent] = resident

    def end(self, agent: str) -> None:
        """The agent no longer waits, or lost its residency. Does nothing without a lease."""
        if self._active.pop(agent, None) is None and (resident := self._expired.pop(agent, None)) is not None:
            self.expired_own -= resident.own
            self.expired_first -= resident.first

    def next_end(self, lease_seconds: float | None) -> float | None:
        """When the first active lease expires, if each lasts for `lease_seconds`."""
        if lease_seconds is not None:
            for resident in self._active.values():
                return resident.waiting_since + lease_seconds
        return None

    def expire(self, lease_seconds: float | None, now: float) -> None:
        """Expires the leases that have come to their end."""
        while (end := self.next_end(lease_seconds)) is not None and end <= now:
            agent = next(iter(self._active))
            self._expire(agent, self._active.pop(agent))

    def oldest_expired(self) -> str | None:
        return next(iter(self._expired), None)

    def youngest(self) -> str | None:
        """The waiting agent that was registered last."""
        waiting = {**self._active, **self._expired}
        return max(waiting, key=lambda agent: waiting[agent].order, default=None)

    def _expire(self, agent: str, resident: Resident) -> None:
        self._expired[agent] = resident
        self.expired_own += resident.own
        self.expired_first += resident.first
