"""A run with a checkpoint goes on where it stopped: nothing that is finished is asked again."""

import asyncio
import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, PlanMismatch, StoreError, Tool
from batch_agent.core.events import AgentFinished, Event
from batch_agent.core.facts import Started
from batch_agent.core.messages import ToolCall, User
from batch_agent.core.requests import Request
from batch_agent.core.results import Timing
from batch_agent.sim import SimServer
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, calls, say


class City(BaseModel):
    name: str
    people: int


def asked(backend: ScriptedBackend) -> list[str]:
    firsts = [request.messages[0] for request in backend.requests]
    return [first.text for first in firsts if isinstance(first, User)]


def timeless(results: list[AgentResult]) -> list[AgentResult]:
    return [replace(result, timing=Timing()) for result in results]


async def run(backend: Any, inputs: Any, folder: Path, **options: Any) -> list[AgentResult]:
    options.setdefault("task", "{it}")
    results: list[AgentResult] = await BatchAgent.run(inputs=inputs, backend=backend, checkpoint_dir=folder, **options)
    return results


async def test_a_finished_run_is_read_back_without_a_request(sim: SimServer, tmp_path: Path) -> None:
    looked = 0

    @Tool.define
    async def look(key: str) -> str:
        nonlocal looked
        looked += 1
        return f"about {key}"

    options: dict[str, Any] = {"task": "Describe {it}", "tools": [look], "output_schema": City}
    inputs = [f"city {n}" for n in range(12)]
    first = await run(sim.url, inputs, tmp_path, **options)
    assert all(isinstance(result.output, City) for result in first)
    served = sim.metrics()["vllm:request_success_total"]
    again = await run(sim.url, inputs, tmp_path, **options)
    assert timeless(again) == timeless(first)
    assert looked == 12
    # One more: whether the server takes tools is tried at every start.
    assert sim.metrics()["vllm:request_success_total"] - served <= 1


async def test_reordered_and_added_inputs_find_finished_agents(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    await run(backend, list("abc"), tmp_path)
    backend.requests.clear()
    results = await run(backend, list("xcba"), tmp_path)
    assert asked(backend) == ["x"]
    assert [(result.index, result.input, result.text) for result in results] == [
        (0, "x", "done"),
        (1, "c", "done"),
        (2, "b", "done"),
        (3, "a", "done"),
    ]


async def test_equal_inputs_are_each_found_in_the_checkpoint(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    await run(backend, ["same"] * 3, tmp_path)
    results = await run(backend, ["same"] * 5, tmp_path)
    assert len(results) == 5
    assert len(backend.requests) == 5


@pytest.mark.parametrize(
    "change", [{"task": "Again: {it}"}, {"model": "another"}, {"temperature": 0.7}, {"system_prompt": "Be kind."}]
)
async def test_a_changed_task_is_requested_again(tmp_path: Path, change: dict[str, Any]) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    await run(backend, list("abc"), tmp_path)
    with pytest.raises(PlanMismatch) as mismatch:
        await run(backend, list("abc"), tmp_path, **change)
    [changed] = change.values()
    assert repr(changed) in str(mismatch.value)
    assert len(backend.requests) == 3
    await run(backend, list("abc"), tmp_path, plan_changed="rerun", **change)
    assert len(backend.requests) == 6
    await run(backend, list("abc"), tmp_path, **change)
    await run(backend, list("abc"), tmp_path, plan_changed="rerun")  # changed back: the old answers are still there
    assert len(backend.requests) == 6


async def test_a_checkpoint_mismatch_names_an_added_tool(tmp_path: Path) -> None:
    @Tool.define
    async def look() -> str:
        return "found"

    backend = ScriptedBackend(lambda request: say("done"))
    await run(backend, ["a"], tmp_path)
    with pytest.raises(PlanMismatch, match=r"tools \(were none, are look"):
        await run(backend, ["a"], tmp_path, tools=[look])


async def test_with_retry_failed_false_failed_agents_stay_failed(tmp_path: Path) -> None:
    broken = ScriptedBackend(lambda request: say("not a number"))
    [failed] = await run(broken, ["a"], tmp_path, output_schema=int, max_retries=0)
    healed = ScriptedBackend(lambda request: say("7"))
    [again] = await run(healed, ["a"], tmp_path, output_schema=int, max_retries=0, retry_failed=False)
    assert again.error == failed.error
    assert not healed.requests
    [result] = await run(healed, ["a"], tmp_path, output_schema=int, max_retries=0)
    assert result.output == 7


async def test_the_facts_of_an_agent_have_its_input_and_task(tmp_path: Path) -> None:
    [result] = await run(ScriptedBackend(lambda request: say("done")), [{"it": "a"}], tmp_path)
    store = SqliteStore(tmp_path)
    await store.open()
    started, *_ = await store.facts(result.key)
    await store.aclose()
    assert isinstance(started, Started)
    assert (started.index, started.input) == (0, {"it": "a"})


async def test_an_interrupted_agent_resumes_from_its_last_fact(tmp_path: Path) -> None:
    looked = 0

    @Tool.define
    async def look() -> str:
        nonlocal looked
        looked += 1
        return "found"

    broken = ScriptedBackend(by_turn(call("look"), BackendError(ErrorKind.SERVER, "down")))
    [failed] = await run(broken, ["a"], tmp_path, tools=[look], max_retries=0)
    assert failed.error is not None
    assert (failed.error.kind, failed.turns) == (ErrorKind.SERVER, 1)

    healed = ScriptedBackend(by_turn(call("look"), say("done")))
    [result] = await run(healed, ["a"], tmp_path, tools=[look], max_retries=0)
    assert (result.text, result.turns, looked) == ("done", 2, 1)
    [request] = healed.requests
    assert request.messages == broken.requests[-1].messages


async def test_an_interrupted_agent_repeats_only_its_unfinished_calls(tmp_path: Path) -> None:
    started: Counter[str] = Counter()
    both, hang = asyncio.Event(), True

    @Tool.define(effect="stateful")
    async def look(name: str) -> str:
        started[name] += 1
        if started.total() == 2:
            both.set()
        if hang:
            await asyncio.Event().wait()
        return name

    wanted = calls(ToolCall("", "look", '{"name": "x"}'), ToolCall("", "look", '{"name": "y"}'))
    backend = ScriptedBackend(by_turn(wanted, say("done")))
    running = asyncio.create_task(run(backend, ["a"], tmp_path, tools=[look]))
    await both.wait()
    running.cancel()
    await asyncio.wait([running])
    hang = False
    [result] = await run(backend, ["a"], tmp_path, tools=[look])
    assert result.text == "done"
    assert started == {"x": 2, "y": 2}
    assert len(backend.requests) == 2


async def test_an_agent_that_failed_because_of_the_model_starts_over(tmp_path: Path) -> None:
    stubborn = ScriptedBackend(lambda request: say("no number"))
    [failed] = await run(stubborn, ["a"], tmp_path, output_schema=int, max_retries=1)
    assert failed.error is not None
    assert failed.error.kind is ErrorKind.INVALID_OUTPUT

    backend = ScriptedBackend(lambda request: say("7"))
    [result] = await run(backend, ["a"], tmp_path, output_schema=int, max_retries=1)
    assert (result.output, result.turns) == (7, 1)
    assert len(backend.requests[0].messages) == 1

    [again] = await run(backend, ["a"], tmp_path, output_schema=int, max_retries=1)
    assert (again.output, again.turns) == (7, 1)
    assert len(backend.requests) == 1


async def test_a_bug_in_an_output_type_fails_one_agent_until_it_is_fixed(tmp_path: Path) -> None:
    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def check(cls, n: int) -> int:
            if is_broken and n == 0:
                raise ZeroDivisionError("a bug in the type")
            return n

    def answer(request: Request) -> Answer:
        first = request.messages[0]
        return say(f'{{"n": {first.text}}}') if isinstance(first, User) else say("")

    is_broken = True
    backend = ScriptedBackend(answer)
    for _ in range(2):
        results = await run(backend, list("102"), tmp_path, output_schema=Odd)
        assert [result.ok for result in results] == [True, False, True]
    is_broken = False
    backend.requests.clear()
    results = await run(backend, list("102"), tmp_path, output_schema=Odd)
    assert [result.output for result in results] == [Odd(n=1), Odd(n=0), Odd(n=2)]


async def test_a_run_that_was_left_early_keeps_finished_results(tmp_path: Path) -> None:
    async def answer(request: Request) -> Answer:
        first = request.messages[0]
        if isinstance(first, User) and first.text == "slow":
            await asyncio.Event().wait()
        return say("done")

    backend = ScriptedBackend(answer)
    async with BatchAgent.stream(
        task="{it}", inputs=["slow", "a", "b"], backend=backend, checkpoint_dir=tmp_path
    ) as results:
        assert {(await anext(results)).input, (await anext(results)).input} == {"a", "b"}
    quick = ScriptedBackend(lambda request: say("done"))
    assert len(await run(quick, ["slow", "a", "b"], tmp_path)) == 3
    assert asked(quick) == ["slow"]


async def test_events_mark_results_from_the_checkpoint_as_resumed(tmp_path: Path) -> None:
    class Log:
        def __init__(self) -> None:
            self.resumed: dict[Any, bool] = {}

        def emit(self, event: Event) -> None:
            if isinstance(event, AgentFinished):
                self.resumed[event.result.input] = event.resumed

    backend, log = ScriptedBackend(lambda request: say("done")), Log()
    await run(backend, ["a"], tmp_path)
    await run(backend, ["a", "b"], tmp_path, events=log)
    assert log.resumed == {"a": True, "b": False}


async def test_two_runs_on_one_checkpoint_at_once_are_refused(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def answer(request: Request) -> Answer:
        started.set()
        await asyncio.Event().wait()
        return say("never")

    first = asyncio.create_task(run(ScriptedBackend(answer), ["a"], tmp_path))
    await started.wait()
    with pytest.raises(StoreError, match="Another run is using"):
        await run(ScriptedBackend(answer), ["a"], tmp_path)
    first.cancel()
    await asyncio.wait([first])
    assert (await run(ScriptedBackend(lambda request: say("done")), ["a"], tmp_path))[0].ok


async def test_a_failing_checkpoint_ends_the_run_at_once(tmp_path: Path) -> None:
    async def answer(request: Request) -> Answer:
        if len(backend.requests) == 3:
            with sqlite3.connect(tmp_path / "run.sqlite3") as db:
                db.execute("DROP TABLE facts")
            db.close()
        return say("done")

    backend = ScriptedBackend(answer, seconds=0.001)
    with pytest.raises(StoreError, match="cannot be used"):
        await run(backend, map(str, range(1000)), tmp_path, max_inflight=1)
    assert len(backend.requests) < 10
