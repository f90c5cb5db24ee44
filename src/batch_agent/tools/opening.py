"""The tools of a run, from their opening to their end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from ..core.commons import Commons
from ..core.errors import StoreError
from ..core.spec import BatchSpec
from .fabric import Summarize, ToolFabric
from .memory import ToolMemory
from .tool import Tool

_LONGEST_AGE = 7 * 24 * 3600.0
_MOST_PREWARMED = 200


@asynccontextmanager
async def open_tools(
    tools: Sequence[Tool],
    spec: BatchSpec,
    summarize: Summarize,
    tasks: Sequence[str],
    commons: Commons | None = None,
) -> AsyncIterator[ToolFabric]:
    """`tasks`: those of all agents that will call them. `commons`: what the calls share with other processes. Raises
    StoreError for a tool_cache_dir that cannot be used."""
    task = "\n".join(tasks)
    async with _memory(spec) as memory:
        fabric = ToolFabric(
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
async def _memory(spec: BatchSpec) -> AsyncIterator[ToolMemory | None]:
    folder = spec.tooling.tool_cache_dir
    if folder is None:
        yield None
        return
    memory = ToolMemory(folder)
    try:
        await memory.open()
        yield memory
    finally:
        await memory.aclose()


@asynccontextmanager
async def _prewarmed(fabric: ToolFabric, memory: ToolMemory | None, spec: BatchSpec, task: str) -> AsyncIterator[None]:
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
