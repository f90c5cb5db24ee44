"""What the stages of a flow share: slots, a budget, tools; and what is each stage's own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, now
from tests.support.event_list import EventList
from tests.support.flow_harness import joining, prompts, saying

from batch_agent import AgentResult, ErrorKind, Flow, SpecError, Tool
from batch_agent.core.events import BudgetReported
from batch_agent.core.messages import Assistant, ToolResults
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, call, say


def its(count: int) -> list[dict[str, Any]]:
    return [{"it": str(number)} for number in range(count)]


def paid(request: Request) -> Answer:
    return say("x" * 20, Usage(100, 20, 10))


@pytest.mark.parametrize("limit", [1, 3, 8])
async def test_all_stages_together_never_exceed_max_inflight(limit: int) -> None:
    backend = ScriptedBackend(joining, seconds=1.0)
    flow = Flow(its(20), backend=backend, max_inflight=limit).map("a", "A {it}").map("b", "B {it}", model="other")
    await flow.reduce("all", "Join").run()
    assert backend.most_in_flight == limit
    assert now() <= -(-40 // limit) + 2  # no slot was idle while anybody waited, but at the end


async def test_stages_may_have_different_backends() -> None:
    small, large = ScriptedBackend(joining, seconds=1.0, model="small"), ScriptedBackend(joining, seconds=1.0)
    flow = Flow(its(6), backend=small, max_inflight=2).map("a", "A {it}").map("b", "B {it}", backend=large)
    outcome = await flow.reduce("all", "Join", backend=large, model="larger").run()
    assert {prompt[0] for prompt in prompts(small)} == {"A"}
    assert {prompt[0] for prompt in prompts(large)} == {"B", "J"}
    assert [(report.backend, report.model) for report in outcome.stages.values()] == [
        ("scripted", "small"),
        ("scripted", "scripted"),
        ("scripted", "larger"),
    ]
    assert now() == 5  # both work at the same time
    assert [small.is_closed, large.is_closed] == [False, False]  # they are their owner's


async def test_one_token_budget_limits_all_stages_together() -> None:
    backend, log = ScriptedBackend(paid, seconds=1.0, context_tokens=4000), EventList()
    flow = Flow(its(40), backend=backend, max_total_tokens=5_000, max_tokens=10, max_inflight=4)
    outcome = await flow.map("a", "A {it}").map("b", "B {it}").run(events=log)
    spent = outcome.usage.input + outcome.usage.output
    assert 4_000 < spent <= 5_000
    assert outcome.stages["b"].results
    kinds = {item.error.kind for item in outcome.items if item.error}
    assert kinds == {ErrorKind.BUDGET}
    assert len(outcome.items) == 40
    assert [event.tokens for event in log.events if isinstance(event, BudgetReported)] == [spent]


async def test_one_deadline_applies_to_all_stages() -> None:
    flow = Flow(its(10), backend=ScriptedBackend(paid, seconds=3.0), max_inflight=2, deadline=10.0)
    outcome = await flow.map("a", "A {it}").map("b", "B {it}").run()
    assert now() == 10
    assert 1 <= sum(item.ok for item in outcome.items) < 10
    assert all(result.ok for result in outcome.stages["a"].results[:5])
    assert {item.error.kind for item in outcome.items if item.error} == {ErrorKind.BUDGET}


async def test_tokens_and_cost_of_each_stage_are_reported() -> None:
    async def answer(request: Request) -> Answer:
        task = asked(request)
        if task == "A 1":
            return say("nonsense", Usage(7, 0, 3))
        return say('{"answer": true}' if task.startswith("A") else "done", Usage(1000, 500, 10))

    backend = ScriptedBackend(answer, seconds=2.0)
    prices = {"cheap": (1.0, 0.5, 2.0), "dear": (10.0, 5.0, 20.0)}
    flow = Flow(its(4), backend=backend, prices=prices, max_retries=0, model="cheap").map(
        "a", "A {it}", output_schema=bool
    )
    outcome = await flow.map("b", "B {it}", model="dear", on_failure="skip").reduce("all", "Join").run()
    a, b, join = outcome.stages.values()
    assert (len(a.results), a.failed, a.usage, a.seconds) == (4, 1, Usage(3007, 1500, 33), 2.0)
    assert (len(b.results), b.failed, b.usage) == (3, 0, Usage(3000, 1500, 30))
    assert a.cost == pytest.approx((1507 * 1.0 + 1500 * 0.5 + 33 * 2.0) / 1e6)
    assert b.cost == pytest.approx((1500 * 10.0 + 1500 * 5.0 + 30 * 20.0) / 1e6)
    assert outcome.cost == pytest.approx(sum(report.cost or 0.0 for report in (a, b, join)))
    assert outcome.usage == a.usage + b.usage + join.usage
    assert [result.index for result in b.results] == [0, 1, 2]


async def test_the_cost_of_an_unknown_price_is_none_and_a_dollar_budget_needs_a_price() -> None:
    backend = ScriptedBackend(paid)
    flow = Flow(its(1), backend=backend, prices={"known": (1.0, 1.0, 1.0)}).map("a", "A {it}", model="known")
    outcome = await flow.map("b", "B {it}", model="unknown").run()
    assert outcome.stages["a"].cost == pytest.approx(110e-6)
    assert (outcome.stages["b"].cost, outcome.cost) == (None, None)
    backend.requests.clear()
    paying = Flow(its(1), backend=backend, max_usd=1.0, prices={"known": (1.0, 1.0, 1.0)})
    with pytest.raises(SpecError, match="Stage 'b': The price of 'unknown' is unknown"):
        await paying.map("a", "A {it}", model="known").map("b", "B {it}", model="unknown").run()
    assert not backend.requests


def looking(request: Request) -> Answer:
    """Every agent looks the same thing up, and answers with what it found."""
    last = request.messages[-1]
    return say(last.results[0].content) if isinstance(last, ToolResults) else call("look", key="same")


async def test_a_read_tool_is_executed_once_for_all_stages() -> None:
    looked: list[str] = []

    @Tool.define(effect="read")
    async def look(key: str) -> str:
        looked.append(key)
        await asyncio.sleep(5)
        return f"{key} found"

    flow = Flow(its(5), backend=ScriptedBackend(looking, seconds=1.0), tools=[look])
    outcome = await flow.map("a", "A {it}").map("b", "B {it}").run()
    assert looked == ["same"]
    assert [(item["a"], item["b"]) for item in outcome.items] == [("same found", "same found")] * 5


async def test_a_stage_cannot_call_the_tools_of_another_stage() -> None:
    called: list[str] = []

    @Tool.define
    async def look(key: str) -> str:
        called.append(key)
        return "found"

    @Tool.define
    async def other() -> str:
        return "other"

    flow = Flow(its(1), backend=ScriptedBackend(looking)).map("a", "A {it}", tools=[look])
    outcome = await flow.map("b", "B {it}", tools=[other]).run()
    assert called == ["same"]
    assert outcome.items[0]["a"] == "found"
    assert "look" in outcome.items[0]["b"]
    assert outcome.items[0]["b"] != "found"


async def test_on_result_is_called_for_each_stage() -> None:
    heard: list[tuple[str, str]] = []

    def hearing(stage: str) -> Any:
        def hear(result: AgentResult) -> None:
            heard.append((stage, result.text))
            raise RuntimeError("a callback that fails ends nothing")

        return hear

    backend = ScriptedBackend(lambda request: say(asked(request)))
    flow = Flow(its(2), backend=backend).map("a", "A {it}", on_result=hearing("a")).map("b", "B {it}")
    await flow.map("c", "C {it}", on_result=hearing("c")).run()
    assert sorted(heard) == [("a", "A 0"), ("a", "A 1"), ("c", "C 0"), ("c", "C 1")]


async def test_each_stage_has_its_own_priority_and_prompt() -> None:
    backend = ScriptedBackend(paid)
    flow = Flow(its(1), backend=backend, system_prompt="Be kind.").map("a", "A {it}", priority=3)
    await flow.map("b", "B {it}", priority=-1, system_prompt="Be strict.").run()
    a, b = backend.requests
    assert a.priority > 0 > b.priority
    assert (a.prompt.system, b.prompt.system) == ("Be kind.", "Be strict.")


async def test_an_item_that_exceeds_the_window_of_a_stage_is_refused_or_split() -> None:
    long = "\n\n".join(f"Paragraph {number}. " + "Words and words. " * 20 for number in range(60))
    backend = ScriptedBackend(saying({"Write": long, "": "read"}), context_tokens=2000)
    flow = Flow(its(1), backend=backend).map("text", "Write {it}")
    refused = await flow.map("read", "Read {text}").run()
    [item] = refused.items
    assert item.error is not None
    assert (item.error.kind, item.stage) == (ErrorKind.CONTEXT_OVERFLOW, "read")
    backend.requests.clear()
    split = await flow.map("read", "Read {text}", oversized="chunk").run()
    assert split.items[0]["read"] == "read"
    asked_of_it = [prompt for prompt in prompts(backend) if not prompt.startswith("Write")]
    assert len(asked_of_it) > 3
    assert split.stages["read"].results[0].turns == len(asked_of_it)


async def test_agents_of_several_turns_take_a_slot_per_turn() -> None:
    def answer(request: Request) -> Answer:
        turns = sum(isinstance(message, Assistant) for message in request.messages)
        return call("wait") if turns < 2 else say("done")

    @Tool.define
    async def wait() -> str:
        await asyncio.sleep(1)
        return "waited"

    backend = ScriptedBackend(answer, seconds=1.0)
    flow = Flow(its(4), backend=backend, max_inflight=2, tools=[wait]).map("a", "A {it}").map("b", "B {it}")
    outcome = await flow.run()
    assert all(item.ok for item in outcome.items)
    assert backend.most_in_flight == 2


async def test_a_flow_of_one_fed_stage_continues_after_its_budget_was_used_up(tmp_path: Path) -> None:
    backend = ScriptedBackend(paid, context_tokens=4000)

    def flow(**options: Any) -> Flow:
        begun = Flow(its(20), backend=backend, checkpoint_dir=tmp_path, max_tokens=10, **options)
        return begun.filter(lambda item: True).map("a", "A {it}")

    assert not all(item.ok for item in (await flow(max_total_tokens=1_000).run()).items)
    assert all(item.ok for item in (await flow().run()).items)
    assert len(backend.requests) == 20
