"""Whether a Redis server is new enough, and how it is set up to keep what it is given."""

import logging
import re
from typing import TYPE_CHECKING

from ...core.errors import StoreError

if TYPE_CHECKING:
    from .connection import RedisConnection

NEEDED = "Redis 7.0 or newer, or Valkey 7.2 or newer, is needed."
"""Tool calls are claimed with SET ... NX GET, which no earlier one knows. Valkey tells which Redis it stands for."""
_LEAST = (7, 0)
_VERSION = re.compile(r"(\d+)\.(\d+)")

_log = logging.getLogger("batch_agent")
_looked_at: set[str] = set()


async def warn_if_not_durable(link: "RedisConnection") -> None:
    """The first time that this process comes to a server: raises StoreError for one that is too old, and warns of one
    that may lose facts."""
    if link.shown in _looked_at:
        return
    await _check_version(link)
    await _complain(link)
    _looked_at.add(link.shown)


async def _check_version(link: "RedisConnection") -> None:
    try:
        told = await link.call("INFO", "server")
    except StoreError:  # not everybody may ask
        return
    found = _VERSION.match(str(told.get("redis_version", "")))  # the client reads this answer as a dict
    if found and (int(found[1]), int(found[2])) < _LEAST:
        raise StoreError(f"Redis at {link.shown} is {found[0]}. {NEEDED}")


async def _complain(link: "RedisConnection") -> None:
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
