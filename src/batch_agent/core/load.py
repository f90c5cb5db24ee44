"""What a server says of its own load."""

from .quick import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One look at a server. Counters count from its start."""

    running: int = 0
    """Requests in its batch."""
    waiting: int = 0
    """Requests that it has taken and has no room for yet."""
    kv_usage: float | None = None
    """The share of its KV cache that running requests hold; what is merely kept for later does not count."""
    preemptions: int = 0
    computed: int = 0
    """Tokens that took a place in its KV cache: prompts without what was found there, and answers."""
