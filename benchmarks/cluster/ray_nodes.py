"""A run on the nodes of a Ray cluster, all on this machine."""

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batch_agent import BatchAgent
from batch_agent.sim import SimServer
from benchmarks.cluster.agents import TASK, Agents
from benchmarks.cluster.faults import LEASE_S, ROOM
from benchmarks.cluster.redis_stats import Server
from benchmarks.cluster.rounds import Asked, Numbers, Rounds, target
from benchmarks.cluster.scaling import LATENCY

NODES = 4
WHEN = 0.5
_GREETINGS = NODES + 1
"""Requests before the first agent: each worker and the caller look whether the server takes calls of tools. A worker
that came too early, or was started anew, does it again, so what is more is not all turns."""


async def on_ray(server: Server, asked: Asked) -> Numbers:
    """Agents whose tool changes something; the head of the cluster, where the caller is, runs none of them."""
    agents = Agents(asked.agents or 1_000, effect="write", tool_s=0.05)
    rounds = Rounds("ray")
    for _ in asked.turns():
        for case in ("none", "node killed"):
            with _cluster() as cluster, SimServer(LATENCY) as engine, TemporaryDirectory() as folder:
                notes = Path(folder) / "writes"
                rounds.add(case, await _measured(cluster if case != "none" else None, agents, engine, notes))
    medians = rounds.medians()
    return {
        "agents": agents.number,
        "nodes": NODES,
        "at_once": ROOM,
        "lease_s": LEASE_S,
        "against_none": round(medians["node killed"]["wall_s"] / medians["none"]["wall_s"], 3),
        "medians": medians,
        "targets": [
            target(f"ray: {case}: {what}", max(one[what] for one in taken), most=0)
            for case, taken in rounds.taken.items()
            for what in ("lost", "twice", "writes_twice")
        ],
        "all_rounds": rounds.taken,
    }


async def _measured(cluster: "_Cluster | None", agents: Agents, engine: SimServer, notes: Path) -> Numbers:
    """`cluster`: one that loses a node."""
    found: Counter[int] = Counter()
    right, first, began = 0, 0.0, time.perf_counter()
    stream = BatchAgent.stream(
        task=TASK,
        inputs=agents.inputs(),
        tools=[agents.tool(str(notes))],
        backend=engine.url,
        model="sim",
        max_agents=ROOM,
        lease=LEASE_S,
        cluster="ray",
        workers=NODES,
        progress=False,
    )
    async with stream:
        async for result in stream:
            first = first or time.perf_counter()
            found[result.index] += 1
            right += agents.is_right(result.index, result.output)
            if cluster is not None and found.total() == WHEN * agents.number:
                await asyncio.to_thread(cluster.lose_a_node)
    ended = time.perf_counter()
    made = Counter(notes.read_text().split())
    requests = engine.metrics()["sim:http_requests_total"]
    return {
        "wall_s": ended - first,
        "with_start_s": ended - began,
        "lost": agents.number - right,
        "twice": found.total() - len(found),
        "writes_twice": made.total() - len(made),
        "writes_unknown": agents.number - len(made),
        "asked_again_at_most": requests - 2 * agents.number - _GREETINGS,
    }


class _Cluster:
    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._ray = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes = [self._ray.add_node(num_cpus=1) for _ in range(NODES)]

    @property
    def address(self) -> str:
        return str(self._ray.address)

    def lose_a_node(self) -> None:
        """It is killed, with all that runs there."""
        self._ray.remove_node(self._nodes.pop(), allow_graceful=False)

    def stop(self) -> None:
        self._ray.shutdown()


@contextmanager
def _cluster() -> Iterator[_Cluster]:
    """Takes half a minute. Ray reads the environment when it is imported; its ports are open to the network, and a
    token keeps others out."""
    settings: dict[str, Any] = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    cluster = _Cluster()
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.stop()
