"""Hints of a client about the request's session, in `kv_transfer_params["batch_agent"]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "batch_agent"
MAX_SECONDS = 1e9
"""Limit of durations. Nobody expects a longer one, and a larger integer may not even be representable as a float."""


@dataclass(frozen=True, slots=True)
class Hints:
    session: str | None = None
    """Name of the conversation that this request continues. Requests without a session are independent of each
    other."""
    next_use_s: float | None = None
    """Expected seconds from the end of this request to the session's next one; None if unknown."""
    drop: bool = False
    """Whether the session ends with this request."""
    once: bool = False
    """Whether no later request continues this one."""
    shared_tokens: int = 0
    """Number of leading tokens that other sessions also use."""
    update: bool = False
    """Whether the request is sent only for its hints. Its own prompt, of about one token, does not belong to the
    session."""
    probe: bool = False
    """Whether the client asks for the plugin's capabilities, which are in the `kv_transfer_params` of the response."""


def parse_hints(kv_transfer_params: Any) -> Hints:
    """Parses the hints of a request. A field of the wrong type counts as absent: a client must not be able to stop the
    engine."""
    given = kv_transfer_params.get(KEY) if isinstance(kv_transfer_params, Mapping) else None
    if not isinstance(given, Mapping):
        return Hints()
    session: Any = given.get("session")
    next_use_s: Any = given.get("next_use_s")
    shared: Any = given.get("shared_tokens")
    return Hints(
        session=session if isinstance(session, str) and session else None,
        next_use_s=float(next_use_s) if _is_number(next_use_s) and 0 <= next_use_s <= MAX_SECONDS else None,
        drop=given.get("drop") is True,
        once=given.get("once") is True,
        shared_tokens=shared if isinstance(shared, int) and not isinstance(shared, bool) and shared > 0 else 0,
        update=given.get("update") is True,
        probe=given.get("probe") is True,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
