"""Tools of a run, from opening to closing, and the tool sets of runs that share an executor or have no tools."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from ..core.agent_config import Job
from ..core.errors import StoreError
from ..core.facts import Fact
from ..core.messages import Placement, ToolSpec
from ..core.protocols.tool_set import Journal
from ..core.shared_calls import SharedCalls
from ..core.spec import BatchSpec
from .agent_tools import AgentToolSession
from .disk_cache import ToolDiskCache
from .executor import Summarize, ToolExecutor
from .tool import Tool
from .tool_context import ArtifactFolders

_PREWARM_MAX_AGE = 7 * 24 * 3600.0
_MAX_PREWARMED = 200


@asynccontextmanager
async def open_tools(
    tools: Sequence[Tool],
    spec: BatchSpec,
    summarize: Summarize,
    tasks: Sequence[str],
    shared_calls: SharedCalls | None = None,
) -> AsyncIterator[ToolExecutor]:
    """Executor of a run's tools. `tasks`: those of all agents that will call them. `shared_calls`: shares calls with
    other processes. Raises StoreError for a tool_cache_dir that cannot be used."""
    task = "\n".join(tasks)
    async with _open_disk_cache(spec) as disk_cache:
        executor = ToolExecutor(
            tools,
            timeout=spec.timeouts.tool,
            max_tokens=spec.context.max_tool_tokens,
            cache_bytes=spec.tool_caching.tool_cache_mb * 1024 * 1024,
            summarize=summarize,
            disk_cache=disk_cache,
            shared_calls=shared_calls,
            checkpoint_dir=spec.checkpoint_dir,
        )
        async with _prewarm(executor, disk_cache, spec, task):
            try:
                yield executor
            finally:
                await executor.aclose()
        if disk_cache is not None:
            with suppress(StoreError):  # the next run prewarms less, and loses nothing else
                await disk_cache.record_calls(task, executor.pure_calls)


@asynccontextmanager
async def _open_disk_cache(spec: BatchSpec) -> AsyncIterator[ToolDiskCache | None]:
    folder = spec.tool_caching.tool_cache_dir
    if folder is None:
        yield None
        return
    disk_cache = ToolDiskCache(folder)
    try:
        await disk_cache.open()
        yield disk_cache
    finally:
        await disk_cache.aclose()


@asynccontextmanager
async def _prewarm(
    executor: ToolExecutor, disk_cache: ToolDiskCache | None, spec: BatchSpec, task: str
) -> AsyncIterator[None]:
    """Makes likely calls in parallel with the run, until it ends."""
    if disk_cache is None or not spec.tool_caching.predictive_prewarm:
        yield
        return
    likely = await disk_cache.likely_calls(task, _PREWARM_MAX_AGE, _MAX_PREWARMED)
    prewarming = asyncio.get_running_loop().create_task(executor.prewarm(likely))
    try:
        yield
    finally:
        prewarming.cancel()
        await asyncio.wait([prewarming])


class ToolSubset:
    """Tool set of agents that have only some of an executor's tools, or folders of their own for what tools make.
    Results are shared with all of its agents."""

    def __init__(
        self,
        executor: ToolExecutor,
        tools: Sequence[Tool],
        artifacts: ArtifactFolders | None = None,
        placement: Placement = "inline",
    ) -> None:
        """`placement`: of the results of tools that have none of their own."""
        self._executor = executor
        self._placement = placement
        self._artifacts = artifacts
        self._names = tuple(tool.name for tool in tools)
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)
        self.may_start_early = any(tool.is_shared for tool in tools)

    def session(self, agent: str, journal: Journal | None = None, job: Job | None = None) -> AgentToolSession:
        return AgentToolSession(
            self._executor, agent, journal, self._names, job, self._artifacts, placement=self._placement
        )

    def recall(self, facts: Sequence[Fact]) -> None:
        self._executor.recall(facts)

    async def aclose(self) -> None:
        """Leaves the executor open: other runs use it."""
