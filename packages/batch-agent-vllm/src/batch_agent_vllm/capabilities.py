"""Capabilities of the plugin, collected from its parts in vLLM's scheduler process and returned to clients on
request."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from . import __version__


@dataclass(frozen=True, slots=True)
class Capabilities:
    version: str = __version__
    pins: bool = False
    """Whether device blocks of waiting sessions are kept."""
    policy: str | None = None
    """Eviction policy of the host tier, if it follows hints."""
    exclusive: bool = False
    """Whether the host tier adds to the device, so that they keep what fits into both together."""
    device_tokens: int | None = None
    host_tokens: int | None = None


_active = Capabilities()


def declare(**known: Any) -> None:
    """Declares capabilities of a part of the plugin. Each part calls it once when it starts."""
    global _active
    _active = replace(_active, **known)


def active() -> dict[str, Any]:
    """Capabilities in the form that is sent to clients."""
    return asdict(_active)
