"""Whoever joins a call that is under way has a time of its own. Across workers: test_shared_calls.py."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import orjson
from tests.support.virtual_time import virtual

from batch_agent import Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.tools import ToolExecutor, as_tool

P = ParamSpec("P")


@asynccontextmanager
async def using(*tools: Any) -> AsyncIterator[ToolExecutor]:
    executor = ToolExecutor([as_tool(tool) for tool in tools], timeout=None, max_tokens=1000)
    try:
        yield executor
    finally:
        await executor.aclose()


async def ask(executor: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    [result] = await executor.session("a").results([ToolCall("c1", name, orjson.dumps(arguments).decode())])
    return result


def now() -> float:
    return asyncio.get_running_loop().time()


async def later(seconds: float, work: Any) -> Any:
    await asyncio.sleep(seconds)
    return await work, round(now(), 3)


LATE = "look took longer than its 1 s (timeout_per_tool)."


def looking(seconds: float, **options: Any) -> Tool:
    """A tool that takes so long, and says the how-manieth execution it is."""
    number = itertools.count(1)

    @Tool.define(name="look", effect="read", timeout=1, **options)
    async def look() -> str:
        mine = next(number)
        await asyncio.sleep(seconds)
        return f"found {mine}"

    return look


@virtual
async def test_a_follower_has_its_own_time_and_the_leader_its_own_end() -> None:
    async with using(looking(1.5)) as executor:
        told = await asyncio.gather(*(later(at, ask(executor, "look")) for at in (0.0, 0.2, 0.9)))
    assert [(result.content, at) for result, at in told] == [(LATE, 1.0), (LATE, 1.2), ("found 1", 1.5)]


@virtual
async def test_an_execution_that_never_ends_is_called_off_when_the_time_of_the_last_is_over() -> None:
    ended: list[float] = []

    @Tool.define(effect="read", timeout=1)
    async def look() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(round(now(), 3))
        return "never"

    async with using(look) as executor:
        told = await asyncio.gather(*(later(at, ask(executor, "look")) for at in (0.0, 0.5, 0.9)))
        assert [(result.content, at) for result, at in told] == [(LATE, 1.0), (LATE, 1.5), (LATE, 1.9)]
    assert ended == [1.9]


@virtual
async def test_tool_timeouts_do_not_run_while_a_call_waits_for_its_turn() -> None:
    @Tool.define(effect="read", max_concurrent=1, timeout=1, name="work")
    async def work(n: int) -> int:
        await asyncio.sleep(0.9)
        return n

    async with using(work) as executor:
        told = await asyncio.gather(*(later(at, ask(executor, "work", n=n)) for n in range(4) for at in (0.0, 0.8)))
    assert not any(result.is_error for result, _ in told)


@virtual
async def test_a_leader_that_leaves_does_not_take_the_others_with_it() -> None:
    async with using(looking(0.9)) as executor:
        leader = asyncio.create_task(ask(executor, "look"))
        follower = asyncio.create_task(later(0.5, ask(executor, "look")))
        await asyncio.sleep(0.6)
        leader.cancel()
        result, at = await follower
    assert (result.content, at) == ("found 1", 0.9)


@virtual
async def test_a_late_caller_of_a_hanging_batch_gets_a_new_execution() -> None:
    number = itertools.count(1)

    @Tool.batchable(key_arg="key", name="look", timeout=1, window=0.0)
    async def look(keys: list[str]) -> list[str]:
        mine = next(number)
        await asyncio.sleep(3600 if mine == 1 else 0.1)
        return [f"found {mine}" for _ in keys]

    async with using(look) as executor:
        told = await asyncio.gather(*(later(at, ask(executor, "look", key="a")) for at in (0.0, 0.9)))
    assert [(result.content, at) for result, at in told] == [(LATE, 1.0), ("found 2", 1.1)]
