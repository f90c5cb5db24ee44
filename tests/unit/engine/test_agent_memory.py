"""Agents of a run are freed when they end."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from batch_agent import BatchAgent, Tool
from batch_agent.core.requests import Request
from batch_agent.testing import ScriptedBackend, call, say


@Tool.define(effect="read")
async def look(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


@pytest.mark.slow
async def test_an_agent_that_has_ended_is_freed_without_the_collector() -> None:
    """A cycle for each agent would be found late, and would double what the collector examines."""
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    def script(request: Request) -> Any:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        return say("done") if request.turn else call("look", key="k")

    alive: list[int] = []
    gc.collect()
    gc.disable()
    try:
        results = await BatchAgent.run(
            task="Task {i}",
            inputs=[{"i": i} for i in range(20)],
            tools=[look],
            backend=ScriptedBackend(script),
            max_inflight=1,
            on_result=lambda _: alive.append(len({id(task()) for task in tasks if task() is not None})),
        )
    finally:
        gc.enable()
    assert all(result.ok for result in results)
    assert len(tasks) == 40
    assert alive[-1] < 5
