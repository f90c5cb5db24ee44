"""Connection of this process to Ray.

A connection that existed before a run is left open. One that a run made is closed with the last run that uses it."""

import logging
import os
import threading
from typing import Any

import ray
from ray.exceptions import RayError

from ..core.errors import SpecError

_ADDRESS = "RAY_ADDRESS"
_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}
_MAX_ATTEMPTS = 3
"""Attempts to connect to one address. Ray's client server forks a process for each client, and some of these crash
while they start."""
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class _Connection:
    """State of the process's connection, which all its runs share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        """Runs that use a connection made by a run."""


_connection = _Connection()


class RaySession:
    """One run's use of the connection. Both methods block, for ten seconds or more if Ray has to be started: call them
    in a thread. `leave` waits for an `enter` in progress."""

    def __init__(self, cluster: str, workers: int | None) -> None:
        """`cluster`: "ray", or a ray:// address."""
        self._cluster = cluster
        self._workers = workers
        self._is_ours = False
        self._has_left = False
        self.has_started = False
        """Whether Ray was started for this run."""

    def enter(self) -> None:
        """Connects to the cluster, or starts a local one. Raises SpecError."""
        with _connection.lock:
            if self._has_left or (ray.is_initialized() and not _connection.users):
                return
            if not _connection.users:
                self.has_started = _connect(self._cluster, self._workers)
            _connection.users += 1
            self._is_ours = True

    def leave(self) -> None:
        """Ends the use, and disconnects after the last one. A second call does nothing."""
        with _connection.lock:
            self._has_left = True
            if not self._is_ours:
                return
            self._is_ours = False
            _connection.users -= 1
            if not _connection.users:
                ray.shutdown()


def is_elsewhere() -> bool:
    """Whether this process is a Ray client: outside the cluster, connected through its client server."""
    return bool(ray.util.client.ray.is_connected())


def _connect(cluster: str, workers: int | None) -> bool:
    """Connects to an existing cluster, or starts a local one. Returns whether one was started."""
    address = cluster if cluster != "ray" else os.environ.get(_ADDRESS, "")
    try:
        if address and address != "local":
            _join(address)
            return False
        if not address and _join_running_cluster():
            return False
        _start(workers)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        ray.shutdown()  # otherwise the next run would find a half-open connection
        raise SpecError(
            f"Cannot connect to Ray{f' at {address}' if address else ''}: {error} Check that the cluster is up (ray "
            "status) and has the same versions of Ray and Python and the same RAY_AUTH_TOKEN as this process."
        ) from error
    return True


def _join(address: str) -> None:
    for remaining in reversed(range(_MAX_ATTEMPTS)):
        try:
            ray.init(address=address, **_QUIET)
        except ConnectionAbortedError:  # the server was reached, and then failed
            if not remaining:
                raise
            ray.shutdown()
        else:
            return


def _join_running_cluster() -> bool:
    try:
        ray.init(address="auto", **_QUIET)
    except ConnectionError:
        return False
    return True


def _start(workers: int | None) -> None:
    """Starts a cluster on this machine, without usage statistics."""
    cpus = max(os.cpu_count() or 1, workers or 1)
    before: dict[str, Any] = {name: os.environ.get(name) for name in _NO_STATISTICS}
    os.environ.update(_NO_STATISTICS)
    try:
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **_QUIET)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
