"""What can be seen of a run at its Redis server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from batch_agent.cluster.redis.keyspace import PREFIX
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.core.coordinator import Completion
from batch_agent.store.codec import decode_completion
from benchmarks.cluster.redis_server import OwnServer


@dataclass(frozen=True, slots=True)
class Taken:
    """What a server has done so far, and holds."""

    cpu_s: float
    bytes_held: int
    bytes_logged: int
    commands: Counter[str]
    """Those that scripts make too."""

    def since(self, before: "Taken") -> "Taken":
        return Taken(
            self.cpu_s - before.cpu_s,
            self.bytes_held - before.bytes_held,
            self.bytes_logged - before.bytes_logged,
            self.commands - before.commands,
        )

    def for_each(self, agents: int) -> dict[str, float]:
        return {
            "redis_cpu_us_per_agent": self.cpu_s / agents * 1e6,
            "redis_bytes_per_agent": self.bytes_held / agents,
            "aof_bytes_per_agent": self.bytes_logged / agents,
            "commands_per_agent": self.commands.total() / agents,
        }

    def commands_for_each(self, agents: int) -> dict[str, float]:
        return {name: round(count / agents, 3) for name, count in self.commands.most_common()}


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, as its server has it."""

    seconds: float
    """From the first lease to the last ending, by the server's clock."""
    workers: int
    """That have ended an agent."""
    ended_twice: int
    """More endings than one, of one agent."""
    stories: Counter[tuple[str, ...]]
    """Kinds of facts, and how many agents have these."""


class Server:
    """Of ours, or one that was there."""

    def __init__(self, url: str, own: OwnServer | None) -> None:
        self.url = url
        self.own = own
        self._client: Any = Redis.from_url(url)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def restart(self, away_s: float) -> None:
        """Of our own: killed, and started again after so long."""
        assert self.own is not None
        self.own.kill()
        await asyncio.sleep(away_s)
        await self.own.start()
        await self._client.connection_pool.disconnect()

    async def taken(self) -> Taken:
        found: dict[str, Any] = await self._client.info("everything")
        calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items() if name[:8] == "cmdstat_"}
        commands = Counter({name: count for name, count in calls.items() if name not in _NOT_COUNTED})
        cpu = found["used_cpu_user"] + found["used_cpu_sys"]
        return Taken(cpu, found["used_memory"], found.get("aof_current_size", 0), commands)

    async def ended(self, run: str) -> int:
        return len(_completions(await self._client.xrange(_key(run, "ended"))))

    async def seen(self, run: str) -> Seen:
        """Tokens of leases are microseconds of the server's clock, ids in its streams milliseconds."""
        state = await self._client.hgetall(_key(run, "state"))
        endings = {name[6:].decode(): value for name, value in state.items() if name[:6] == b"agent:"}
        told = await self._client.xrange(_key(run, "ended"))
        first = min(int(ending.split()[1]) for ending in endings.values() if ending[:1] == b"!")
        completions = _completions(told)
        workers = {completion.worker for completion in completions}
        last = int(told[-1][0].partition(b"-")[0])
        keys = Counter(completion.key for completion in completions)
        coordinator = RedisCoordinator(self.url, run)
        facts = await coordinator.facts.read_many(list(endings))
        await coordinator.aclose()
        stories = Counter(tuple(type(fact).__name__.lower() for fact in listed) for listed in facts)
        return Seen(last / 1e3 - first / 1e6, len(workers), keys.total() - len(keys), stories)

    async def forget(self, run: str) -> None:
        coordinator = RedisCoordinator(self.url, run)
        await coordinator.delete_run()
        await coordinator.aclose()


_NOT_COUNTED = ("info", "ping", "config|get", "client|setinfo", "hello")


def _completions(told: list[Any]) -> list[Completion]:
    lines = (line for _, fields in told for found in fields.values() for line in found.splitlines())
    return [decode_completion(line) for line in lines]


def _key(run: str, name: str) -> str:
    return f"{PREFIX}{{{run}}}:{name}"


@asynccontextmanager
async def open_server(url: str | None) -> AsyncIterator[Server]:
    """None: one of our own, for as long as the block runs."""
    if url is not None:
        async with aclosing(Server(url, None)) as server:
            yield server
        return
    own = OwnServer()
    try:
        await own.start()
        async with aclosing(Server(own.url, own)) as server:
            yield server
    finally:
        own.remove()
