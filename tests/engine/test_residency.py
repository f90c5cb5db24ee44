"""Agents wait for a place in the KV cache, through the whole engine: all of them come to their end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import asked, now, stream, waiting_tool

from batch_agent import BackendError, BatchAgent, ErrorKind, Tool
from batch_agent.core.agent_config import FirstPrompt
from batch_agent.core.messages import Assistant
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.data.results import Results
from batch_agent.engine.residency import Residency
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.slot_queue import Priority
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, calls, run_virtual, say

KV_TOKENS = 4600
"""Room for three agents of 1000 tokens that are taken to grow by a quarter, and for what they share."""


@pytest.fixture(autouse=True)
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time stands still while a timer is set to now again and again, so no timeout would end a test in which
    the residency polls. Its looks are counted, and too many of them fail the test."""
    looks, go_on = 0, Residency.admit_waiting

    def look(residency: Residency) -> None:
        nonlocal looks
        looks += 1
        assert looks < 100_000
        go_on(residency)

    monkeypatch.setattr(Residency, "admit_waiting", look)


def inputs(number: int, chars: int = 4000) -> list[str]:
    return [f"{index:>{chars}}" for index in range(number)]


def wants(tool: str, usage: Usage, **arguments: Any) -> Reply:
    return replace(call(tool, **arguments), usage=usage)


def turn_of(request: Request) -> int:
    return sum(isinstance(message, Assistant) for message in request.messages)


class UnderWay:
    """A script around another one that knows how many agents have been asked something and are not done."""

    def __init__(self, script: Callable[[Request], Answer | Awaitable[Answer]]) -> None:
        self._script = script
        self.agents: set[str] = set()
        self.most = 0

    async def __call__(self, request: Request) -> Answer:
        self.agents.add(asked(request))
        self.most = max(self.most, len(self.agents))
        answer = self._script(request)
        answer = await answer if isinstance(answer, Awaitable) else answer
        if isinstance(answer, BackendError) or not answer.calls:
            self.agents.discard(asked(request))
        return answer


async def run(backend: ScriptedBackend, given_inputs: Any, **options: Any) -> Results:
    results = await BatchAgent.run(task="{it}", inputs=given_inputs, backend=backend, **options)
    assert isinstance(results, Results)
    assert backend.in_flight == 0
    assert armed() == []
    return results


def armed() -> list[asyncio.TimerHandle]:
    scheduled: list[asyncio.TimerHandle] = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009
    return [handle for handle in scheduled if not handle.cancelled() and "Residency" in repr(handle)]


ORDINARY = by_turn(
    wants("wait", Usage(1000, 0, 10)), wants("wait", Usage(1100, 1000, 10)), say("done", Usage(1200, 1100, 10))
)


async def out_of_step(request: Request) -> Answer:
    """Turns take so differently long that somebody always asks: an idle engine would let guests in."""
    await asyncio.sleep(1 + (int(asked(request)) * 0.618 + turn_of(request) * 0.414) % 1)
    return ORDINARY(request)  # type: ignore[return-value]


async def test_agents_beyond_the_capacity_wait_and_all_results_arrive() -> None:
    script = UnderWay(out_of_step)
    backend = ScriptedBackend(script, kv_tokens=KV_TOKENS, inflight=100)
    results = await run(backend, inputs(20), tools=[waiting_tool(0.01)])
    assert [result.text for result in results] == ["done"] * 20
    assert script.most == results.scheduling.max_residents == 3
    assert (results.scheduling.overcommitted, results.scheduling.evictions, results.scheduling.cache_misses) == (
        0,
        0,
        0,
    )


async def test_without_a_known_capacity_no_agent_waits() -> None:
    script = UnderWay(ORDINARY)
    backend = ScriptedBackend(script, seconds=1, inflight=100)
    results = await run(backend, inputs(20), tools=[waiting_tool(0.5)])
    assert script.most == 20
    assert results.scheduling.kv_tokens is None
    assert now() == 4


@pytest.mark.parametrize("traits", [{"kv_tokens": 10, "managed_cache": True}, {"kv_tokens": 10}])
async def test_residency_is_not_counted_where_contexts_are_not_reused(traits: dict[str, Any]) -> None:
    backend = ScriptedBackend(by_turn(say("done")), seconds=1, inflight=100, **traits)
    tools = [waiting_tool(1)] if "managed_cache" in traits else []
    results = await run(backend, inputs(10), tools=tools)
    assert results.scheduling.max_residents is None
    assert backend.most_in_flight == 10


async def test_agents_larger_than_the_whole_cache_take_turns() -> None:
    script = UnderWay(by_turn(say("done", Usage(1000, 0, 10))))
    backend = ScriptedBackend(script, seconds=1, kv_tokens=500, inflight=100)
    results = await run(backend, inputs(4), tools=[waiting_tool(0.01)])
    assert [result.text for result in results] == ["done"] * 4
    assert script.most == 1
    assert results.scheduling.overcommitted == 0


async def test_while_the_tools_of_an_agent_bigger_than_the_whole_cache_run_others_are_overcommitted() -> None:
    backend = ScriptedBackend(ORDINARY, seconds=1, kv_tokens=500, inflight=100)
    results = await run(backend, inputs(4), tools=[waiting_tool(10)])
    assert [result.text for result in results] == ["done"] * 4
    assert results.scheduling.overcommitted + results.scheduling.evictions > 0
    assert now() < 4 * 23


async def test_without_reported_usage_residency_uses_the_estimated_prompt_size() -> None:
    script = UnderWay(by_turn(call("wait"), say("done")))
    backend = ScriptedBackend(script, seconds=1, kv_tokens=KV_TOKENS, inflight=100)
    results = await run(backend, inputs(12), tools=[waiting_tool(0.01)])
    assert [result.text for result in results] == ["done"] * 12
    assert script.most == 3


async def test_a_nonsensical_load_report_stops_no_agent() -> None:
    odd = [Usage(1, 10**9, 0), Usage(10**9, 0, 10**9), Usage(0, 5, 0), Usage(7, 7, 7)]

    def answer(request: Request) -> Answer:
        turn = turn_of(request)
        usage = odd[(turn + int(asked(request))) % len(odd)]
        return wants("wait", usage) if turn < 4 else say("done", usage)

    backend = ScriptedBackend(answer, seconds=1, kv_tokens=KV_TOKENS, inflight=100)
    results = await run(backend, inputs(12), tools=[waiting_tool(0.5)])
    assert [result.text for result in results] == ["done"] * 12


async def test_an_engine_whose_residents_all_wait_for_tools_admits_other_agents() -> None:
    script = UnderWay(by_turn(wants("wait", Usage(1000, 0, 10)), say("done", Usage(1100, 1000, 10))))
    backend = ScriptedBackend(script, seconds=1, kv_tokens=KV_TOKENS, inflight=100)
    results = await run(backend, inputs(12), tools=[waiting_tool(60)])
    assert [result.text for result in results] == ["done"] * 12
    assert results.scheduling.overcommitted + results.scheduling.evictions > 0
    assert script.most > 3
    assert now() < 4 * 62


async def test_a_returning_agent_is_admitted_before_a_new_one() -> None:
    order: list[tuple[str, int]] = []

    async def answer(request: Request) -> Answer:
        order.append((asked(request).strip(), turn_of(request)))
        await asyncio.sleep(10)
        return wants("wait", Usage(1000, 0, 0)) if turn_of(request) == 0 else say("done", Usage(1000, 1000, 0))

    backend = ScriptedBackend(answer, kv_tokens=1500, inflight=100)
    await run(backend, inputs(3), tools=[waiting_tool(2)])
    assert order[:2] == [("0", 0), ("1", 0)]  # the second one while the first one waited for its tools
    assert order.index(("0", 1)) < order.index(("2", 0))


@pytest.mark.parametrize("kind", [ErrorKind.BAD_REQUEST, ErrorKind.SERVER])
async def test_failed_agents_release_their_residency(kind: ErrorKind) -> None:
    async def answer(request: Request) -> Answer:
        answered = await out_of_step(request)
        return BackendError(kind, "no") if int(asked(request)) % 2 and turn_of(request) == 2 else answered

    backend = ScriptedBackend(answer, kv_tokens=KV_TOKENS, inflight=100)
    results = await run(backend, inputs(20), tools=[waiting_tool(0.01)], max_retries=1)
    assert [result.ok for result in results] == [True, False] * 10
    assert results.scheduling.max_residents is not None
    assert results.scheduling.max_residents <= 5  # who failed has grown less, so that more are thought to fit
    assert (
        results.scheduling.overcommitted <= 2
    )  # by the chance of when they retry; ten places that are lost would take more


async def test_agents_that_time_out_in_their_tools_release_their_residency() -> None:
    @Tool.define
    async def wait(number: int) -> str:
        await asyncio.sleep(1000 if number % 2 else 0.5)
        return "waited"

    def answer(request: Request) -> Answer:
        if turn_of(request) == 0:
            return wants("wait", Usage(1000, 0, 10), number=int(asked(request)))
        return say("done", Usage(1100, 1000, 10))

    backend = ScriptedBackend(answer, seconds=1, kv_tokens=KV_TOKENS, inflight=100)
    results = await run(backend, inputs(20), tools=[wait], timeout_per_agent=30, timeout_per_tool=None)
    assert [result.ok for result in results] == [True, False] * 10
    errors = [result.error.kind for result in results if result.error]
    assert errors == [ErrorKind.AGENT_TIMEOUT] * 10


async def test_an_agent_that_times_out_waiting_for_residency_blocks_no_other() -> None:
    """The first agent shows that contexts are computed soon, so that the lease of the second ends before its tool.
    Turns take much longer than tools, so that an engine with two agents is busy and not overcommitted."""
    seconds = [0.1, 100, 100, 290, 290, 1, 1]

    async def answer(request: Request) -> Answer:
        number = int(asked(request))
        await asyncio.sleep(seconds[number])
        return wants("wait", Usage(1000, 0, 10)) if number == 1 else say("done", Usage(1000, 0, 10))

    backend = ScriptedBackend(answer, kv_tokens=3300, inflight=100)  # two of them fit
    results = await run(backend, inputs(7), tools=[waiting_tool(1)], timeout_per_agent=300)
    [failed] = [result for result in results if not result.ok]
    assert failed.error is not None
    assert (failed.index, failed.error.kind) == (1, ErrorKind.AGENT_TIMEOUT)
    assert sum(int(asked(request)) == 1 for request in backend.requests) == 1
    assert (results.scheduling.evictions, results.scheduling.overcommitted) == (1, 0)


async def test_a_run_cancelled_while_agents_wait_for_residency_leaves_nothing_behind() -> None:
    backend = ScriptedBackend(ORDINARY, seconds=1, kv_tokens=KV_TOKENS, inflight=100)
    running = asyncio.create_task(run(backend, inputs(20), tools=[waiting_tool(60)]))
    await asyncio.sleep(30.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert now() == 30.3
    assert backend.in_flight == 0
    assert armed() == []


async def test_a_stream_left_early_releases_all_residency() -> None:
    backend = ScriptedBackend(ORDINARY, seconds=1, kv_tokens=KV_TOKENS, inflight=100)
    async with stream(backend, inputs(20), tools=[waiting_tool(0.5)]) as results:
        async for _ in results:
            break
    assert backend.in_flight == 0
    assert armed() == []


async def test_resumed_agents_count_with_their_restored_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In memory: while a thread reads a checkpoint virtual time would jump on."""
    store = MemoryStore()
    monkeypatch.setattr("batch_agent.run.resource_opener._store", lambda spec: store)
    second_turns, all_wait = 0, asyncio.Event()

    @Tool.define
    async def look() -> str:
        return "x" * 8000

    async def interrupted(request: Request) -> Answer:
        nonlocal second_turns
        if turn_of(request) == 0:
            return call("look")
        second_turns += 1
        if second_turns == 6:
            all_wait.set()
        await asyncio.Event().wait()
        raise AssertionError

    options: dict[str, Any] = {"tools": [look], "timeout_per_agent": None, "timeout_per_turn": None}
    first = asyncio.create_task(run(ScriptedBackend(interrupted, inflight=100), list("abcdef"), **options))
    await all_wait.wait()
    first.cancel()
    await asyncio.wait([first])

    script = UnderWay(lambda request: say("done"))
    backend = ScriptedBackend(script, seconds=1, kv_tokens=6000, inflight=100)
    results = await run(backend, list("abcdef"), **options)
    assert [result.text for result in results] == ["done"] * 6
    assert [turn_of(request) for request in backend.requests] == [1] * 6
    assert results.scheduling.max_residents == 2
    assert backend.most_in_flight == 2


async def test_more_interrupted_agents_than_the_cache_holds_all_resume(
    tmp_path: Path,
) -> None:
    waiting, all_wait, released = 0, asyncio.Event(), asyncio.Event()

    @Tool.define(effect="stateful")
    async def wait() -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 6:
            all_wait.set()
        await released.wait()
        return "waited"

    options: dict[str, Any] = {"tools": [wait], "checkpoint_dir": tmp_path, "timeout_per_tool": None}
    options |= {"timeout_per_agent": None, "timeout_per_turn": None}
    answers = by_turn(wants("wait", Usage(1000, 0, 10)), say("done", Usage(1100, 1000, 10)))
    first = asyncio.create_task(run(ScriptedBackend(answers, inflight=100), inputs(6), **options))
    await all_wait.wait()
    first.cancel()
    await asyncio.wait([first])
    waiting = 0
    all_wait.clear()
    backend = ScriptedBackend(answers, seconds=1, kv_tokens=1500, inflight=100)
    resumed = asyncio.create_task(run(backend, inputs(6), **options))
    await all_wait.wait()  # beyond the capacity, since nobody asks anything
    released.set()
    results = await resumed
    assert [result.text for result in results] == ["done"] * 6
    assert len(backend.requests) == 6


@pytest.mark.slow
async def test_hundreds_of_agents_with_residency_finish() -> None:
    script = UnderWay(ORDINARY)
    backend = ScriptedBackend(script, seconds=1, kv_tokens=10 * KV_TOKENS, inflight=16)
    results = await run(backend, inputs(400), tools=[waiting_tool(3)])
    assert all(result.ok for result in results)
    assert results.scheduling.max_residents is not None
    assert results.scheduling.max_residents < 400


SECONDS = st.sampled_from([0.0, 0.5, 1.0, 7.3, 90.0])
SIZES = st.sampled_from([0, 1, 300, 1000, 9000])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    kv_tokens=st.none() | st.sampled_from([1, 1500, KV_TOKENS, 30_000]),
    limit=st.none() | st.integers(1, 3),
    thinking=st.lists(SECONDS, min_size=1, max_size=8),
    tools=st.lists(SECONDS, min_size=1, max_size=8),
    sizes=st.lists(SIZES, min_size=1, max_size=8),
    kept=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    agent_timeout=st.sampled_from([None, 3.0, 100.0]),
    fails=st.integers(2, 9),
)
@example(  # agents wait, and none is resident
    kv_tokens=1, limit=None, thinking=[0.5], tools=[0.0], sizes=[300], kept=0.0, agent_timeout=None, fails=2
)
def test_every_agent_ends_whatever_its_size_and_whichever_agent_fails(
    kv_tokens: int | None,
    limit: int | None,
    thinking: list[float],
    tools: list[float],
    sizes: list[int],
    kept: float,
    agent_timeout: float | None,
    fails: int,
) -> None:
    @Tool.define
    async def wait(number: int) -> str:
        await asyncio.sleep(tools[number % len(tools)])
        return "waited"

    async def answer(request: Request) -> Answer:
        number, turn = int(asked(request)), turn_of(request)
        await asyncio.sleep(thinking[(number + turn) % len(thinking)])
        prompt = sizes[number % len(sizes)] * (1 + turn)
        usage = Usage(prompt, int(kept * prompt * turn / (1 + turn)), number)
        if (number + turn) % fails == 1:
            return BackendError(ErrorKind.BAD_REQUEST, "no")
        if turn == 3:
            return say("done", usage)
        wanted = call("wait", number=number + turn).calls[0]
        return replace(calls(wanted, replace(wanted, arguments=f'{{"number": {number}}}')), usage=usage)

    async def main() -> None:
        backend = ScriptedBackend(answer, kv_tokens=kv_tokens, inflight=100)
        options: dict[str, Any] = {"timeout_per_agent": agent_timeout, "timeout_per_tool": None}
        if limit is not None:
            options["max_inflight"] = limit
        async with asyncio.timeout(1e6):
            results = await run(backend, inputs(10, 40), tools=[wait], **options)
        assert [result.index for result in results] == list(range(10))
        for result in results:
            assert result.error is None or result.error.kind in (ErrorKind.AGENT_TIMEOUT, ErrorKind.BAD_REQUEST)

    run_virtual(main())


async def test_an_agent_whose_references_are_resident_is_admitted_before_one_that_needs_more_room() -> None:
    residency = Residency(KvLedger(1_000), 0, chars_per_token=1.0)
    started = Priority(False, 1)
    paper = {"read(A)": 400}
    await residency.admit("reader", FirstPrompt(100, references=paper), started)
    waiting = [
        asyncio.ensure_future(residency.admit("large", FirstPrompt(600), started)),
        asyncio.ensure_future(residency.admit("small", FirstPrompt(100, references=paper), started)),
        asyncio.ensure_future(residency.admit("other", FirstPrompt(100, references={"read(B)": 400}), started)),
    ]
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [False, True, False]
    residency.release("reader")
    residency.release("small")
    await asyncio.sleep(0.01)
    assert waiting[0].done(), "it is not passed over for good"
    residency.release("large")
    await asyncio.gather(*waiting)


async def test_the_first_in_the_queue_is_passed_over_a_few_times_only() -> None:
    residency = Residency(KvLedger(10_000), 0, chars_per_token=1.0)
    started = Priority(False, 1)
    paper = {"read(A)": 400}
    await residency.admit("reader", FirstPrompt(100, references=paper), started)
    large = asyncio.ensure_future(residency.admit("large", FirstPrompt(9_500), started))
    small = [
        asyncio.ensure_future(residency.admit(f"{at}", FirstPrompt(10, references=paper), started)) for at in range(20)
    ]
    await asyncio.sleep(0.01)
    assert not large.done()
    assert sum(task.done() for task in small) == 8
    for task in (large, *small):
        task.cancel()
    await asyncio.gather(large, *small, return_exceptions=True)
