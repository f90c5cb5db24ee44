"""What the tests of all hubs need. In one process a hub is one object for all workers; in Redis each has its own."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator
from batch_agent.core.agent_config import Job
from batch_agent.core.coordinator import Append, Completion, Coordinator, End, Lease, Write
from batch_agent.core.facts import Fact, Replied, Returned, Started
from batch_agent.core.messages import Thought, ToolCall, ToolResult
from batch_agent.core.requests import Reply, Usage
from batch_agent.store.memory_store import MemoryStore
from batch_agent.store.sqlite import SqliteStore

Meet = Callable[[], Awaitable[Coordinator]]
"""Opens the hub of the run once more, as another worker would."""

SHORT, LONG = 0.25, 600.0
"""Seconds of leases."""

CALL = ToolCall("call_1", "look", '{"q": "ä\\u0000\U0001f600"}')
STARTED = Started(7, {"text": "line\n\0 ünïcode"}, "Do \0 this: \U0001f600")
ASKED = Replied(
    Reply("", "calls", Usage(120, 64, 7), (CALL,), (Thought("Let me see.", "signed"), Thought(redacted="x"))), 0.25, 1.5
)
RETURNED = Returned((ToolResult(CALL, "line\n\0 ünïcode", True, 0.5),), 0.75)
ANSWERED = Replied(Reply("42", "stop", Usage(150, 120, 3)))
STORY: tuple[Fact, ...] = (STARTED, ASKED, RETURNED, ANSWERED)


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def meet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Meet]:
    opened: list[Coordinator] = []
    run = uuid.uuid4().hex

    async def one() -> Coordinator:
        if request.param == "redis":
            coordinator: Coordinator = RedisCoordinator(request.getfixturevalue("redis_server").url, run)
        elif opened:
            return opened[0]
        else:
            coordinator = MemoryCoordinator(
                MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "run")
            )
        await coordinator.open()
        opened.append(coordinator)
        return coordinator

    yield one
    for coordinator in opened:
        await coordinator.aclose()


@pytest.fixture
async def coordinator(meet: Meet) -> Coordinator:
    return await meet()


def jobs(*keys: str) -> list[Job]:
    return [Job(index, key, {"text": key}, f"Do {key}.") for index, key in enumerate(keys)]


async def leased(coordinator: Coordinator, worker: str, *keys: str, ttl: float = LONG) -> dict[str, Lease]:
    """These are posted, and the worker has them; nothing else is there to be had."""
    await coordinator.work.submit(jobs(*keys), retry_failed=False)
    return by_key(await coordinator.work.lease(worker, len(keys), ttl=ttl, wait=0))


async def taken_over(coordinator: Coordinator, worker: str, *keys: str) -> dict[str, Lease]:
    """The leases of these have run out, or are about to."""
    found: dict[str, Lease] = {}
    while found.keys() != set(keys):
        found |= by_key(await coordinator.work.lease(worker, len(keys), ttl=LONG, wait=SHORT))
    return found


def by_key(leases: Iterable[Lease]) -> dict[str, Lease]:
    return {lease.job.key: lease for lease in leases}


def told(lease: Lease, *facts: Fact, part: str = "") -> list[Write]:
    return [Append(lease.job.key + part, lease.token, fact) for fact in facts]


def ends(lease: Lease, ending: Completion | None = None) -> Write:
    return End(lease.token, ending or Completion(lease.job.key))
