"""Helpers of the engine tests: runs of agents on a scripted backend, and a log of their events."""

import asyncio
from typing import Any

from batch_agent import AgentResult, BatchAgent, Tool
from batch_agent.core.messages import User
from batch_agent.core.requests import Request
from batch_agent.engine.result_stream import ResultStream
from batch_agent.testing import ScriptedBackend


def now() -> float:
    return asyncio.get_running_loop().time()


def stream(backend: ScriptedBackend, inputs: Any, **options: Any) -> ResultStream:
    return BatchAgent.stream(task="{it}", inputs=inputs, backend=backend, **options)


async def run(backend: ScriptedBackend, inputs: Any, **options: Any) -> list[AgentResult]:
    results: list[AgentResult] = await BatchAgent.run(task="{it}", inputs=inputs, backend=backend, **options)
    return results


def asked(request: Request) -> str:
    """The input that a request is about."""
    first = request.messages[0]
    assert isinstance(first, User)
    return first.text


def waiting_tool(seconds: float) -> Tool:
    """A tool called `wait` that takes its time."""

    @Tool.define
    async def wait() -> str:
        await asyncio.sleep(seconds)
        return "waited"

    return wait
