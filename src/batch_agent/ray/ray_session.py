"""This process's connection to Ray. What was there before a run stays as it was; what a run started ends with the last
one that uses it."""

import logging
import os
import threading
from typing import Any

import ray
from ray.exceptions import RayError

from ..core.errors import SpecError

_ADDRESS = "RAY_ADDRESS"
_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}
_TRIES = 3
"""Of one address. Ray's own server for clients forks a process for each, and some of these crash while they start."""
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class _Connection:
    """There is one for a process: who comes second finds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        """Runs that use what a run has connected."""


_connection = _Connection()


class RaySession:
    """One run's use of Ray. Both methods block, for ten seconds and more where Ray has to be started; call them in a
    thread. Leaving waits for a start that is under way."""

    def __init__(self, cluster: str, workers: int | None) -> None:
        """`cluster`: "ray", or a ray:// address."""
        self._cluster = cluster
        self._workers = workers
        self._is_ours = False
        self._has_left = False
        self.has_started = False
        """Ray was not there before, but for this run."""

    def enter(self) -> None:
        """Raises SpecError."""
        with _connection.lock:
            if self._has_left or (ray.is_initialized() and not _connection.users):
                return
            if not _connection.users:
                self.has_started = _connect(self._cluster, self._workers)
            _connection.users += 1
            self._is_ours = True

    def leave(self) -> None:
        """Leaving twice does nothing."""
        with _connection.lock:
            self._has_left = True
            if not self._is_ours:
                return
            self._is_ours = False
            _connection.users -= 1
            if not _connection.users:
                ray.shutdown()


def is_elsewhere() -> bool:
    """Whether this process is none of the cluster's, and talks to one that is."""
    return bool(ray.util.client.ray.is_connected())


def _connect(cluster: str, workers: int | None) -> bool:
    """To a cluster that is there, or to one that is started: says whether it was."""
    named = cluster if cluster != "ray" else os.environ.get(_ADDRESS, "")
    try:
        if named and named != "local":
            _join(named)
            return False
        if not named and _joined_one_nearby():
            return False
        _start(workers)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        ray.shutdown()  # or the next run of this process would find it half connected
        raise SpecError(
            f"Ray cannot be used{f' at {named}' if named else ''}: {error} Look whether the cluster is up (ray status) "
            "and has the versions of Ray and Python, and the RAY_AUTH_TOKEN, that this process has."
        ) from error
    return True


def _join(address: str) -> None:
    for left in reversed(range(_TRIES)):
        try:
            ray.init(address=address, **_QUIET)
        except ConnectionAbortedError:  # it was reached, and then failed
            if not left:
                raise
            ray.shutdown()
        else:
            return


def _joined_one_nearby() -> bool:
    try:
        ray.init(address="auto", **_QUIET)
    except ConnectionError:
        return False
    return True


def _start(workers: int | None) -> None:
    """On this machine alone; nobody is told of it."""
    cpus = max(os.cpu_count() or 1, workers or 1)
    before: dict[str, Any] = {name: os.environ.get(name) for name in _NO_STATISTICS}
    os.environ.update(_NO_STATISTICS)
    try:
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **_QUIET)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
