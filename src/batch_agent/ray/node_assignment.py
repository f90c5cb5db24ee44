"""Which nodes of a cluster the workers of a run are for."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from yarl import URL

from ..core.fast_dataclass import dataclass

CPUS = 1
"""That a worker takes of its node."""


@dataclass(frozen=True, slots=True)
class Node:
    """One that is alive."""

    id: str
    address: str
    cpus: float = 0.0


def alive(listed: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Of what Ray knows."""
    return [
        Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"].get("CPU", 0.0))
        for each in listed
        if each["Alive"]
    ]


def assign_nodes(nodes: Sequence[Node], workers: int | None, here: str) -> list[Node | None]:
    """A node for each worker: one on each that has room for it, or as many as are wanted, in turn. `here`: the node of
    the caller, who is busy already, comes last. None where no node has room: Ray may get one that has."""
    fit = sorted((node for node in nodes if node.cpus >= CPUS), key=lambda node: node.id == here)
    if not fit:
        return [None] * (workers or 1)
    return list(islice(cycle(fit), workers or len(fit)))


def is_loopback_per_node(url: str, nodes: Sequence[Node]) -> bool:
    """Whether a backend's address means another server on each of the nodes."""
    is_near = URL(url).host in ("localhost", "127.0.0.1", "::1")
    return is_near and len({node.address for node in nodes}) > 1
