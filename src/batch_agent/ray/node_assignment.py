"""Assignment of workers to the nodes of a Ray cluster."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from yarl import URL

from ..core.fast_dataclass import dataclass

WORKER_CPUS = 1
"""Number of CPUs that a worker reserves on its node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A live node of the cluster."""

    id: str
    address: str
    cpus: float = 0.0


def live_nodes(listed: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The live nodes in a list returned by `ray.nodes()`."""
    return [
        Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"].get("CPU", 0.0))
        for each in listed
        if each["Alive"]
    ]


def assign_nodes(nodes: Sequence[Node], workers: int | None, here: str) -> list[Node | None]:
    """The node of each worker: one worker on each node with a CPU, or `workers` of them, round robin. `here`: the
    submitter's node, which comes last, because the submitter uses its CPU. None if no node has a CPU: Ray may add
    one."""
    eligible = sorted((node for node in nodes if node.cpus >= WORKER_CPUS), key=lambda node: node.id == here)
    if not eligible:
        return [None] * (workers or 1)
    return list(islice(cycle(eligible), workers or len(eligible)))


def joined_nodes(nodes: Sequence[Node], known: set[str]) -> list[Node]:
    """Nodes with a CPU that are not yet in `known`, to which they are added."""
    new = [node for node in nodes if node.cpus >= WORKER_CPUS and node.id not in known]
    known.update(node.id for node in new)
    return new


def crowded_worker(node_of_worker: Mapping[str, str]) -> str | None:
    """The last worker on a node that has more than one because another node was lost; None if there is no such node.
    `node_of_worker`: ids of nodes by workers' ranks."""
    counts = Counter(node_of_worker.values())
    crowded = [rank for rank, node in node_of_worker.items() if counts[node] > 1]
    return crowded[-1] if crowded else None


def is_loopback_per_node(url: str, nodes: Sequence[Node]) -> bool:
    """Whether a backend's URL is a loopback address, which is a different server on each node."""
    is_loopback = URL(url).host in ("localhost", "127.0.0.1", "::1")
    return is_loopback and len({node.address for node in nodes}) > 1
