"""Flows whose stages are shared runs, on a real Redis-compatible server."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked
from tests.support.event_list import EventList
from tests.support.flow_harness import joining, prompts
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, Flow, RunStopped, SpecError
from batch_agent.core.events import AgentFinished, StageEvent
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say

__all__ = ["redis_server"]

ITEMS = [{"n": n} for n in range(30)]


def upper(request: Request) -> Answer:
    return say(asked(request).upper(), Usage(10, 0, 5))


async def slow(request: Request) -> Answer:
    await asyncio.sleep(0.005)
    return upper(request)


def flow(backend: ScriptedBackend, redis: RedisServer, run_id: str, **options: Any) -> Flow:
    given: dict[str, Any] = {"backend": backend, "store": redis.url, "run_id": run_id, "max_inflight": 8, **options}
    return (
        Flow(ITEMS, **given)
        .map("review", "Review {n}")
        .filter(lambda item: int(item["n"]) % 3 > 0)
        .map("answer", "Answer {review}")
        .reduce("report", "Sum up {n}.")
    )


def counted(*backends: ScriptedBackend) -> Counter[str]:
    return Counter(asked(request) for backend in backends for request in backend.requests)


async def test_a_flow_with_a_store_gives_the_items_of_a_flow_without(redis_server: RedisServer, tmp_path: Path) -> None:
    alone, shared = ScriptedBackend(upper), ScriptedBackend(upper)
    local = Flow(ITEMS, backend=alone).map("review", "Review {n}").filter(lambda item: int(item["n"]) % 3 > 0)
    expected = await local.map("answer", "Answer {review}").reduce("report", "Sum up {n}.").run()
    outcome = await flow(shared, redis_server, tmp_path.name).run()
    assert outcome.items == expected.items
    assert counted(shared) == counted(alone)
    assert {name: len(stage.results) for name, stage in outcome.stages.items()} == {
        "review": 30, "answer": 20, "report": 1,
    }  # fmt: skip


async def test_a_finished_flow_sends_no_requests_again(redis_server: RedisServer, tmp_path: Path) -> None:
    first = await flow(ScriptedBackend(upper), redis_server, tmp_path.name).run()
    backend = ScriptedBackend(upper)
    again = await flow(backend, redis_server, tmp_path.name).run()
    assert again.items == first.items
    assert backend.requests == []


@pytest.mark.slow  # a worker waits two seconds for more work
async def test_a_worker_takes_agents_of_every_stage_and_ends_with_the_flow(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    theirs = ScriptedBackend(upper)

    async def after_the_worker(request: Request) -> Answer:
        """The process of the flow answers once the worker has had an agent of the stage."""
        kind = asked(request).split()[0]
        while kind != "Sum" and not prompts(theirs, beginning=kind):
            await asyncio.sleep(0.001)
        return upper(request)

    ours = ScriptedBackend(after_the_worker)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(flow(ours, redis_server, tmp_path.name, max_agents=4).run())
        group.create_task(_work_from_the_first_request_on(ours, flow(theirs, redis_server, tmp_path.name)))
    assert len(running.result().items) == 1
    made = counted(ours, theirs)
    assert set(made.values()) == {1}
    assert len(made) == 51


async def _work_from_the_first_request_on(caller: ScriptedBackend, worker: Flow) -> None:
    while not caller.requests:
        await asyncio.sleep(0.001)
    await worker.work()


async def test_two_callers_of_a_flow_share_its_agents_and_get_the_same_items(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    ours, theirs = ScriptedBackend(slow), ScriptedBackend(slow)
    first, second = await asyncio.gather(
        flow(ours, redis_server, tmp_path.name).run(), flow(theirs, redis_server, tmp_path.name).run()
    )
    assert first.items == second.items
    assert set(counted(ours, theirs).values()) == {1}


@pytest.mark.slow
async def test_stages_share_one_budget_with_all_workers(redis_server: RedisServer, tmp_path: Path) -> None:
    """Each request takes 15 tokens, and may take 10 + 20."""
    ours, theirs = ScriptedBackend(slow), ScriptedBackend(slow)
    options: dict[str, Any] = {"max_total_tokens": 600, "max_tokens": 20, "context_tokens": 500}
    async with asyncio.TaskGroup() as group:
        running = group.create_task(flow(ours, redis_server, tmp_path.name, **options).run())
        group.create_task(_work_from_the_first_request_on(ours, flow(theirs, redis_server, tmp_path.name, **options)))
    outcome = running.result()
    spent = outcome.usage.input + outcome.usage.output
    assert 0 < spent <= 600
    assert spent == 15 * (len(ours.requests) + len(theirs.requests))
    assert any(not result.ok for stage in outcome.stages.values() for result in stage.results)
    later = ScriptedBackend(upper)
    await flow(later, redis_server, tmp_path.name, **options, retry_failed=True).run()
    assert spent + 15 * len(later.requests) <= 600


async def test_run_with_reduce_and_map_reduce_take_a_store(redis_server: RedisServer, tmp_path: Path) -> None:
    backend = ScriptedBackend(joining)
    options: dict[str, Any] = {"backend": backend, "store": redis_server.url}
    results, summary = await BatchAgent.run_with_reduce(
        task="Read {n}", inputs=ITEMS[:5], reduce="Join {n}.", run_id=tmp_path.name, **options
    )
    assert (len(results), summary) == (5, "0 1 2 3 4")
    planning = ScriptedBackend(
        lambda request: say('["a", "b"]') if asked(request).startswith("Plan") else joining(request)
    )
    results, summary = await BatchAgent.run_with_map_reduce(
        plan_prompt="Plan it.", plan_output_schema=list[str], task="Read {item}", reduce="Join {n}. {plan} {results}",
        run_id=f"{tmp_path.name}-plan", **options | {"backend": planning},
    )  # fmt: skip
    assert (len(results), summary) == (2, "0 1")


async def test_a_failure_stops_a_shared_flow_with_what_was_done(redis_server: RedisServer, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda request: say("not a number"))
    options: dict[str, Any] = {"backend": backend, "store": redis_server.url, "run_id": tmp_path.name, "max_turns": 1}
    stopping = Flow(ITEMS[:3], **options).map("count", "Count {n}", output_schema=int, on_failure="stop")
    with pytest.raises(RunStopped, match="Stage 'count' failed"):
        await stopping.run()


async def test_events_of_a_shared_flow_name_their_stage(redis_server: RedisServer, tmp_path: Path) -> None:
    log = EventList()
    await flow(ScriptedBackend(upper), redis_server, tmp_path.name).run(events=log)
    finished = [
        event.stage for event in log.events if isinstance(event, StageEvent) and isinstance(event.event, AgentFinished)
    ]
    assert Counter(finished) == {"review": 30, "answer": 20, "report": 1}


async def test_work_without_a_store_says_what_is_missing() -> None:
    with pytest.raises(SpecError, match="work needs the store of the flow"):
        await Flow(ITEMS, backend=ScriptedBackend(upper)).map("review", "Review {n}").work()


@pytest.mark.parametrize("option", [{"store": "redis://127.0.0.1:1"}, {"cluster": "ray"}, {"lease": 3.0}])
async def test_stages_cannot_have_a_store_of_their_own(option: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="applies to all stages"):
        await Flow(ITEMS, backend=ScriptedBackend(upper)).map("review", "Review {n}", **option).run()


async def test_models_and_samples_take_a_store(redis_server: RedisServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": "Say {n}", "inputs": ITEMS[:4], "store": redis_server.url}
    options |= {"models": ["org/a.1", "org/b.1"], "samples": 2, "run_id": tmp_path.name}
    first = ScriptedBackend(lambda request: say(f"{request.model} {asked(request)}"))
    results = await BatchAgent.run(backend=first, **options)
    found = Counter((result.index, result.model, result.sample, result.output) for result in results)
    assert set(found.values()) == {1}
    assert {(index, output) for index, _, _, output in found} == {
        (n, f"{model} Say {n}") for n in range(4) for model in ("org/a.1", "org/b.1")
    }
    assert len(first.requests) == len(found) == 16
    again = ScriptedBackend(upper)
    assert [result.output for result in await BatchAgent.run(backend=again, **options)] == [
        result.output for result in results
    ]
    assert again.requests == []


@pytest.mark.slow  # the deadline leaves time to open all stages on a busy machine
async def test_a_shared_flow_ends_at_its_deadline(redis_server: RedisServer, tmp_path: Path) -> None:
    async def never(request: Request) -> Answer:
        await asyncio.Event().wait()
        return upper(request)

    outcome = await flow(ScriptedBackend(never), redis_server, tmp_path.name, deadline=8.0).run()
    assert [result.error.kind for result in outcome.stages["review"].results if result.error] == ["budget"] * 30
    assert len(outcome.stages["review"].results) == 30
