"""Stages in a row: every item goes on as soon as it can, past filters and through expansions, up to a reduce."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.engine_harness import asked, now
from tests.support.flow_harness import entries, joining, leaves, prompts, saying

from batch_agent import ErrorKind, Flow
from batch_agent.core.requests import Request
from batch_agent.core.task_fields import Fields
from batch_agent.flows.result import FlowResult, Item
from batch_agent.testing import Answer, ScriptedBackend, say


class Paper(BaseModel):
    title: str
    pages: int = 1


def echo(**traits: Any) -> ScriptedBackend:
    """Answers with what it was asked."""
    return ScriptedBackend(lambda request: say(asked(request)), **traits)


def its(count: int) -> list[dict[str, Any]]:
    return [{"it": str(number)} for number in range(count)]


def field(outcome: FlowResult, name: str) -> list[Any]:
    return [item.get(name) for item in outcome.items]


async def test_the_answer_of_a_stage_is_a_field_for_later_stages() -> None:
    outcome = await Flow(its(2), backend=echo()).map("a", "A {it}").map("b", "B {it} {a}").run()
    assert [dict(item) for item in outcome.items] == [
        {"it": "0", "a": "A 0", "b": "B 0 A 0"},
        {"it": "1", "a": "A 1", "b": "B 1 A 1"},
    ]
    assert [item.position for item in outcome.items] == [(0,), (1,)]
    assert list(outcome.stages) == ["a", "b"]


async def test_no_item_waits_for_a_slow_one() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(10 if asked(request) in ("A 0", "B 1") else 1)
        return say("ok")

    began: dict[str, float] = {}

    def script(request: Request) -> Any:
        began[asked(request)] = now()
        return answer(request)

    outcome = await Flow(its(4), backend=ScriptedBackend(script)).map("a", "A {it}").map("b", "B {it}").run()
    assert [began[f"B {number}"] for number in range(4)] == [10, 1, 1, 1]
    assert now() == 11  # and not 20: the slow ones of both stages were under way at the same time
    for report in outcome.stages.values():
        assert [(result.index, result.input["it"]) for result in report.results] == [(n, str(n)) for n in range(4)]


async def test_a_slow_stage_applies_backpressure_to_earlier_stages() -> None:
    quick, slow = echo(), echo(seconds=1.0)
    flow = Flow(its(3000), backend=quick, max_agents=8).map("a", "A {it}").map("b", "B {it}", backend=slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(20.5):
            await flow.run()
    assert 1000 < len(quick.requests) - len(slow.requests) < 1100


async def test_items_of_later_stages_get_scarce_slots_first() -> None:
    backend = echo(seconds=1.0)
    await Flow(its(6), backend=backend, max_inflight=2).map("a", "A {it}").map("b", "B {it}").run()
    order = [prompt[0] for prompt in prompts(backend)]
    assert order.index("B") < 6
    assert now() == 6


async def test_a_string_input_fills_the_field_of_the_first_task() -> None:
    outcome = await Flow(["x", "y"], backend=echo()).map("a", "A {word} {{not}}").map("b", "B {word}").run()
    assert [dict(item) for item in outcome.items] == [
        {"word": "x", "a": "A x {not}", "b": "B x"},
        {"word": "y", "a": "A y {not}", "b": "B y"},
    ]
    outcome = await Flow(["x"], backend=echo()).map("a", "A {word}, as {in this example}").run()
    assert field(outcome, "a") == ["A x, as {in this example}"]
    outcome = await Flow(["x"], backend=echo()).map("a", Fields("A")).map("b", "B {input}").run()
    assert field(outcome, "b") == ["B x"]


async def test_a_string_input_can_be_expanded_before_the_first_stage() -> None:
    flow = Flow(["a b", "c"], backend=echo()).expand("word", lambda item: item["input"].split())
    outcome = await flow.map("do", "Do {word}").run()
    assert field(outcome, "do") == ["Do a", "Do b", "Do c"]
    flow = Flow(["a b", "c"], backend=echo()).expand("word", lambda item: item["line"].split())
    outcome = await flow.map("do", "Do {word} of {line}").run()
    assert field(outcome, "do") == ["Do a of a b", "Do b of a b", "Do c of c"]


async def test_models_are_inputs_and_answers() -> None:
    backend = ScriptedBackend(saying({"Find": {"title": "T", "pages": 3}}))
    flow = Flow([Paper(title="one"), Paper(title="two")], backend=backend)
    outcome = (
        await flow.map("found", "Find {title}", output_schema=Paper).map("b", "Read {found.pages} of {pages}").run()
    )
    assert field(outcome, "found") == [Paper(title="T", pages=3)] * 2
    assert prompts(backend, beginning="Read") == ["Read 3 of 1"] * 2
    assert outcome.items[1]["title"] == "two"


async def test_unnamed_fields_are_all_fields_that_items_have_at_that_stage() -> None:
    backend = echo()
    await Flow(its(1), backend=backend).map("a", "A {it}").map("b", Fields("Judge")).run()
    [prompt] = prompts(backend, beginning="Judge")
    assert "a: A 0" in prompt
    assert "it: 0" in prompt


async def test_a_field_may_have_a_dot_or_a_blank_in_its_name() -> None:
    backend = echo()
    inputs = [{"a.b": 1, "First Name": "Ada"}]
    outcome = await Flow(inputs, backend=backend).map("x", "X {a.b}").map("y", "Y {a.b} {First Name} {x}").run()
    assert field(outcome, "y") == ["Y 1 Ada X 1"]


async def test_a_filter_drops_items() -> None:
    backend = echo()
    flow = Flow(its(6), backend=backend).map("a", "A {it}").filter(lambda item: int(item["it"]) % 2)
    outcome = await flow.map("b", "B {it}").reduce("all", "Join {n}").run()
    assert len(prompts(backend, beginning="B")) == 3
    [prompt] = prompts(backend, beginning="Join")
    assert leaves(prompt) == ["1", "3", "5"]
    assert field(outcome, "n") == [3]


async def test_a_filter_that_drops_all_leaves_nothing_to_reduce() -> None:
    backend = echo()
    flow = Flow(its(3), backend=backend).map("a", "A {it}").filter(lambda item: False)
    outcome = await flow.map("b", "B {it}").reduce("all", "Join").map("c", "C {all}").run()
    assert outcome.items == ()
    assert len(backend.requests) == 3
    assert [len(report.results) for report in outcome.stages.values()] == [3, 0, 0, 0]


async def test_a_function_that_raises_fails_only_its_item() -> None:
    backend = ScriptedBackend(joining)
    flow = Flow(its(3), backend=backend).map("a", "A {it}").filter(lambda item: 1 // (int(item["it"]) - 1))
    flow = flow.expand("part", lambda item: [item["missing"]] if item["it"] == "2" else ["x", "y"])
    outcome = await flow.map("b", "B {it} {part}").reduce("all", "Join {n}").run()
    [prompt] = prompts(backend, beginning="Join")
    shown = entries(prompt)
    assert [(entry["index"], entry["status"]) for entry in shown] == [
        ("0.0", "ok"),
        ("0.1", "ok"),
        ("1.0", "error"),
        ("2.0", "error"),
    ]
    assert "the filter after 'a' raised for item 1: ZeroDivisionError" in shown[2]["error"]["message"]
    assert "expand('part') raised for item 2: KeyError" in shown[3]["error"]["message"]
    assert field(outcome, "n") == [4]


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        ([], []),
        ((part for part in "ab"), ["a", "b"]),
        ((1, None), [1, None]),
        ({"c", "a", "b"}, ["a", "b", "c"]),
        (range(3), [0, 1, 2]),
        ([[]], [[]]),
    ],
    ids=["nothing", "generator", "tuple", "set", "range", "lists"],
)
async def test_an_item_can_be_expanded_into_any_iterable(made: Any, kept: list[Any]) -> None:
    backend = ScriptedBackend(joining)
    flow = Flow(its(1), backend=backend).map("a", "A {it}").expand("part", lambda item: made)
    outcome = await flow.map("b", "B {part} {index}").run()
    assert field(outcome, "part") == kept
    assert field(outcome, "index") == list(range(len(kept)))


@pytest.mark.parametrize("made", [None, "text", {"a": 1}, 5, Paper(title="x"), b"bytes"], ids=str)
async def test_expanding_an_item_into_a_non_iterable_is_an_error(made: Any) -> None:
    outcome = await Flow(its(1), backend=echo()).expand("part", lambda item: made).map("b", "B {part}").run()
    [item] = outcome.items
    assert item.error is not None
    assert item.error.kind is ErrorKind.CALLBACK
    assert f"must return a list, not {type(made).__name__}" in item.error.message


@pytest.mark.slow
async def test_an_item_may_be_expanded_into_ten_thousand() -> None:
    backend = echo()
    flow = (
        Flow(its(1), backend=backend, max_inflight=1000).map("a", "A {it}").expand("part", lambda item: range(10_000))
    )
    outcome = await flow.map("b", "B {part}").run()
    assert field(outcome, "b") == [f"B {part}" for part in range(10_000)]


async def test_expansions_of_expansions_keep_their_order() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(sum(asked(request).encode()) % 7)
        return joining(request)

    backend = ScriptedBackend(answer, context_tokens=1000)
    flow = Flow(its(4), backend=backend).map("a", "A {it}").expand("big", lambda item: range(int(item["it"])))
    flow = flow.map("b", "B {big}").expand("small", lambda item: range(3 - item["big"]))
    outcome = await flow.map("c", "C {small} of {big}").reduce("all", "Join {n}").run()
    places = [f"{it}.{big}.{small}" for it in range(4) for big in range(it) for small in range(3 - big)]
    assert outcome.items[0]["all"].split() == places


async def test_a_reduce_shows_the_answers_of_expanded_items() -> None:
    backend = ScriptedBackend(saying({"Plan": {"answer": ["x" * 300, "b"]}}))
    flow = Flow(["t"], backend=backend).map("plan", "Plan {topic}", output_schema=list[str])
    parts = flow.expand("part", lambda item: item["plan"])
    await parts.reduce("all", "Sum").run()
    await parts.map("do", "Do {part}").reduce("all", "Add").run()
    [sum_up] = prompts(backend, beginning="Sum")
    assert [entry["output"] for entry in entries(sum_up)] == ["x" * 300, "b"]
    assert entries(sum_up)[1]["input"] == {"topic": "t", "index": 1}
    [add] = prompts(backend, beginning="Add")
    assert [entry["output"] for entry in entries(add)] == ["ok", "ok"]
    assert entries(add)[1]["input"] == {"topic": "t", "part": "b", "index": 1}


async def test_a_flow_may_begin_with_any_step() -> None:
    backend = ScriptedBackend(joining)
    numbers = [{"it": number, "text": "t" * 300} for number in range(4)]
    outcome = await Flow(numbers, backend=backend).reduce("all", "Join {n}").run()
    assert (outcome.items[0]["all"], outcome.items[0]["n"]) == ("0 1 2 3", 4)
    assert entries(prompts(backend)[0])[3]["input"] == numbers[3]
    outcome = await Flow(iter(numbers), backend=backend).filter(lambda item: item["it"] > 1).reduce("all", "Join").run()
    assert field(outcome, "all") == ["2 3"]
    outcome = (
        await Flow(iter(numbers), backend=backend)
        .expand("part", lambda item: "ab"[: item["it"]].split())
        .reduce("all", "Join")
        .run()
    )
    assert field(outcome, "all") == ["1.0 2.0 3.0"]


async def test_one_reduce_may_follow_another() -> None:
    backend = ScriptedBackend(joining)
    inputs = [{"it": number, "kind": number % 3} for number in range(9)]
    flow = Flow(inputs, backend=backend).map("a", "A {it}").reduce("each", "Join {n} of {kind}", group_by="kind")
    flow = flow.map("b", "B {each} of kind {kind}, {group}, {n}").expand("word", lambda item: item["each"].split())
    outcome = await flow.reduce("last", "Join {n}").run()
    assert prompts(backend, beginning="B") == [f"B {n} {n + 3} {n + 6} of kind {n}, {n}, 3" for n in range(3)]
    assert outcome.items[0]["last"].split() == [f"{group}.{part}" for group in range(3) for part in range(3)]


async def test_the_methods_of_a_flow_return_a_new_flow() -> None:
    backend = echo()
    first = Flow(its(1), backend=backend).map("a", "A {it}")
    first.map("b", "B {a}")
    assert list((await first.run()).stages) == ["a"]
    assert isinstance((await first.filter(bool).run()).items[0], Item)
