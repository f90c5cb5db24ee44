"""The tools of a run, from their opening to their end.

Toolboxes over a tool executor: some of the tools that several runs share, or none.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from ..core.coordinator import SharedCalls
from ..core.errors import StoreError
from ..core.messages import ToolSpec
from ..core.protocols import Journal
from ..core.spec import BatchSpec
from .disk_cache import ToolDiskCache
from .executor import Summarize, ToolExecutor
from .session import AgentToolSession
from .tool import Tool

_LONGEST_AGE = 7 * 24 * 3600.0
_MOST_PREWARMED = 200


@asynccontextmanager
async def open_tools(
    tools: Sequence[Tool],
    spec: BatchSpec,
    summarize: Summarize,
    tasks: Sequence[str],
    commons: SharedCalls | None = None,
) -> AsyncIterator[ToolExecutor]:
    """`tasks`: those of all agents that will call them. `commons`: what the calls share with other processes. Raises
    StoreError for a tool_cache_dir that cannot be used."""
    task = "\n".join(tasks)
    async with _memory(spec) as memory:
        fabric = ToolExecutor(
            tools,
            timeout=spec.timeouts.tool,
            max_tokens=spec.context.max_tool_tokens,
            cache_bytes=spec.tooling.tool_cache_mb * 1024 * 1024,
            summarize=summarize,
            memory=memory,
            commons=commons,
        )
        async with _prewarmed(fabric, memory, spec, task):
            try:
                yield fabric
            finally:
                await fabric.aclose()
        if memory is not None:
            with suppress(StoreError):  # what is not noted is not made ahead next time, and no more
                await memory.note(task, fabric.pure_calls)


@asynccontextmanager
async def _memory(spec: BatchSpec) -> AsyncIterator[ToolDiskCache | None]:
    folder = spec.tooling.tool_cache_dir
    if folder is None:
        yield None
        return
    memory = ToolDiskCache(folder)
    try:
        await memory.open()
        yield memory
    finally:
        await memory.aclose()


@asynccontextmanager
async def _prewarmed(
    fabric: ToolExecutor, memory: ToolDiskCache | None, spec: BatchSpec, task: str
) -> AsyncIterator[None]:
    """Beside the run, and called off with it."""
    if memory is None or not spec.tooling.predictive_prewarm:
        yield
        return
    likely = await memory.likely_calls(task, _LONGEST_AGE, _MOST_PREWARMED)
    ahead = asyncio.get_running_loop().create_task(fabric.prewarm(likely))
    try:
        yield
    finally:
        ahead.cancel()
        await asyncio.wait([ahead])


_NOTICE = 1_000
"""Tokens of the longest result: that a tool is not known."""


class ToolSubset:
    """A toolbox of its own for agents that know only these: what one of them was told is shared with all."""

    def __init__(self, fabric: ToolExecutor, tools: Sequence[Tool]) -> None:
        self._fabric = fabric
        self._names = tuple(tool.name for tool in tools)
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)
        self.may_start_early = any(tool.sharing.is_shared for tool in tools)

    def session(self, agent: str, journal: Journal | None = None) -> AgentToolSession:
        return AgentToolSession(self._fabric, agent, journal, self._names)

    async def aclose(self) -> None:
        """The fabric stays open: it is not ours."""


class NoTools:
    """Toolbox of a run without tools. A model that calls one nevertheless reads that there is none."""

    specs: tuple[ToolSpec, ...] = ()
    may_start_early = False

    def __init__(self) -> None:
        self._fabric: ToolExecutor | None = None

    def session(self, agent: str, journal: Journal | None = None) -> AgentToolSession:
        if self._fabric is None:
            self._fabric = ToolExecutor((), timeout=None, max_tokens=_NOTICE)
        return self._fabric.session(agent, journal)

    async def aclose(self) -> None:
        """There is nothing to close."""
