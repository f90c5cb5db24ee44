"""Checks that a Redis server is recent enough and configured to keep data."""

import logging
import re
from typing import TYPE_CHECKING

from ...core.errors import StoreError
from .lua.common import NAME_THE_PRIMARY, REQUIRED_SERVER, USE_INSTEAD_OF_CLUSTER

if TYPE_CHECKING:
    from .redis_connection import RedisConnection

_MIN_VERSION = (7, 0)
_VERSION = re.compile(r"(\d+)\.(\d+)")

_log = logging.getLogger("batch_agent")
_checked: set[str] = set()


async def warn_if_not_durable(connection: "RedisConnection") -> None:
    """On this process's first connection to a server: raises StoreError if the server is too old or part of a cluster,
    and warns if it is a replica or may lose facts."""
    if connection.display_url in _checked:
        return
    await _check_server(connection)
    await _warn_if_volatile(connection)
    _checked.add(connection.display_url)


async def _check_server(connection: "RedisConnection") -> None:
    try:
        info = await connection.call("INFO", "server", "cluster", "replication")
    except StoreError:  # the user may lack the permission
        return
    found = _VERSION.match(str(info.get("redis_version", "")))  # redis-py parses this reply as a dict
    if found and (int(found[1]), int(found[2])) < _MIN_VERSION:
        raise StoreError(f"Redis at {connection.display_url} has version {found[0]}. {REQUIRED_SERVER}")
    if info.get("cluster_enabled") and len(await connection.call("CLUSTER", "SHARDS")) > 1:
        raise StoreError(f"Redis at {connection.display_url} is a node of a Redis Cluster. {USE_INSTEAD_OF_CLUSTER}")
    if info.get("role") == "slave":
        _log.warning(
            "Redis at %s is a replica, which can be read but not written. %s", connection.display_url, NAME_THE_PRIMARY
        )


async def _warn_if_volatile(connection: "RedisConnection") -> None:
    try:
        found = await connection.call("CONFIG", "GET", "maxmemory-policy", "appendonly")
    except StoreError:  # the user may lack the permission
        return
    settings = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
    policy = settings.get("maxmemory-policy", "")  # a server may keep its settings to itself
    if policy.startswith("allkeys"):
        _log.warning(
            "Redis at %s evicts keys when its memory is full (maxmemory-policy %s): facts may be lost. Set "
            "maxmemory-policy noeviction.",
            connection.display_url,
            policy,
        )
    if settings.get("appendonly") == "no":
        _log.warning(
            "Redis at %s has no append-only file: facts may be lost when it stops. Set appendonly yes.",
            connection.display_url,
        )
