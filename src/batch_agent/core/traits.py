"""What a backend can do."""

from .quick import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """What a backend was seen, or is known, to be able to do."""

    name: str
    model: str
    native_tools: bool
    json_schema: bool
    """It keeps an answer to a JSON schema."""
    json_schema_beside_tools: bool
    """It does so in a request that also offers tools, without making tool calls impossible."""
    inflight: int
    """Requests in flight to start with when the user names no number."""
    fixed_inflight: bool = False
    """More than `inflight` never helps (the server's own slots)."""
    context_tokens: int | None = None
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, slower tiers included; None where nobody knows, or nobody needs to."""
    kv_running_tokens: int | None = None
    """Tokens that its running requests can hold together: what waits in a slower tier has to come back for them."""
    strict_schema: bool = False
    """It keeps only schemas that have a strict form (core/strict_schema.py)."""
    keeps_agents: bool = False
    """It keeps something for each agent, until the agent is said to leave."""
    managed_cache: bool = False
    """A prefix can be read from its cache only after the first answer, so warming it before a burst pays."""
    ignores: tuple[str, ...] = ()
    """Sampling options that it has no word for."""
    seen: tuple[str, ...] = ()
    """What is active, in words; nothing that was not seen."""
