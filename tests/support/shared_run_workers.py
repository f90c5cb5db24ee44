"""Workers of one shared run, in one process and in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.core.protocols.event_sink import EventSink
from batch_agent.core.protocols.store import Store
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.result_stream import ResultStream
from batch_agent.run import runner
from batch_agent.run.setup import RunSetup
from batch_agent.store.memory_store import MemoryStore

T = TypeVar("T")

PARTS = ("documents", "inputs", "work", "facts", "updates", "calls")
LEASE = 6.0
LONG = 1e6
"""Of a lease, where a thread takes real time: virtual time may fly by meanwhile."""


class Part:
    """A part of a coordinator behind a link. What a class overrides does not pass the link."""

    def __init__(self, link: "Link", name: str) -> None:
        self.link = link
        self.behind: Any = getattr(link.coordinator, name)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(self.link.call, getattr(self.behind, name))


class Link:
    """Connection of one worker to a shared coordinator. While it is cut, calls wait until it is mended."""

    is_durable = False

    def __init__(self, coordinator: MemoryCoordinator | None = None, **parts: type[Part]) -> None:
        """`parts`: those that are not as they should be, by name."""
        self.coordinator = coordinator or MemoryCoordinator(MemoryStore())
        self.call_count = 0
        self.parts = {name: parts.get(name, Part)(self, name) for name in PARTS}
        self._is_whole = asyncio.Event()
        self._is_whole.set()

    def another(self) -> "Link":
        return Link(self.coordinator)

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    async def open(self) -> None:
        """Does nothing: the coordinator stays open for the other workers."""

    async def aclose(self) -> None:
        pass

    def __getattr__(self, name: str) -> Part:
        return self.parts[name]

    async def call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        await self._is_whole.wait()
        self.call_count += 1
        answer = await method(*args, **options)
        await self._is_whole.wait()
        return answer


def link_to_coordinator_of(store: Store) -> Link:
    return Link(MemoryCoordinator(store))


def calling(
    link: Any, inputs: Any, *, works: bool = True, events: EventSink | None = None, **options: Any
) -> ResultStream:
    """One who asks, and usually works too."""
    spec = BatchSpec.of(**{"task": "{it}", "inputs": inputs, "lease": LEASE, **options})
    return ResultStream(partial(runner.run, RunSetup.validate(spec, events), coordinator=link, runs_agents=works))


async def answers(stream: ResultStream) -> dict[int, Any]:
    """What each input came to: its output, or the kind of its error. No input comes twice."""
    found: dict[int, Any] = {}
    async with stream:
        async for result in stream:
            assert result.index not in found
            found[result.index] = result.error.kind if result.error else result.output
    return found


async def working(link: Any, events: EventSink | None = None, **options: Any) -> None:
    """One who works for others."""
    spec = BatchSpec.of(task="{it}", inputs=[], lease=LEASE, **options)
    await runner.work(RunSetup.validate(spec, events), link)
