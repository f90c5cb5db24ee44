"""A real Ray cluster of several nodes, on this machine."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Ray reads these when it is imported. Its ports are open to the network: a token keeps others out.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

CLIENT_PORT = 20001


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
