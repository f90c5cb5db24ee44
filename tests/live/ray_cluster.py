"""A real Ray cluster on this machine: of several nodes, or a small one of this process."""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.live.engines import free_port

# Ray reads these when it is imported. Its ports are open to the network: a token keeps others out.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

CLIENT_PORT = free_port()


class Cluster:
    """The first node is the head, and the caller's."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        head = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": CLIENT_PORT}
        self._ray = RayCluster(initialize_head=True, head_node_args=head)
        self._others: list[Any] = []
        for _ in range(nodes - 1):
            self.add_a_node()

    @property
    def address(self) -> str:
        return str(self._ray.address)

    def add_a_node(self) -> None:
        self._others.append(self._ray.add_node(num_cpus=2))

    def lose_a_node(self) -> None:
        """It is killed, with all that runs there."""
        self._ray.remove_node(self._others.pop(), allow_graceful=False)

    def return_a_node(self) -> None:
        """It leaves in an orderly way."""
        self._ray.remove_node(self._others.pop(), allow_graceful=True)

    def stop(self) -> None:
        self._ray.shutdown()


@contextmanager
def ray_cluster(nodes: int) -> Iterator[Cluster]:
    """Takes half a minute. For as long as the block runs, the environment says where it is."""
    started = Cluster(nodes)
    os.environ["RAY_ADDRESS"] = started.address
    try:
        yield started
    finally:
        del os.environ["RAY_ADDRESS"]
        started.stop()


@contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    """A small Ray of this process, for as long as the block runs."""
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address="local", num_cpus=cpus, object_store_memory=200_000_000, **options)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        ray.shutdown()


def map_actors() -> list[int]:
    """Processes of the actors of Ray Data that this process has started, by way of its Ray."""
    return sorted(pid for pid, command in own_processes().items() if command.startswith("ray::MapWorker"))


def own_processes() -> dict[int, str]:
    """Command lines of all processes below this one: those of another's Ray on this machine are not among them."""
    processes = {pid: (parent, command) for pid, parent, command in _processes()}

    def is_own(pid: int) -> bool:
        while pid in processes:
            pid = processes[pid][0]
            if pid == os.getpid():
                return True
        return False

    return {pid: command for pid, (_, command) in processes.items() if is_own(pid)}


def _processes() -> Iterator[tuple[int, int, str]]:
    """Each process with its parent and its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, (folder / "cmdline").read_text().replace("\0", " ")
