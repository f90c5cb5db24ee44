"""Runs whose shared tool results stand before the agents' own text."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.shared_run_workers import Link, calling, working

from batch_agent import AgentResult, BatchAgent, Flow, SpecError, Tool
from batch_agent.core.messages import Message, Reference, ToolResults, User
from batch_agent.core.requests import Request
from batch_agent.core.results import Timing
from batch_agent.run.replay import replay
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, call, say

TASK = "You answer questions about papers.\n\nQuestion: {it}"
PAPERS = "ABCD"


@Tool.define(effect="read")
async def read(title: str) -> str:
    """Reads a paper."""
    return f"{title} says so. " * 60


def answer(request: Request) -> Answer:
    """Agent n reads papers n, n + 1 and n + 2, then answers."""
    start = int(own_text(request.messages)[-1])
    if request.turn == 3:
        return say("so")
    return call("read", title=PAPERS[(start + request.turn) % len(PAPERS)])


def own_text(messages: tuple[Message, ...]) -> str:
    task = messages[0]
    assert isinstance(task, User)
    return task.text


def references(result: AgentResult) -> list[Reference | None]:
    messages = [message for message in result.transcript if isinstance(message, ToolResults)]
    return [each.reference for message in messages for each in message.results]


async def run(backend: Any, number: int = 8, **options: Any) -> list[AgentResult]:
    chosen: dict[str, Any] = {"task": TASK, "tools": [read], "shared_results": "first"} | options
    results: list[AgentResult] = await BatchAgent.run(
        inputs=[f"{n}" for n in range(number)], backend=backend, progress=False, **chosen
    )
    assert all(result.ok for result in results), [result.error for result in results]
    return results


def timeless(results: list[AgentResult]) -> list[AgentResult]:
    return [replace(result, timing=Timing()) for result in results]


async def test_all_prompts_begin_with_the_lead_and_then_the_same_papers_in_one_order() -> None:
    backend = ScriptedBackend(answer)
    await run(backend)
    for request in backend.requests:
        text = own_text(request.messages)
        assert text.startswith("You answer questions about papers.\n\n")
        shown = [paper for paper in PAPERS if f"{paper} says so" in text]
        assert len(shown) == request.turn
        order = sorted(shown, key=text.index)
        ranks = {each.heading: each.rank for result in [request] for each in _placed(result)}
        assert order == sorted(shown, key=lambda paper: ranks[f'read(title="{paper}")'])


def _placed(request: Request) -> list[Reference]:
    messages = [message for message in request.messages if isinstance(message, ToolResults)]
    return [each.reference for message in messages for each in message.results if each.reference is not None]


@pytest.mark.slow
async def test_the_server_computes_a_paper_once_that_all_agents_read() -> None:
    """On the simulated engine, whose prefix cache is vLLM's."""
    computed: dict[str, float] = {}
    long = Tool.define(name="read", effect="read")(lambda title: f"{title} says so. " * 400)
    for placement in ("inline", "first"):
        with SimServer(SimConfig(zero_latency=True), Script(tool_turns=1, keys=1)) as sim:
            await run(f"vllm://127.0.0.1:{sim.port}", 16, tools=[long], shared_results=placement)
            metrics = sim.metrics()
            computed[placement] = metrics["vllm:prompt_tokens_total"] - metrics["vllm:prefix_cache_hits_total"]
    assert computed["first"] < 0.25 * computed["inline"]


async def test_a_run_that_says_nothing_is_sent_as_before() -> None:
    backend = ScriptedBackend(answer)
    results = await run(backend, shared_results="inline")
    assert all(own_text(request.messages).startswith(TASK[:20]) for request in backend.requests)
    assert not any("<references>" in own_text(request.messages) for request in backend.requests)
    assert references(results[0]) == [None] * 3


async def test_auto_leaves_what_one_agent_reads_where_it_is() -> None:
    results = await run(ScriptedBackend(answer), 1, shared_results="auto")
    assert [each and each.placement for each in references(results[0])] == ["inline"] * 3


async def test_auto_places_first_what_many_agents_read() -> None:
    results = await run(ScriptedBackend(answer), 8, shared_results="auto")
    placements = [each and each.placement for result in results for each in references(result)]
    assert placements.count("first") > len(placements) / 2


async def test_a_tool_may_have_another_place_than_the_run() -> None:
    own = Tool.define(name="read", effect="read", placement="inline")(lambda title: f"{title} says so. " * 60)
    results = await run(ScriptedBackend(answer), tools=[own])
    assert references(results[0]) == [None] * 3


@pytest.mark.slow
async def test_a_resumed_run_sends_the_prompts_that_an_uninterrupted_one_would_have_sent(tmp_path: Path) -> None:
    whole = ScriptedBackend(answer)
    expected = await run(whole, checkpoint_dir=tmp_path / "whole", max_agents=1)
    sent = {(request.agent, request.turn): request.messages for request in whole.requests}
    stopped = 0
    for after in range(1, 32, 5):
        folder = tmp_path / f"{after}"
        second = ScriptedBackend(answer)
        await _interrupt(after, checkpoint_dir=folder, max_agents=1)
        resumed = await run(second, checkpoint_dir=folder, max_agents=1)
        assert [_contents(each.transcript) for each in resumed] == [_contents(each.transcript) for each in expected]
        for request in second.requests:
            assert _contents(request.messages) == _contents(sent[request.agent, request.turn])
        stopped += len(second.requests) < len(whole.requests)
    assert stopped


def _contents(messages: tuple[Message, ...]) -> list[str]:
    return [str([each.content for each in m.results]) if isinstance(m, ToolResults) else m.text for m in messages]


async def _interrupt(at: int, **options: Any) -> None:
    """Runs until a request, and is cancelled there."""
    requests, reached = 0, asyncio.Event()

    async def script(request: Request) -> Answer:
        nonlocal requests
        requests += 1
        if requests == at:
            reached.set()
            await asyncio.Event().wait()
        return answer(request)

    running = asyncio.ensure_future(run(ScriptedBackend(script), **options))
    async with asyncio.timeout(30):
        await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_replay_gives_the_results_of_the_run(tmp_path: Path) -> None:
    results = await run(ScriptedBackend(answer), checkpoint_dir=tmp_path)
    assert timeless(await replay(tmp_path, tools=[read])) == timeless(results)


async def test_workers_of_a_shared_run_use_one_order() -> None:
    backend, link = ScriptedBackend(answer, seconds=0.01), Link()
    options: dict[str, Any] = {"task": TASK, "tools": [read], "backend": backend, "shared_results": "first"}
    working_elsewhere = [asyncio.ensure_future(working(link.another(), **options)) for _ in range(2)]
    inputs = [{"it": f"{n % 10}"} for n in range(30)]
    try:
        results = [result async for result in calling(link, inputs, **options)]
    finally:
        for task in working_elsewhere:
            task.cancel()
        await asyncio.gather(*working_elsewhere, return_exceptions=True)
    assert len(results) == 30
    ranks = {(each.heading, each.rank) for request in backend.requests for each in _placed(request)}
    assert len(ranks) == len(PAPERS)


async def test_stages_of_a_flow_have_places_of_their_own() -> None:
    first = ScriptedBackend(answer)
    second = ScriptedBackend(answer)
    flow = (
        Flow([{"it": f"{n}"} for n in range(4)])
        .map("one", task=TASK, tools=[read], backend=first, shared_results="first")
        .map("two", task=TASK, tools=[read], backend=second)
    )
    await flow.run()
    assert any("<references>" in own_text(request.messages) for request in first.requests)
    assert not any("<references>" in own_text(request.messages) for request in second.requests)


async def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(SpecError, match="shared_results must be 'inline', 'first' or 'auto'; got 'top'"):
        await run(ScriptedBackend(answer), shared_results="top")
