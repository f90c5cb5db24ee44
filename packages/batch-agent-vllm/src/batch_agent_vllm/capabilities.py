"""Capabilities of the plugin, collected from its parts in vLLM's scheduler process and returned to clients that ask."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from . import __version__


@dataclass(frozen=True, slots=True)
class Capabilities:
    version: str = __version__
    pins: bool = False
    """Device blocks of waiting sessions are kept."""
    policy: str | None = None
    """Eviction policy of the host tier that follows hints."""
    exclusive: bool = False
    """The host tier adds to the device: together they keep what fits into both."""
    device_tokens: int | None = None
    host_tokens: int | None = None


_active = Capabilities()


def declare(**known: Any) -> None:
    """A part of the plugin is active. Called once by each part when it starts."""
    global _active
    _active = replace(_active, **known)


def active() -> dict[str, Any]:
    """Capabilities as they are sent to clients."""
    return asdict(_active)
