"""How a flow ends: what becomes of failures, of a backend that dies, and of what was under way."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from tests.support.engine_harness import asked, now
from tests.support.event_list import EventList
from tests.support.flow_harness import entries, joining, leaves, prompts

from batch_agent import BackendError, BatchAgent, ErrorKind, Flow, RunStopped
from batch_agent.core.events import CallbackFailed
from batch_agent.core.requests import Request
from batch_agent.flows.summary import flow_summary_lines
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.text.flow_summary import partial_flow_summary_lines
from batch_agent.testing import Answer, ScriptedBackend, say


def its(count: int) -> list[dict[str, Any]]:
    return [{"it": str(number)} for number in range(count)]


def failing(*tasks: str) -> ScriptedBackend:
    def answer(request: Request) -> Answer:
        if asked(request).startswith(tasks):
            return BackendError(ErrorKind.BAD_REQUEST, "the server says no")
        return joining(request)

    return ScriptedBackend(answer, seconds=1.0)


async def test_kept_failures_pass_later_stages_and_reach_the_reduce() -> None:
    backend = failing("A 1", "B 2")
    flow = Flow(its(4), backend=backend).map("a", "A {it}").filter(lambda item: item["a"]).map("b", "B {it}")
    outcome = await flow.reduce("all", "Join {n}").run()
    assert sorted(prompts(backend, beginning="B")) == ["B 0", "B 2", "B 3"]
    [join] = prompts(backend, beginning="Join")
    assert [entry["status"] for entry in entries(join)] == ["ok", "error", "error", "ok"]
    assert entries(join)[1]["error"] == {"kind": "bad_request", "message": "the server says no"}
    assert list(entries(join)[2]["output"]) == ["a"]
    assert outcome.items[0]["n"] == 4


async def test_kept_failures_are_in_the_flow_result_with_the_stage_that_failed() -> None:
    outcome = await Flow(its(3), backend=failing("A 1")).map("a", "A {it}").map("b", "B {it}").run()
    assert [(item.ok, item.stage) for item in outcome.items] == [(True, ""), (False, "a"), (True, "")]
    assert (outcome.stages["a"].failed, outcome.stages["b"].failed) == (1, 0)


async def test_skipped_failures_are_dropped_from_the_flow() -> None:
    backend = failing("A 1", "Join 2 of x")
    inputs = [{"it": str(number), "kind": "xy"[number % 2]} for number in range(5)]
    flow = Flow(inputs, backend=backend).map("a", "A {it}", on_failure="skip")
    outcome = await flow.reduce("all", "Join {n} of {kind}", group_by="kind", on_failure="skip").run()
    assert [(item["kind"], item["all"]) for item in outcome.items] == [("x", "0 2 4"), ("y", "3")]
    assert outcome.stages["a"].skipped == 1
    outcome = await flow.reduce("all", "Join 2 of x", group_by="kind", on_failure="skip").run()
    assert outcome.items == ()
    assert outcome.stages["all"].skipped == 2


@pytest.mark.parametrize("stage", ["a", "b", "all"])
async def test_a_failure_in_a_stage_with_on_failure_stop_ends_the_flow(stage: str) -> None:
    policy: dict[str, Any] = dict.fromkeys(("a", "b", "all"), "keep") | {stage: "stop"}
    backend = failing("A 3", "B 3", "Join")
    flow = Flow(its(6), backend=backend, max_inflight=1).map("a", "A {it}", on_failure=policy["a"])
    flow = flow.map("b", "B {it}", on_failure=policy["b"]).reduce("all", "Join", on_failure=policy["all"])
    if stage == "b":
        backend = failing("B 3", "Join")
        flow = Flow(its(6), backend=backend, max_inflight=1).map("a", "A {it}")
        flow = flow.map("b", "B {it}", on_failure="stop").reduce("all", "Join")
    with pytest.raises(RunStopped, match=rf"Stage '{stage}' failed for item .*on_failure='stop'") as stopped:
        await flow.run()
    assert stopped.value.kind is ErrorKind.BAD_REQUEST
    done = stopped.value.flow
    assert done is not None
    assert done.stages["a"].results[0].ok
    assert len(stopped.value.results) == sum(len(report.results) for report in done.stages.values())
    assert (len(done.stages["a"].results) == 6) == (stage == "all")


async def test_a_failed_reduce_is_an_error_for_the_next_stage() -> None:
    backend = failing("Join 2 of b")
    inputs = [{"it": str(number), "kind": "ab"[number % 2]} for number in range(4)]
    flow = Flow(inputs, backend=backend).map("a", "A {it}").reduce("each", "Join {n} of {kind}", group_by="kind")
    outcome = await flow.map("c", "C {each}").reduce("last", "Join {n}").run()
    shown = entries(prompts(backend, beginning="Join 2\n")[0])
    assert [(entry["status"], entry["input"]["kind"]) for entry in shown] == [("ok", "a"), ("error", "b")]
    assert prompts(backend, beginning="C") == ["C 0 2"]
    assert outcome.items[0].ok


@pytest.mark.parametrize("dies_at", [0.5, 3.5, 8.5])
async def test_a_backend_that_dies_ends_the_flow_with_one_error(dies_at: float) -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(1.0)
        if now() > dies_at:
            return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect to it")
        return joining(request)

    backend = ScriptedBackend(answer, context_tokens=1000)
    flow = Flow(its(60), backend=backend, max_inflight=4, max_retries=1).map("a", "A {it}").map("b", "B {it}")
    with pytest.raises(RunStopped, match="Cannot connect to it") as stopped:
        await flow.reduce("all", "Join").run()
    assert now() < dies_at + 30
    assert stopped.value.flow is not None
    assert all(result.ok for result in stopped.value.results)
    assert len(stopped.value.results) == 4 * int(dies_at)


async def test_a_dead_backend_of_one_stage_ends_the_flow() -> None:
    dead = ScriptedBackend(lambda request: BackendError(ErrorKind.AUTH, "bad key"))
    alive = ScriptedBackend(joining, seconds=1.0)
    with pytest.raises(RunStopped, match="bad key") as stopped:
        await Flow(its(30), backend=alive).map("a", "A {it}").map("b", "B {it}", backend=dead).run()
    assert stopped.value.flow is not None
    assert all(result.ok for result in stopped.value.flow.stages["a"].results)


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5, 5.5])
async def test_a_cancelled_flow_leaves_no_task_behind(after: float) -> None:
    backend = ScriptedBackend(joining, seconds=1.0, context_tokens=1000)
    flow = Flow(its(30), backend=backend, max_inflight=8).map("a", "A {it}").expand("part", lambda item: [1, 2])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after):
            await flow.map("b", "B {it}").reduce("all", "Join").run()
    assert backend.in_flight == 0
    assert now() == after


async def test_inputs_that_raise_stop_the_flow_before_its_reduce() -> None:
    def broken() -> Iterator[dict[str, str]]:
        yield from its(2)
        raise ValueError("line 3 is no JSON")

    backend = ScriptedBackend(joining, seconds=1.0)
    with pytest.raises(RunStopped, match="line 3 is no JSON"):
        await Flow(broken(), backend=backend).map("a", "A {it}").reduce("all", "Join").run()
    with pytest.raises(RunStopped, match="line 3 is no JSON"):
        await Flow(broken(), backend=backend).filter(bool).map("a", "A {it}").run()
    assert prompts(backend, beginning="Join") == []


class Boastful(Sequence[dict[str, str]]):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> Any:
        return its(4)[index]


async def test_fewer_inputs_than_len_reports_are_still_reduced() -> None:
    backend = ScriptedBackend(joining)
    outcome = await Flow(Boastful(), backend=backend).map("a", "A {it}").reduce("all", "Join {n}").run()
    assert outcome.items[0]["all"] == "0 1 2 3"
    outcome = await Flow(Boastful(), backend=backend).filter(bool).reduce("all", "Join {n}").run()
    assert outcome.items[0]["all"] == "0 1 2 3"


async def test_inputs_of_a_slow_iterator_are_processed_as_they_arrive() -> None:
    async def slowly() -> AsyncIterator[dict[str, str]]:
        for it in its(3):
            yield it
            await asyncio.sleep(10)

    began: dict[str, float] = {}

    def answer(request: Request) -> Answer:
        began[asked(request)[:3]] = now()
        return joining(request)

    backend = ScriptedBackend(answer)
    outcome = await Flow(slowly(), backend=backend).map("a", "A {it}").map("b", "B {it}").reduce("all", "Join").run()
    assert began == {"A 0": 0, "B 0": 0, "A 1": 10, "B 1": 10, "A 2": 20, "B 2": 20, "Joi": 30}
    assert leaves(prompts(backend, beginning="Join")[0]) == ["0", "1", "2"]
    assert outcome.items[0].ok


async def test_a_failed_plan_stops_a_map_reduce_and_an_empty_plan_does_not() -> None:
    options: dict[str, Any] = {"plan_output_schema": list[str], "task": "Do {item} {index}", "reduce": "Join {n}"}
    run = BatchAgent.run_with_map_reduce
    backend = ScriptedBackend(lambda request: say("no list"))
    with pytest.raises(RunStopped, match=r"Stage 'plan' failed for item .*on_failure='stop'") as stopped:
        await run(plan_prompt="Plan", backend=backend, max_retries=0, **options)
    assert stopped.value.results == []
    backend = ScriptedBackend(lambda request: say('{"answer": []}'))
    assert await run(plan_prompt="Plan", backend=backend, **options) == ([], None)
    assert await run(plan_prompt="Plan {it}", plan_inputs=[], backend=backend, **options) == ([], None)
    assert len(backend.requests) == 1


def _explode(item: Any) -> Any:
    raise KeyError(f"no {item['it']}")


@pytest.mark.parametrize("reduces", [True, False])
async def test_functions_that_raise_are_reported_and_counted_per_stage(
    reduces: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventList()
    flow = Flow(its(4), backend=ScriptedBackend(joining)).map("a", "A {it}")
    flow = flow.filter(lambda item: _explode(item) if item["it"] == "0" else True)
    flow = flow.expand("part", lambda item: _explode(item) if item["it"] == "1" else ["x"])
    if reduces:
        flow = flow.reduce("all", "Join", group_by=lambda item: _explode(item) if item["it"] == "2" else "same")
    outcome = await flow.run(events=log)
    where = ["the filter after 'a'", "expand('part')", *(["reduce('all')"] if reduces else [])]
    assert [item.stage for item in outcome.callback_failures] == where
    assert [item["it"] for item in outcome.callback_failures] == ["0", "1", "2"][: len(where)]
    assert all(item.error and item.error.kind is ErrorKind.CALLBACK for item in outcome.callback_failures)
    told = [event for event in log.events if isinstance(event, CallbackFailed)]
    assert [event.where for event in sorted(told, key=lambda event: event.item)] == where
    assert [line.partition(" raised")[0] for line in flow_summary_lines(outcome, 1.0) if " raised for" in line] == where
    state = LiveState()
    for event in log.events:
        state.emit(event)
    assert [line.partition(".")[0] for line in partial_flow_summary_lines(state, 1.0) if " raised for" in line] == [
        f"{each} raised for 1 item" for each in where
    ]
    assert sum("raised for item" in record.message for record in caplog.records) == len(where)


async def test_a_function_that_raises_for_many_items_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow(its(20), backend=ScriptedBackend(joining)).map("a", "A {it}").filter(_explode)
    outcome = await flow.run()
    assert len(outcome.callback_failures) == len(outcome.items) == 20
    assert sum("raised for item" in record.message for record in caplog.records) == 1
