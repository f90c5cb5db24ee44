"""A flow with a checkpoint goes on where it stopped: nothing that is known is asked again, in any of its stages."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Flow, PlanMismatch, RunStopped
from batch_agent.core.events import AgentFinished, Event, StageEvent
from batch_agent.core.messages import User
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say


def task(request: Request) -> str:
    first = request.messages[0]
    assert isinstance(first, User)
    return first.text


def asked(backend: ScriptedBackend) -> Counter[str]:
    return Counter(map(task, backend.requests))


def answer(request: Request) -> Answer:
    """Never the same twice, as models are: what was said must come from the checkpoint."""
    words = f"{task(request).split()[0]} {random.random()}"
    if task(request).startswith("Plan"):
        return say(json.dumps({"answer": [f"part {number}" for number in range(12)]}), Usage(50, 0, 20))
    return say(words + " x" * 40, Usage(50, 0, 20))


class Finished:
    """Hears when the first agent of a stage is done, and what it said is written."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.heard = asyncio.Event()

    def emit(self, event: Event) -> None:
        if isinstance(event, StageEvent) and event.stage == self._stage and isinstance(event.event, AgentFinished):
            self.heard.set()


def its(count: int) -> list[dict[str, Any]]:
    return [{"it": f"thing {number}"} for number in range(count)]


def long_flow(backend: ScriptedBackend, folder: Path, **options: Any) -> Flow:
    flow = Flow(its(24), backend=backend, checkpoint_dir=folder, context_tokens=1500, **options).map("a", "A {it}")
    flow = flow.filter(lambda item: item["it"] != "thing 3").expand("part", lambda item: ["x", "y"])
    return flow.map("b", "B {part} of {a}").reduce("all", "Join {n}").map("last", "Last {all}")


async def test_a_finished_flow_is_read_back_without_a_request(tmp_path: Path) -> None:
    backend = ScriptedBackend(answer)
    first = await long_flow(backend, tmp_path).run()
    assert len(first.stages["all"].results) > 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "all", "b", "last"]
    asked_before = len(backend.requests)
    again = await long_flow(backend, tmp_path).run()
    assert len(backend.requests) == asked_before
    assert again.items == first.items
    assert again.usage == first.usage


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 20, 40, 60, 72])
async def test_a_resumed_flow_sends_only_missing_requests(tmp_path: Path, after: int) -> None:
    answers: list[str] = []
    enough = asyncio.Event()

    async def slow(request: Request) -> Answer:
        await asyncio.sleep(random.random() / 200)
        said = answer(request)
        answers.append(task(request))
        if len(answers) == after:
            enough.set()
        return said

    async with asyncio.TaskGroup() as group:
        under_way = group.create_task(long_flow(ScriptedBackend(slow), tmp_path).run())
        await enough.wait()
        under_way.cancel()
    backend = ScriptedBackend(slow)
    first = await long_flow(backend, tmp_path).run()
    repeated = Counter(answers) - Counter(set(answers))
    assert sum(repeated.values()) <= 8  # in flight when it was cancelled
    assert len(answers) >= len(first.stages["a"].results) + len(first.stages["b"].results) + 3
    again = await long_flow(ScriptedBackend(slow), tmp_path).run()
    assert again.items == first.items


async def test_a_recorded_plan_is_not_made_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "plan_prompt": "Plan {topic}",
        "plan_inputs": {"topic": "x"},
        "plan_output_schema": list[str],
        "task": "Do {item}",
        "reduce": "Join {n}",
        "checkpoint_dir": tmp_path,
    }
    done = heard = 0
    heard_all = asyncio.Event()

    def hear(result: AgentResult) -> None:
        nonlocal heard
        heard += 1
        if heard == 6:
            heard_all.set()

    async def failing(request: Request) -> Answer:
        nonlocal done
        done += 1
        if done < 8:
            return answer(request)
        await heard_all.wait()
        return BackendError(ErrorKind.UNAVAILABLE, "gone")

    backend = ScriptedBackend(failing)
    with pytest.raises(RunStopped) as stopped:
        await BatchAgent.run_with_map_reduce(**options, backend=backend, on_result=hear, max_retries=0)
    known = {result.input["item"] for result in stopped.value.results}
    assert len(known) == 6
    backend = ScriptedBackend(answer)
    results, summary = await BatchAgent.run_with_map_reduce(**options, backend=backend)
    assert summary.startswith("Join")
    assert len(results) == 12
    words = [prompt.split("\n")[0] for prompt in asked(backend)]
    assert sorted(words) == sorted([f"Do part {n}" for n in range(12) if f"part {n}" not in known] + ["Join 12"])


async def test_only_a_failed_partial_reduce_is_requested_again(tmp_path: Path) -> None:
    poisoned: list[str] = []
    other = Finished("reduce")

    async def failing(request: Request) -> Answer:
        if task(request).startswith("Join") and "thing 9" in task(request):
            poisoned.append(task(request))
            await other.heard.wait()  # a failure calls off what is under way
            return BackendError(ErrorKind.BAD_REQUEST, "no")
        return say(task(request)[:5] + "x" * 100)

    options: dict[str, Any] = {"task": "Do {it}", "inputs": its(30), "reduce": "Join {n}", "checkpoint_dir": tmp_path}
    backend = ScriptedBackend(failing)
    with pytest.raises(RunStopped, match="no") as stopped:
        await BatchAgent.run_with_reduce(**options, backend=backend, context_tokens=1500, events=other)
    assert len(stopped.value.results) == 30
    backend = ScriptedBackend(lambda request: say("joined"))
    _, summary = await BatchAgent.run_with_reduce(**options, backend=backend, context_tokens=1500)
    assert summary == "joined"
    again, *later = map(task, backend.requests)
    assert again == poisoned[0]
    assert all('"status":"merged"' in prompt for prompt in later)


async def test_a_changed_later_stage_is_named_in_the_error_and_can_be_run_again(tmp_path: Path) -> None:
    backend = ScriptedBackend(answer)

    def flow(last: str, **options: Any) -> Flow:
        started = Flow(its(5), backend=backend, checkpoint_dir=tmp_path, **options).map("a", "A {it}")
        return started.map("b", last + " {a}").reduce("all", "Join {n}")

    await flow("B").run()
    backend.requests.clear()
    with pytest.raises(
        PlanMismatch, match=r"Stage 'b': The checkpoint belongs to a run with a different definition.*task \(was"
    ):
        await flow("Better").run()
    assert not backend.requests
    await flow("Better", plan_changed="rerun").run()
    assert Counter(prompt.split()[0] for prompt in asked(backend).elements()) == {"Better": 5, "Join": 1}
    backend.requests.clear()
    await flow("B", plan_changed="rerun").run()  # the old answers were kept
    assert not backend.requests


async def test_added_inputs_send_only_their_own_requests(tmp_path: Path) -> None:
    backend = ScriptedBackend(answer)

    def flow(count: int) -> Flow:
        started = Flow(its(count), backend=backend, checkpoint_dir=tmp_path, context_tokens=1500).map("a", "A {it}")
        return started.reduce("all", "Join")

    await flow(32).run()
    parts = {prompt for prompt in asked(backend) if "These are" in prompt}
    backend.requests.clear()
    await flow(36).run()
    assert sum(prompt.startswith("A") for prompt in asked(backend).elements()) == 4
    assert not parts & set(asked(backend))


async def test_equal_inputs_are_found_again_in_every_stage(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda request: say(task(request)))
    flow = Flow([{"it": "same"}] * 6, backend=backend, checkpoint_dir=tmp_path).map("a", "A {it}").map("b", "B {a}")
    await flow.reduce("all", "Join").run()
    assert len(backend.requests) == 13
    await flow.reduce("all", "Join").run()
    assert len(backend.requests) == 13


async def test_two_stages_with_equal_prompts_each_send_requests(tmp_path: Path) -> None:
    backend = ScriptedBackend(answer)
    flow = Flow(its(3), backend=backend, checkpoint_dir=tmp_path).map("a", "Do {it}").map("b", "Do {it}")
    outcome = await flow.run()
    assert len(backend.requests) == 6
    assert all(item["a"] != item["b"] for item in outcome.items)


async def test_spent_tokens_of_all_stages_are_remembered(tmp_path: Path) -> None:
    async def answered(count: int, budget: int) -> list[bool]:
        options: dict[str, Any] = {"max_total_tokens": budget, "max_tokens": 20, "checkpoint_dir": tmp_path}
        flow = Flow(its(count), backend=ScriptedBackend(answer), **options)
        outcome = await flow.map("a", "A {it}").map("b", "B {it}").run()
        return [item.ok for item in outcome.items]

    assert await answered(4, 100_000) == [True] * 4
    assert await answered(4, 8 * 70) == [True] * 4
    assert await answered(5, 8 * 70) == [True] * 4 + [False]


def test_a_flow_runs_without_an_event_loop_too() -> None:
    outcome = Flow(its(2), backend=ScriptedBackend(answer)).map("a", "A {it}").run_sync()
    assert [item.ok for item in outcome.items] == [True, True]
