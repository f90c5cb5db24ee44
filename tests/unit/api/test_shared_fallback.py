"""Fallback of a shared run, on a real Redis: callers and workers change over together, and nothing is paid twice."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.support.engine_harness import asked
from tests.support.event_list import EventList
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, ErrorKind, Results, Tool, ToolContext
from batch_agent.core.errors import BackendError
from batch_agent.core.events import Notice
from batch_agent.core.messages import ToolCall, ToolResults
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say

__all__ = ["redis_server"]

ROWS = [{"n": number} for number in range(12)]
DOWN = "http://127.0.0.1:1/v1"


def number(request: Request) -> int:
    return int(asked(request).split()[1])


def good(request: Request) -> Answer:
    return say(f"answer {number(request)}", Usage(100, 0, 10))


def refusing(request: Request) -> Answer:
    if number(request) % 3 == 0:
        return Reply("I would rather not.", "refusal", Usage(50, 0, 5))
    return good(request)


class Cluster:
    """A caller and workers of one run. They have a backend each, as in processes of their own."""

    def __init__(self, store: str, small: Callable[[Request], Answer] = refusing, **options: Any) -> None:
        self._small = small
        self._options = {
            "task": "Do {n}",
            "store": store,
            "run_id": uuid4().hex,
            "max_retries": 0,
            "lease": 3.0,
            **options,
        }
        self.small: list[ScriptedBackend] = []
        self.large: list[ScriptedBackend] = []

    async def run(self, **options: Any) -> Results:
        given = {**self._options, **self._backends(), **options}
        results: Results = await BatchAgent.run(inputs=ROWS, progress=False, **given)
        return results

    async def work(self, **options: Any) -> None:
        await BatchAgent.work(**{**self._options, **self._backends(), **options})

    def _backends(self) -> dict[str, Any]:
        self.small.append(ScriptedBackend(self._small, model="small", seconds=0.02))
        self.large.append(ScriptedBackend(good, model="large", seconds=0.02))
        return {"backend": self.small[-1], "fallback": [self.large[-1]]}

    def asked_of(self, backends: list[ScriptedBackend]) -> Counter[int]:
        return Counter(number(request) for backend in backends for request in backend.requests)


def models(results: Results) -> list[str | None]:
    return [result.model for result in results]


REFUSED = ["large" if row["n"] % 3 == 0 else "small" for row in ROWS]


async def test_refused_agents_go_to_the_next_backend_and_a_second_run_pays_for_nothing(
    redis_server: RedisServer,
) -> None:
    cluster = Cluster(redis_server.url)
    results = await cluster.run()
    assert [result.output for result in results] == [f"answer {row['n']}" for row in ROWS]
    assert models(results) == REFUSED
    again = await cluster.run()
    assert [(each.output, each.model) for each in again] == [(each.output, each.model) for each in results]
    assert (cluster.asked_of(cluster.small).total(), cluster.asked_of(cluster.large).total()) == (12, 4)


async def test_each_sample_changes_over_by_itself(redis_server: RedisServer) -> None:
    def refusing_first_samples(request: Request) -> Answer:
        return good(request) if request.seed is not None else Reply("No.", "refusal", Usage(50, 0, 5))

    cluster = Cluster(redis_server.url, refusing_first_samples, samples=3, seed=7)
    for _ in range(2):
        results = await cluster.run()
        assert [(each.index, each.sample, each.model) for each in results] == [
            (n, sample, "small" if sample else "large") for n in range(12) for sample in range(3)
        ]
    assert (cluster.asked_of(cluster.small).total(), cluster.asked_of(cluster.large).total()) == (36, 12)


@pytest.mark.slow
async def test_workers_run_agents_of_both_backends_and_each_is_paid_for_once(redis_server: RedisServer) -> None:
    cluster = Cluster(redis_server.url, max_inflight=2)
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(cluster.work()) for _ in range(2)]
        results = await cluster.run()
        again = await cluster.run()
        await asyncio.wait(workers)
    assert models(results) == models(again) == REFUSED
    assert set(cluster.asked_of(cluster.small).values()) == {1}
    assert cluster.asked_of(cluster.large) == Counter(range(0, 12, 3))
    assert sum(bool(each.requests) for each in cluster.small) > 1


async def test_two_callers_at_a_time_get_the_same_answers(redis_server: RedisServer) -> None:
    cluster = Cluster(redis_server.url)
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(cluster.run()) for _ in range(2)]
    one, other = (caller.result() for caller in callers)
    assert models(one) == models(other) == REFUSED
    assert set(cluster.asked_of(cluster.small).values()) == {1}
    assert cluster.asked_of(cluster.large) == Counter(range(0, 12, 3))


class Register:
    """A tool with an effect, and a first backend that calls it and then refuses."""

    def __init__(self) -> None:
        self.written: list[int] = []

        @Tool.define(effect="write")
        async def save(context: ToolContext) -> str:
            """Saves the number."""
            self.written.append(context.input["n"])
            return "saved"

        self.tool = save

    def calling(self, request: Request) -> Answer:
        if isinstance(request.messages[-1], ToolResults):
            return Reply("I would rather not.", "refusal", Usage(50, 0, 5))
        return Reply("I save.", "calls", Usage(100, 0, 10), (ToolCall("toolu_1", "save", "{}"),))


@pytest.mark.slow
async def test_whichever_worker_gets_an_agent_goes_on_with_its_conversation(redis_server: RedisServer) -> None:
    register = Register()
    cluster = Cluster(redis_server.url, register.calling, tools=[register.tool], max_inflight=2)
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(cluster.work())
        results = await cluster.run()
        await asyncio.wait([worker])
    assert [(each.output, each.model) for each in results] == [(f"answer {n}", "large") for n in range(12)]
    assert sorted(register.written) == list(range(12))
    assert {len(request.messages) for backend in cluster.large for request in backend.requests} == {3}
    assert [each.turns for each in results] == [2] * 12


class Outage:
    """A server that all processes lose after some answers."""

    def __init__(self, answers: int) -> None:
        self._left = answers
        self.answered: list[int] = []

    def answer(self, request: Request) -> Answer:
        if len(self.answered) == self._left:
            raise BackendError(ErrorKind.UNAVAILABLE, "connection refused")
        self.answered.append(number(request))
        return good(request)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
async def test_what_a_lost_server_leaves_goes_to_the_next_one(redis_server: RedisServer, workers: int) -> None:
    outage, log = Outage(5), EventList()
    cluster = Cluster(redis_server.url, outage.answer, max_inflight=2, max_retries=1)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cluster.work()) for _ in range(workers)]
        results = await cluster.run(events=log)
        if tasks:
            await asyncio.wait(tasks)
    assert [each.output for each in results] == [f"answer {n}" for n in range(12)]
    assert [each.index for each in results if each.model == "small"] == sorted(outage.answered)
    assert cluster.asked_of(cluster.large) == Counter(set(range(12)).difference(outage.answered))
    assert any("is not used any more" in event.text for event in log.events if isinstance(event, Notice))
    again = await cluster.run(backend=DOWN, model="small")
    assert models(again) == models(results)
    assert cluster.asked_of(cluster.large).total() == 7


@pytest.mark.slow
async def test_a_caller_whose_server_is_gone_goes_on_where_the_last_one_was_stopped(redis_server: RedisServer) -> None:
    """An agent that had written something does not write again, also if it was not finished."""
    register = Register()
    hanging = asyncio.Event()

    async def calls_and_hangs(request: Request) -> Answer:
        if isinstance(request.messages[-1], ToolResults):
            await hanging.wait()
        return register.calling(request)

    cluster = Cluster(redis_server.url, tools=[register.tool], max_inflight=12)
    stopped = asyncio.ensure_future(cluster.run(backend=ScriptedBackend(calls_and_hangs, model="small")))
    async with asyncio.timeout(30):
        while len(register.written) < len(ROWS):
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)  # facts are written in the background
    stopped.cancel()
    await asyncio.wait([stopped])
    results = await cluster.run(backend=DOWN, model="small")
    assert models(results) == ["large"] * 12
    assert sorted(register.written) == list(range(12))
    assert {len(request.messages) for backend in cluster.large for request in backend.requests} == {3}


async def test_all_backends_of_a_shared_run_have_one_budget(redis_server: RedisServer) -> None:
    """The first one spends 1,100 tokens, which leaves enough for one of the four agents that it refuses."""
    cluster = Cluster(redis_server.url, max_total_tokens=1_300, max_tokens=10, max_inflight=1)
    results = await cluster.run()
    assert cluster.asked_of(cluster.small) == Counter(range(12))
    assert models(results).count("large") == 4
    assert cluster.asked_of(cluster.large).total() == 1
    assert [each.error.kind for each in results if each.error] == [ErrorKind.BUDGET] * 3
