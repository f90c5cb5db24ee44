"""Places in the server's KV cache that nobody uses, because their agents wait for their tools."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Resident:
    """One agent that is alive, with a place or without."""

    first: float
    """Tokens of its first prompt that are its own."""
    own: float
    order: int
    prompt: int = 0
    """Tokens of its last prompt, shared ones too."""
    is_resident: bool = False
    is_guest: bool = False
    """Let in beyond the capacity."""
    is_new: bool = True
    """Since its last answer it had no place, or its context was rewritten: what it finds in the cache says nothing
    about the others."""
    disturbed: int = 0
    """How often guests had come or gone at its last answer."""
    waits_since: float = 0.0
    """When it last began to wait for its tools."""


@dataclass(slots=True)
class ResidencyLeases:
    """Residents that wait for their tools, who has waited longest first. A lease is over at its end, or from the
    beginning where the tools are known to take longer than a place is worth."""

    over_own: float = 0.0
    """Tokens of those whose lease is over."""
    over_first: float = 0.0
    _lasting: dict[str, Resident] = field(default_factory=dict)
    _over: dict[str, Resident] = field(default_factory=dict)

    @property
    def over(self) -> int:
        """How many are."""
        return len(self._over)

    def begin(self, agent: str, tenant: Resident, *, is_over: bool) -> None:
        if is_over:
            self._let_lapse(agent, tenant)
        else:
            self._lasting[agent] = tenant

    def end(self, agent: str) -> None:
        """It waits no more, or has no place any more. Nothing, if it had no lease."""
        if self._lasting.pop(agent, None) is None and (tenant := self._over.pop(agent, None)) is not None:
            self.over_own -= tenant.own
            self.over_first -= tenant.first

    def next_end(self, rent: float | None) -> float | None:
        """Of those that last, if each does so for so many seconds."""
        if rent is not None:
            for tenant in self._lasting.values():
                return tenant.waits_since + rent
        return None

    def lapse(self, rent: float | None, now: float) -> None:
        """Those are over that have come to their end."""
        while (end := self.next_end(rent)) is not None and end <= now:
            agent = next(iter(self._lasting))
            self._let_lapse(agent, self._lasting.pop(agent))

    def longest_over(self) -> str | None:
        return next(iter(self._over), None)

    def youngest(self) -> str | None:
        """Of all that wait, the agent that began last."""
        waiting = {**self._lasting, **self._over}
        return max(waiting, key=lambda agent: waiting[agent].order, default=None)

    def _let_lapse(self, agent: str, tenant: Resident) -> None:
        self._over[agent] = tenant
        self.over_own += tenant.own
        self.over_first += tenant.first
