"""Hints about the next use of a context, through the whole engine: what each request says, and what is corrected."""

import asyncio
from typing import Any

from tests.support.engine_harness import now, waiting_tool

from batch_agent import BatchAgent, Tool
from batch_agent.core.requests import ContextHint, Request, Usage
from batch_agent.testing import ScriptedBackend, by_turn, call, say

DONE = say("done", Usage(100, 0, 1))
TURNS = by_turn(call("wait"), DONE)
LONG = by_turn(call("wait"), call("wait"), call("wait"), DONE)


@Tool.define
async def glance() -> str:
    """A quick tool."""
    await asyncio.sleep(1.0)
    return "seen"


def next_use(request: Request) -> float | None:
    assert request.hint is not None
    return None if request.hint.next_use is None else round(request.hint.next_use, 1)


class Server(ScriptedBackend):
    """One that takes hints."""

    def __init__(self, script: Any = TURNS, **options: Any) -> None:
        super().__init__(script, seconds=0.1, **({"takes_hints": True, "kv_tokens": 100_000} | options))
        self.hints: list[tuple[float, ContextHint]] = []

    async def hint(self, hint: ContextHint) -> None:
        self.hints.append((now(), hint))


async def run(backend: ScriptedBackend, inputs: int = 1, seconds: float = 10.0, **options: Any) -> None:
    options = {"tools": [waiting_tool(seconds)], "timeout_per_tool": None, **options}
    results = await BatchAgent.run(task="{it}", inputs=list(map(str, range(inputs))), backend=backend, **options)
    assert all(result.ok for result in results)


async def test_a_request_says_when_agents_typically_come_back() -> None:
    backend = Server(LONG)
    await run(backend, inputs=8, seconds=10.0)
    expected = {turn: {next_use(each) for each in backend.requests if each.turn == turn} for turn in (0, 2)}
    assert expected == {0: {None}, 2: {10.0}}


async def test_what_the_tools_of_a_reply_take_corrects_what_was_expected() -> None:
    backend = Server(by_turn(call("wait"), call("wait"), call("glance"), call("glance"), DONE))
    await run(backend, inputs=8, tools=[waiting_tool(10.0), glance])
    assert not [at for at, _ in backend.hints if at < 10.0]  # nothing was known when they began to wait
    corrections = [hint.next_use for at, hint in backend.hints if at > 20.5]
    assert len(corrections) == 8
    assert all(each is not None and each < 1.5 for each in corrections)


async def test_an_expectation_that_holds_is_not_corrected() -> None:
    backend = Server(LONG)
    await run(backend, inputs=8, seconds=10.0)
    assert not [at for at, _ in backend.hints if at > 20.0]


async def test_the_last_turn_is_said_to_be_the_last() -> None:
    backend = Server()
    await run(backend, max_turns=2)
    assert [each.hint.is_last for each in backend.requests if each.hint is not None] == [False, True]


async def test_a_server_that_takes_no_hints_gets_none() -> None:
    backend = Server(takes_hints=False)
    await run(backend, inputs=20, max_inflight=4)
    assert not backend.hints
    assert all(each.hint is None for each in backend.requests)


async def test_a_budget_of_tokens_allows_no_hints_without_a_request() -> None:
    backend = Server(by_turn(call("wait"), call("wait"), call("glance"), call("glance"), DONE), context_tokens=10_000)
    await run(backend, inputs=8, tools=[waiting_tool(10.0), glance], max_total_tokens=10_000_000, max_tokens=10)
    assert not backend.hints
    assert all(each.hint is not None for each in backend.requests)


async def test_a_context_in_a_slower_tier_is_loaded_shortly_before_its_agent_returns() -> None:
    backend = Server(LONG, kv_tokens=100_000, kv_running_tokens=10_000)
    await run(backend, inputs=8, seconds=100.0, kvflow=True)
    loads = [each for each in backend.requests if each.sampling.max_tokens == 1]
    assert loads
    for each in loads:
        assert each.hint is not None
        assert not each.hint.is_last
        assert 0.0 < (each.hint.next_use or 0.0) < 5.0


async def test_without_a_slower_tier_nothing_is_loaded() -> None:
    backend = Server(LONG, kv_tokens=100_000, kv_running_tokens=100_000)
    await run(backend, inputs=8, seconds=100.0, kvflow=True)
    assert all(each.sampling.max_tokens != 1 for each in backend.requests)
