"""Runs whose work is shared by several workers, which meet at a hub."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, run, waiting_tool
from tests.support.event_list import EventList
from tests.support.shared_run_workers import LEASE, LONG, Link, Part, answers, calling, link_to_coordinator_of, working

from batch_agent import RunStopped, Tool
from batch_agent.core.errors import BackendError, ErrorKind, PlanMismatch, StoreError
from batch_agent.core.events import AgentReassigned
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Reply, Request
from batch_agent.store.memory_store import MemoryStore
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import ScriptedBackend, by_turn, call, say

TWO_TURNS = by_turn(call("wait"), say("done"))


def inputs(number: int) -> list[dict[str, Any]]:
    return [{"it": str(n)} for n in range(number)]


def slow(seconds: float) -> ScriptedBackend:
    """Each turn takes so long; two turns an agent."""

    async def answer(request: Request) -> Any:
        await asyncio.sleep(seconds)
        return TWO_TURNS(request)

    return ScriptedBackend(answer)


def found_by(found: list[int]) -> Any:
    return lambda result: found.append(result.index)


def turns(backend: ScriptedBackend) -> Counter[tuple[str, int]]:
    """How often each turn of each agent was asked."""
    return Counter((asked(request), request.turn) for request in backend.requests)


class Gone:
    """A worker that is killed: nothing of it is said any more, not even farewell."""

    def __init__(self, link: Link, backend: ScriptedBackend, **options: Any) -> None:
        self._link = link
        self._task = asyncio.ensure_future(working(link, backend=backend, **options))

    def kill(self) -> None:
        self._link.cut()
        self._task.cancel()

    async def bury(self) -> None:
        """At the end of the test."""
        with suppress(asyncio.CancelledError):
            await self._task


async def test_a_shared_run_gives_every_input_its_result() -> None:
    backend = ScriptedBackend(lambda request: say(asked(request)))
    found = await answers(calling(Link(), inputs(100), backend=backend))
    assert found == {n: str(n) for n in range(100)}
    assert len(backend.requests) == 100


async def test_two_submitters_of_one_run_share_the_work_and_both_get_all_results() -> None:
    backend, link = ScriptedBackend(TWO_TURNS), Link()

    async def one(at: Link) -> dict[int, Any]:
        return await answers(calling(at, inputs(40), backend=backend, tools=[waiting_tool(1.0)]))

    first, second = await asyncio.gather(one(link), one(link.another()))
    assert first == second == dict.fromkeys(range(40), "done")
    assert len(backend.requests) == 80


async def test_workers_run_the_agents_of_a_submitter_that_runs_none() -> None:
    link, mine, theirs = Link(), slow(1.0), slow(1.0)
    options: dict[str, Any] = {"tools": [waiting_tool(1.0)]}
    async with asyncio.TaskGroup() as group:
        results = group.create_task(answers(calling(link, inputs(60), works=False, backend=slow(0), **options)))
        await asyncio.sleep(0.1)
        for backend in (mine, theirs):
            group.create_task(working(link.another(), backend=backend, **options))
    assert results.result() == dict.fromkeys(range(60), "done")
    assert turns(mine) + turns(theirs) == {(str(n), turn): 1 for n in range(60) for turn in range(2)}
    assert min(len(mine.requests), len(theirs.requests)) > 30


async def test_results_of_other_workers_are_complete() -> None:
    link = Link()
    backend = ScriptedBackend(TWO_TURNS)
    async with asyncio.TaskGroup() as group:
        group.create_task(working(link.another(), backend=backend, tools=[waiting_tool(1.0)]))
        async with calling(link, inputs(1), works=False, backend=backend, tools=[waiting_tool(1.0)]) as stream:
            [result] = [result async for result in stream]
    alone = await run(ScriptedBackend(TWO_TURNS), inputs(1), tools=[waiting_tool(1.0)])
    assert (result.turns, result.key, result.input) == (alone[0].turns, alone[0].key, alone[0].input)
    assert [type(message) for message in result.transcript] == [type(message) for message in alone[0].transcript]
    assert [record.name for record in result.tool_calls] == ["wait"]
    assert result.timing.total >= 1.0


async def test_agents_of_a_killed_worker_resume_elsewhere_from_their_last_fact() -> None:
    link, dying, living = Link(), slow(1.0), slow(1.0)
    options: dict[str, Any] = {"tools": [waiting_tool(2.0)], "max_inflight": 16}
    async with asyncio.TaskGroup() as group:
        results = group.create_task(answers(calling(link, inputs(16), works=False, backend=slow(0), **options)))
        gone = Gone(link.another(), dying, **options)
        await asyncio.sleep(1.5)  # its first turns are answered, and its tools run
        gone.kill()
        group.create_task(working(link.another(), backend=living, **options))
    await gone.bury()
    assert results.result() == dict.fromkeys(range(16), "done")
    told = {agent for agent, turn in turns(dying) if turn == 0}
    assert told
    assert all((agent, 0) not in turns(living) for agent in told)
    assert set(turns(living).values()) == {1}


async def test_a_worker_disconnected_past_its_lease_writes_nothing_afterwards() -> None:
    link, cut, living, log = Link(), slow(1.0), slow(1.0), EventList()
    options: dict[str, Any] = {"tools": [Tool.define(effect="read")(waiting_tool(1.0).function)]}
    async with asyncio.TaskGroup() as group:
        results = group.create_task(answers(calling(link, inputs(12), works=False, backend=slow(0), **options)))
        far = link.another()
        group.create_task(working(far, log, backend=cut, **options))
        await asyncio.sleep(0.5)
        far.cut()
        group.create_task(working(link.another(), backend=living, **options))
        await asyncio.sleep(3 * LEASE)
        far.mend()
    assert results.result() == dict.fromkeys(range(12), "done")
    moved = {event.key for event in log.events if isinstance(event, AgentReassigned)}
    assert moved
    for key in moved:
        facts = await link.coordinator.facts.read(key)
        assert [type(fact).__name__ for fact in facts] == ["Started", "Replied", "Returned", "Replied"]


async def test_a_write_is_made_once_even_if_its_worker_is_lost() -> None:
    made: list[str] = []
    may_go = asyncio.Event()

    @Tool.define(effect="write")
    async def order(what: str) -> str:
        made.append(what)
        await may_go.wait()
        return "ordered"

    def answer(request: Request) -> Reply:
        if not any(isinstance(message, ToolResults) for message in request.messages):
            return call("order", what=asked(request))
        last = request.messages[-1]
        assert isinstance(last, ToolResults)
        return say(last.results[0].content)

    link = Link()
    async with asyncio.TaskGroup() as group:
        backend = ScriptedBackend(answer)
        results = group.create_task(answers(calling(link, inputs(3), works=False, backend=backend, tools=[order])))
        far = link.another()
        lost = group.create_task(working(far, backend=backend, tools=[order]))
        await asyncio.sleep(1.0)
        far.cut()
        group.create_task(working(link.another(), backend=backend, tools=[order]))
        await asyncio.sleep(3 * LEASE)
        may_go.set()
        far.mend()
        await lost
    assert sorted(made) == ["0", "1", "2"]
    assert all("It is not known whether this call was made" in answer for answer in results.result().values())


async def test_an_agent_that_crashes_its_workers_is_given_up() -> None:
    link = Link()
    deadly = inputs(1)
    async with asyncio.TaskGroup() as group:
        results = group.create_task(answers(calling(link, deadly, works=False, backend=slow(0))))
        await asyncio.sleep(0.1)
        for _ in range(5):
            [lease] = await link.coordinator.work.lease("dies", 1, ttl=1.0, wait=60.0)
            assert lease.job.input == deadly[0]
        await asyncio.sleep(1.0)
        group.create_task(working(link.another(), backend=ScriptedBackend(by_turn(say("never asked")))))
    assert results.result() == {0: ErrorKind.INTERNAL}


async def test_failed_agents_are_run_again_when_the_shared_run_is_resumed() -> None:
    link, is_down = Link(), True

    def answer(request: Request) -> Any:
        if is_down and asked(request) == "1":
            return BackendError(ErrorKind.BAD_REQUEST, "no")
        return say("yes")

    backend = ScriptedBackend(answer)
    assert await answers(calling(link, inputs(3), backend=backend)) == {0: "yes", 1: ErrorKind.BAD_REQUEST, 2: "yes"}
    is_down = False
    assert await answers(calling(link.another(), inputs(3), backend=backend)) == dict.fromkeys(range(3), "yes")
    assert len(backend.requests) == 4


async def test_a_resumed_shared_run_repeats_no_answered_request(tmp_path: Path) -> None:
    for number in (20, 30):
        backend, store = ScriptedBackend(lambda request: say(asked(request))), SqliteStore(tmp_path)
        link = link_to_coordinator_of(store)
        await link.coordinator.open()
        assert len(await answers(calling(link, inputs(number), backend=backend, lease=LONG))) == number
        await link.coordinator.aclose()
    assert len(backend.requests) == 10


async def test_a_checkpoint_of_a_shared_run_can_be_used_by_a_plain_run(tmp_path: Path) -> None:
    link = link_to_coordinator_of(SqliteStore(tmp_path))
    await link.coordinator.open()
    await answers(calling(link, inputs(5), backend=ScriptedBackend(by_turn(say("first"))), lease=LONG))
    await link.coordinator.aclose()
    backend = ScriptedBackend(by_turn(say("second")))
    results = await run(backend, inputs(6), checkpoint_dir=tmp_path)
    assert [result.output for result in results] == ["first"] * 5 + ["second"]


async def test_invalid_inputs_of_a_shared_run_fail_alone() -> None:
    found = await answers(calling(Link(), [{"it": "0"}, {"other": 1}], backend=ScriptedBackend(by_turn(say("yes")))))
    assert found == {0: "yes", 1: ErrorKind.BAD_INPUT}


async def test_a_shared_run_without_inputs_has_no_results() -> None:
    assert await answers(calling(Link(), [], backend=ScriptedBackend(by_turn(say("yes"))))) == {}


async def test_a_broken_input_iterator_is_reported_after_the_submitted_jobs_finish() -> None:
    def broken() -> Iterator[dict[str, str]]:
        yield from inputs(3)
        raise ZeroDivisionError("no more")

    found: list[int] = []
    stream = calling(Link(), broken(), backend=ScriptedBackend(by_turn(say("yes"))), on_result=found_by(found))
    with pytest.raises(RunStopped, match="no more"):
        await answers(stream)
    assert sorted(found) == [0, 1, 2]


async def test_slow_inputs_of_a_shared_run_are_posted_as_they_arrive() -> None:
    backend = ScriptedBackend(by_turn(say("yes")))

    async def slowly() -> Any:
        for n in range(3):
            await asyncio.sleep(10.0)
            assert len(backend.requests) == n
            yield {"it": str(n)}

    assert len(await answers(calling(Link(), slowly(), backend=backend))) == 3


async def test_leaving_a_shared_run_early_returns_its_leases_at_once() -> None:
    link, backend = Link(), slow(1.0)
    async with calling(link, inputs(30), backend=backend, tools=[waiting_tool(1.0)]) as stream:
        async for _ in stream:
            break
    left = await link.coordinator.work.pending_count()
    assert left
    leases = await link.coordinator.work.lease("another", 100, ttl=LEASE, wait=0.0)
    assert len(leases) == left


async def test_a_worker_with_a_different_task_is_refused() -> None:
    link, backend = Link(), slow(1.0)
    async with calling(link, inputs(3), backend=backend, tools=[waiting_tool(1.0)]) as stream:
        await anext(stream)
        with pytest.raises(PlanMismatch, match="tools"):
            await working(link.another(), backend=backend)


async def test_a_run_cannot_be_changed_while_workers_process_it() -> None:
    link, backend = Link(), slow(1.0)
    async with calling(link, inputs(3), backend=backend, tools=[waiting_tool(1.0)]) as stream:
        await anext(stream)
        with pytest.raises(StoreError, match="active in this run"):
            await answers(calling(link.another(), inputs(3), backend=backend, plan_changed="rerun"))
    assert len(await answers(calling(link.another(), inputs(3), backend=backend, plan_changed="rerun"))) == 3


async def test_chunks_of_long_inputs_are_shared_between_workers() -> None:
    words = " ".join(f"word{n}" for n in range(600))
    backend = ScriptedBackend(by_turn(say("part")))
    options: dict[str, Any] = {"backend": backend, "context_tokens": 600, "oversized": "chunk", "max_tokens": 50}
    alone = await run(backend, [{"it": words}], context_tokens=600, oversized="chunk", max_tokens=50)
    link = Link()
    async with asyncio.TaskGroup() as group:
        group.create_task(working(link.another(), **options))
        async with calling(link, [{"it": words}], works=False, **options) as stream:
            [result] = [result async for result in stream]
    assert result.output == "part"
    assert result.turns == alone[0].turns > 2


async def test_many_agents_are_shared_with_few_coordinator_calls() -> None:
    backend, link = ScriptedBackend(by_turn(say("yes"))), Link()
    assert len(await answers(calling(link, inputs(2_000), backend=backend, max_inflight=256))) == 2_000
    assert link.call_count < 2_000


async def test_agents_are_started_while_as_many_that_have_ended_are_written() -> None:
    may_write = asyncio.Event()

    class SlowFacts(Part):
        async def write(self, *args: Any) -> Any:
            await may_write.wait()
            return await self.behind.write(*args)

    backend, link = ScriptedBackend(by_turn(say("yes"))), Link(facts=SlowFacts)
    async with asyncio.TaskGroup() as group:
        results = group.create_task(answers(calling(link, inputs(40), backend=backend, max_agents=5)))
        await asyncio.sleep(1.0)
        assert len(backend.requests) == 2 * 5
        may_write.set()
    assert results.result() == dict.fromkeys(range(40), "yes")
    assert len(backend.requests) == 40


async def test_a_shared_run_works_with_a_memory_store() -> None:
    link = link_to_coordinator_of(MemoryStore())
    assert len(await answers(calling(link, inputs(3), backend=ScriptedBackend(by_turn(say("yes")))))) == 3
