"""Moments in which workers that share a run, or their hub, could lose or mix up something."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, waiting_tool
from tests.support.shared_run_workers import LEASE, Link, Part, answers, calling, working

from batch_agent.core.agent_config import Job
from batch_agent.core.coordinator import Write
from batch_agent.core.errors import BatchAgentError, StoreError
from batch_agent.testing import ScriptedBackend, by_turn, say

YES = by_turn(say("yes"))


def inputs(*names: str) -> list[dict[str, Any]]:
    return [{"it": name} for name in names]


class ForgetfulQueue(Part):
    """Of a server that was killed, and is back without the last second of what it was told."""

    forgets = 1

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> Any:
        if self.forgets:
            self.forgets -= 1
            return {}
        return await self.behind.submit(jobs, retry_failed=retry_failed)


@pytest.mark.parametrize("works", [True, False])
async def test_jobs_lost_by_the_coordinator_are_posted_again(works: bool) -> None:
    link, backend = Link(work=ForgetfulQueue), ScriptedBackend(YES)
    async with asyncio.TaskGroup() as group:
        found = group.create_task(answers(calling(link, inputs("a", "b", "c"), works=works, backend=backend)))
        await asyncio.sleep(1.0)
        group.create_task(working(Link(link.coordinator), backend=backend))
    assert found.result() == dict.fromkeys(range(3), "yes")
    assert len(backend.requests) == 3


class SilentUpdates(Part):
    """These news have a hole: what ended is not in them."""

    async def poll(self, after: Any, *, wait: float) -> Any:
        await asyncio.sleep(wait)
        return await self.behind.poll(await self.behind.position(), wait=0.0)


async def test_a_completion_missing_from_the_updates_is_still_found() -> None:
    link = Link(updates=SilentUpdates)
    assert await answers(calling(link, inputs("a", "b"), backend=ScriptedBackend(YES))) == {0: "yes", 1: "yes"}


class LostFacts(Part):
    """Of a server that told of an end, and lost it together with what the agent said."""

    times = 1

    async def read_many(self, keys: Sequence[str]) -> Any:
        if self.times:
            self.times -= 1
            return [(), *await self.behind.read_many(keys[1:])]
        return await self.behind.read_many(keys)


class FactsLostForEver(LostFacts):
    times = 1_000


async def test_an_agent_whose_facts_the_coordinator_lost_is_run_again() -> None:
    link, backend = Link(facts=LostFacts), ScriptedBackend(YES)
    async with asyncio.TaskGroup() as group:
        found = group.create_task(answers(calling(link, inputs("a", "b"), works=False, backend=backend)))
        await asyncio.sleep(1.0)
        group.create_task(working(Link(link.coordinator), backend=backend))
    assert found.result() == {0: "yes", 1: "yes"}


async def test_a_removed_fact_history_is_never_taken_for_an_answer() -> None:
    link, backend = Link(), ScriptedBackend(YES)
    await answers(calling(link, inputs("a"), backend=backend))
    link = Link(link.coordinator, facts=FactsLostForEver)
    with pytest.raises(StoreError, match=r"has lost the facts of agent \w+ \(input 0\)"):
        await answers(calling(link, inputs("a"), works=False, backend=backend))


async def test_nothing_is_posted_again_while_agents_take_long() -> None:
    posted: list[int] = []

    class CountingQueue(Part):
        async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> Any:
            posted.append(len(jobs))
            return await self.behind.submit(jobs, retry_failed=retry_failed)

    async def slowly(_: Any) -> Any:
        await asyncio.sleep(20 * LEASE)
        return say("yes")

    assert await answers(calling(Link(work=CountingQueue), inputs("a"), backend=ScriptedBackend(slowly))) == {0: "yes"}
    assert posted == [1]


async def test_submitters_with_another_input_order_get_their_own_indices_and_inputs() -> None:
    backend, link = ScriptedBackend(lambda request: say(asked(request))), Link()
    names = [str(n) for n in range(20)]

    async def one(at: Link, asking: list[str]) -> list[tuple[int, Any, Any]]:
        wrapped = [{"it": name, "beside": (1, 2)} for name in asking]
        async with calling(at, wrapped, backend=backend, tools=[waiting_tool(1.0)]) as stream:
            return sorted([(result.index, result.input["beside"], result.output) async for result in stream])

    first, second = await asyncio.gather(one(link, names), one(link.another(), names[::-1]))
    assert len(backend.requests) == 20
    assert first == [(n, (1, 2), str(n)) for n in range(20)]
    assert second == [(n, (1, 2), str(19 - n)) for n in range(20)]


class SlowQueue(Part):
    """Each lease takes a while."""

    async def lease(self, worker: str, max_jobs: int, **options: Any) -> Any:
        await asyncio.sleep(1.0)
        return await self.behind.lease(worker, max_jobs, **options)


async def test_a_submitter_with_all_its_results_leases_no_more_jobs() -> None:
    link, backend = Link(work=SlowQueue), ScriptedBackend(YES)
    assert len(await answers(calling(link, inputs("a"), backend=backend))) == 1
    assert now() < 3.0  # two leases of a second; no more waiting for work that is not wanted


async def test_a_submitter_with_all_its_results_returns_the_jobs_it_has_not_started() -> None:
    link, quick = Link(), ScriptedBackend(YES)
    names = [str(n) for n in range(40)]

    async def slowly(_: Any) -> Any:
        await asyncio.sleep(10 * LEASE)
        return say("yes")

    slow = ScriptedBackend(slowly)
    async with asyncio.TaskGroup() as group:
        others = group.create_task(answers(calling(link, inputs(*names), works=False, backend=slow)))
        await asyncio.sleep(1.0)
        assert await answers(calling(link.another(), inputs("0"), backend=slow, max_inflight=1)) == {0: "yes"}
        assert len(slow.requests) == 3  # of the four that it had leased, two were taken before its result was known
        group.create_task(working(link.another(), backend=quick))
    assert len(others.result()) == 40
    assert len(quick.requests) == 37


class LateDocuments(Part):
    """Who asks for a document is answered late: another one may have written it by then."""

    async def read(self, name: str) -> Any:
        found = await self.behind.read(name)
        await asyncio.sleep(1.0 if name == "plan" else 0.0)
        return found


async def test_of_two_submitters_that_start_at_once_with_different_tasks_one_is_refused() -> None:
    link, backend = Link(documents=LateDocuments), ScriptedBackend(YES)

    async def one(at: Link, **options: Any) -> Any:
        try:
            return await answers(calling(at, inputs("a"), backend=backend, **options))
        except BatchAgentError as error:
            return type(error).__name__

    found = await asyncio.gather(
        one(link), one(Link(link.coordinator, documents=LateDocuments), system_prompt="Otherwise.")
    )
    assert sorted(map(str, found)) == ["PlanMismatch", "{0: 'yes'}"]


async def test_a_fact_that_cannot_be_serialized_ends_the_run() -> None:
    class BrokenFacts(Part):
        async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
            raise ValueError("half a character")

    with pytest.raises(ValueError, match="half a character"):
        await answers(calling(Link(facts=BrokenFacts), inputs("a"), backend=ScriptedBackend(YES)))
