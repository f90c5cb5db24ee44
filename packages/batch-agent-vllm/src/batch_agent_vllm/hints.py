"""What a client says about the request's session, in `kv_transfer_params["batch_agent"]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "batch_agent"
MAX_SECONDS = 1e9
"""More is not a time that anybody expects; a larger integer may not even be a float."""


@dataclass(frozen=True, slots=True)
class Hints:
    session: str | None = None
    """Names the conversation that this request continues; requests without it are not tied to each other."""
    next_use_s: float | None = None
    """Expected seconds from the end of this request to the session's next one; None if nobody knows."""
    drop: bool = False
    """The session ends with this request."""
    once: bool = False
    """No later request continues this one."""
    shared_tokens: int = 0
    """Leading tokens that other sessions use too."""
    update: bool = False
    """The request is sent only for its hints: its own prompt, of a token or so, does not belong to the session."""
    probe: bool = False
    """The client asks for the plugin's capabilities, in the `kv_transfer_params` of the response."""


def parse_hints(kv_transfer_params: Any) -> Hints:
    """Hints of a request. A field of the wrong type counts as absent: a client must not be able to stop the engine."""
    given = kv_transfer_params.get(KEY) if isinstance(kv_transfer_params, Mapping) else None
    if not isinstance(given, Mapping):
        return Hints()
    session: Any = given.get("session")
    next_use_s: Any = given.get("next_use_s")
    shared: Any = given.get("shared_tokens")
    return Hints(
        session=session if isinstance(session, str) and session else None,
        next_use_s=_seconds(next_use_s),
        drop=given.get("drop") is True,
        once=given.get("once") is True,
        shared_tokens=shared if isinstance(shared, int) and not isinstance(shared, bool) and shared > 0 else 0,
        update=given.get("update") is True,
        probe=given.get("probe") is True,
    )


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_SECONDS else None
