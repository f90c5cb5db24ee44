"""How a Redis server is set up to keep what it is given."""

import logging
from typing import TYPE_CHECKING

from ..core.errors import StoreError

if TYPE_CHECKING:
    from .redis_link import Link

_log = logging.getLogger("batch_agent")
_looked_at: set[str] = set()


async def complain_once(link: "Link") -> None:
    """Warns of a server that may lose facts, the first time that this process comes to it."""
    if link.shown in _looked_at:
        return
    _looked_at.add(link.shown)
    try:
        found = await link.call("CONFIG", "GET", "maxmemory-policy", "appendonly")
    except StoreError:  # not everybody may ask
        return
    settings = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
    policy = settings["maxmemory-policy"]
    if policy.startswith("allkeys"):
        _log.warning(
            "Redis at %s removes keys when its memory is full (maxmemory-policy %s): facts may be lost. Set "
            "maxmemory-policy noeviction.",
            link.shown,
            policy,
        )
    if settings["appendonly"] == "no":
        _log.warning(
            "Redis at %s keeps no append-only file: facts may be lost when it ends. Set appendonly yes.", link.shown
        )
