"""A slot is held while the model generates, by those who were there first, and by no more than the limit."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import asked, now, run, waiting_tool

from batch_agent import ErrorKind, Tool
from batch_agent.core.requests import Reply, Request
from batch_agent.testing import ScriptedBackend, by_turn, call, run_virtual, say


async def test_a_slot_is_held_only_while_the_model_generates() -> None:
    backend = ScriptedBackend(by_turn(call("wait"), say("done")), seconds=1)
    results = await run(backend, [f"agent {n}" for n in range(100)], tools=[waiting_tool(10)], max_inflight=1)
    assert all(result.ok for result in results)
    assert backend.most_in_flight == 1
    assert 200 <= now() <= 211  # 1,200 if the slot were held during the tools


async def test_new_agents_wait_behind_agents_that_return_from_their_tools() -> None:
    backend = ScriptedBackend(by_turn(call("wait"), say("done")), seconds=1)
    await run(backend, ["a", "b", "c"], tools=[waiting_tool(0.5)], max_inflight=1)
    assert [asked(request) for request in backend.requests] == ["a", "b", "a", "b", "c", "c"]


async def test_agents_that_wait_for_their_tools_are_bounded_by_max_dispatched() -> None:
    living = most = 0

    @Tool.define
    async def wait() -> str:
        nonlocal living, most
        living += 1
        most = max(most, living)
        await asyncio.sleep(50)
        living -= 1
        return "waited"

    backend = ScriptedBackend(by_turn(call("wait"), say("done")), seconds=1)
    await run(backend, list("abcdefghij"), tools=[wait], max_inflight=2, max_dispatched=4)
    assert most == 4


async def test_without_max_inflight_the_limit_is_that_of_the_backend() -> None:
    backend = ScriptedBackend(lambda request: say("done"), seconds=1, inflight=3, fixed_inflight=True)
    await run(backend, list("abcdefghij"))
    assert backend.most_in_flight == 3


async def test_a_resumed_agent_that_waits_for_its_tools_releases_its_first_slot(tmp_path: Any) -> None:
    waiting, all_wait, go_on = 0, asyncio.Event(), asyncio.Event()

    @Tool.define(effect="stateful")
    async def wait() -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            all_wait.set()
        await go_on.wait()
        return "waited"

    backend = ScriptedBackend(by_turn(call("wait"), say("done")))
    options: dict[str, Any] = {
        "tools": [wait],
        "checkpoint_dir": tmp_path,
        "max_inflight": 1,
        "timeout_per_tool": None,
        "timeout_per_agent": None,
    }
    interrupted = asyncio.create_task(run(backend, list("ab"), **options))
    await all_wait.wait()
    interrupted.cancel()
    await asyncio.wait([interrupted])
    waiting = 0
    all_wait.clear()
    resumed = asyncio.create_task(run(backend, list("ab"), **options))
    await all_wait.wait()
    go_on.set()
    results = await resumed
    assert [result.text for result in results] == ["done", "done"]
    assert len(backend.requests) == 4


durations = st.sampled_from([0.0, 0.5, 1.0, 2.5])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    limit=st.integers(1, 4),
    models=st.lists(durations, min_size=1, max_size=12),
    tools=st.lists(durations, min_size=1, max_size=12),
    agent_timeout=st.sampled_from([None, 1.0, 2.0, 3.0]),
)
def test_the_slot_limit_is_never_exceeded_and_every_agent_ends(
    limit: int, models: list[float], tools: list[float], agent_timeout: float | None
) -> None:
    @Tool.define
    async def wait(number: int) -> str:
        await asyncio.sleep(tools[number % len(tools)])
        return "waited"

    async def answer(request: Request) -> Reply:
        number = int(asked(request))
        await asyncio.sleep(models[number % len(models)])
        return call("wait", number=number) if len(request.messages) == 1 else say("done")

    async def main() -> None:
        backend = ScriptedBackend(answer)
        results = await run(
            backend, list(map(str, range(12))), tools=[wait], max_inflight=limit, timeout_per_agent=agent_timeout
        )
        assert [result.index for result in results] == list(range(12))
        assert backend.most_in_flight <= limit
        assert backend.in_flight == 0
        for result in results:
            assert result.error is None or result.error.kind is ErrorKind.AGENT_TIMEOUT

    run_virtual(main())
