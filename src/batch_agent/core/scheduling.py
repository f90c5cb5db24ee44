"""How a run was scheduled, for whoever wants to know why it took as long as it did."""

from .quick import dataclass


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The number of requests that may be in flight changed."""

    at: float
    """Seconds from the start of the run."""
    inflight: int
    reason: str


@dataclass(frozen=True, slots=True)
class Warmth:
    """What `kvflow=True` did: touches of contexts that would have been thrown out during a tool wait."""

    touches: int = 0
    tokens: int = 0
    """Computed for touches."""
    hits: int = 0
    """Touches that found the context still there."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Of one run."""

    inflight: int = 0
    """Requests that might be in flight at the end."""
    limits: tuple[LimitChange, ...] = ()
    kv_tokens: int | None = None
    """What the server's KV cache holds; None where nobody knows."""
    kv_limit: int | None = None
    """What residents may hold of it, as was found at the end."""
    most_residents: int | None = None
    """Agents that had a place in the KV cache at once; None where places were not counted."""
    gave_up: int = 0
    """Places that were given up during a long tool wait."""
    guests: int = 0
    """Agents that were let in beyond the capacity, because the engine had nothing to do."""
    lost: int = 0
    """Turns that found less than half of their context in the cache although they had a place."""
    warmth: Warmth | None = None
    unavailable: tuple[str, ...] = ()
    """Endpoints out of service at the end, of several, each with its last error."""
