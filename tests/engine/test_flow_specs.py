"""A flow that cannot work is refused before anything is sent, with words that say what to do."""

import functools
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.flow_harness import joining, prompts, saying

from batch_agent import BatchAgent, Flow, SpecError
from batch_agent.core.task_fields import Fields
from batch_agent.testing import ScriptedBackend, say

BACKEND = ScriptedBackend(lambda request: say("ok"))


class Review(BaseModel):
    verdict: str


class Open(BaseModel, extra="allow"):
    verdict: str


async def slow(item: Any) -> Any:
    return item


async def slow_list(item: Any) -> Any:
    yield item


FLOW = Flow([{"it": "x", "kind": "k"}], backend=BACKEND)
MAPPED = FLOW.map("a", "A {it}", output_schema=Review)


@pytest.mark.parametrize(
    ("flow", "match"),
    [
        (FLOW, "needs a stage that calls a model"),
        (FLOW.filter(bool), "needs a stage that calls a model"),
        (FLOW.map("a", "A {that}"), r"Stage 'a' uses the field \{that\}.*they have: it, kind.*\{\{that\}\}"),
        (MAPPED.map("b", "B {a} {c}"), r"Stage 'b' uses the field \{c\}.*they have: a, it, kind"),
        (MAPPED.map("b", "B {a.verdct}"), r"\{a.verdct\}, which the answer of 'a' does not have \(it has: verdict\)"),
        (FLOW.map("a", "A {it}").map("b", "B {a.verdict}"), r"answer of 'a' does not have \(it has: none\)"),
        (FLOW.map("a", "A {it} {a}"), r"uses the field \{a\}"),
        (MAPPED.map("b", Fields("B", "c")), r"uses the field \{c\}"),
        (MAPPED.reduce("r", "R {it}"), r"Stage 'r' uses the field \{it\}.*they have: n, results"),
        (MAPPED.reduce("r", "R").map("b", "B {it}"), r"Stage 'b' uses the field \{it\}.*they have: n, r"),
        (MAPPED.reduce("r", "R").map("b", "B {group}"), r"Stage 'b' uses the field \{group\}"),
        (MAPPED.reduce("r", "R", group_by="sort"), r"Stage 'r' uses the field \{sort\}"),
        (MAPPED.reduce("r", "R", group_by="a.sort"), r"the answer of 'a' does not have"),
        (FLOW.map("it", "A {it}"), "'it' is a field of the inputs, and step 'it'"),
        (FLOW.expand("kind", list).map("a", "A"), "'kind' is a field of the inputs, and step 'kind'"),
        (MAPPED.map("a", "A {it}"), "Two steps are called 'a': rename"),
        (MAPPED.map("A", "A {it}"), "Two steps are called 'a' and 'A'"),
        (MAPPED.expand("a", list), "Two steps are called"),
        (FLOW.map("n", "A {it}"), "'n' is a reserved name"),
        (FLOW.map("a b", "A {it}"), "letters, digits and _"),
        (FLOW.map("../up", "A {it}"), "letters, digits and _"),
        (FLOW.map("", "A {it}"), "letters, digits and _"),
        (FLOW.map(5, "A {it}"), "letters, digits and _"),  # type: ignore[arg-type]
        (FLOW.map("a", " "), "Stage 'a': task must be a non-empty string"),
        (FLOW.map("a", None), "Stage 'a': task must be a non-empty string"),  # type: ignore[arg-type]
        (FLOW.reduce("a", Fields("Sum")), "the task of a reduce must be a string"),  # type: ignore[arg-type]
        (FLOW.map("a", "A", on_failure="ignore"), "on_failure must be 'keep', 'skip' or 'stop'; got 'ignore'"),  # type: ignore[arg-type]
        (FLOW.map("a", "A", max_inflight=3), "Stage 'a': max_inflight= applies to all stages: pass it to Flow"),
        (FLOW.map("a", "A", checkpoint_dir="x"), "checkpoint_dir= applies to all stages"),
        (FLOW.map("a", "A", max_usd=3), "max_usd= applies to all stages"),
        (FLOW.map("a", "A", temprature=3), "Stage 'a': Unknown option 'temprature'. Did you mean 'temperature'"),  # type: ignore[call-arg]
        (FLOW.map("a", "A", max_tokens=0), "Stage 'a': max_tokens"),
        (FLOW.map("a", "A", model=3), "Stage 'a': model"),  # type: ignore[arg-type]
        (FLOW.filter("it").map("a", "A"), "filter.* must be a function"),  # type: ignore[call-overload]
        (FLOW.filter(slow).map("a", "A"), "filter.* must not be an async function"),
        (FLOW.expand("e", ["x"]).map("a", "A"), "expand.'e'.* must be a function"),  # type: ignore[arg-type]
        (FLOW.expand("e", slow_list).map("a", "A"), "expand.'e'.* must not be an async function"),
        (FLOW.reduce("r", "R", group_by=5), "group_by= must be a function that returns the key"),  # type: ignore[arg-type]
        (FLOW.reduce("r", "R", group_by=slow_list), "group_by= must not be an async function"),
        (FLOW.reduce("r", "R", group_by="results"), "'results' is a reserved name"),
        (FLOW.reduce("kind", "R", group_by="kind"), "'kind' is a reserved name"),
        (FLOW.reduce("r", "R", shown="it"), "shown= must be a function"),  # type: ignore[arg-type]
        (Flow([{"index": 1}], backend=BACKEND).expand("e", list).map("a", "A"), "'index' is a field of the inputs"),
        (Flow(["x"], backend=BACKEND).map("a", "A {b} {c}"), r"uses the field \{b\}.*they have: input"),
    ],
)
async def test_invalid_flows_are_rejected(flow: Flow, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        await flow.run()
    assert not BACKEND.requests


@pytest.mark.parametrize(
    "flow",
    [
        FLOW.map("a", "A {it}", output_schema=Open).map("b", "B {a.verdict} {a.whatever}"),
        FLOW.map("a", "A {it}", output_schema=dict[str, int]).map("b", "B {a.x}"),
        FLOW.map("a", "A {it}").reduce("kind", "R"),
        FLOW.filter(functools.partial(lambda item, least: True, least=1)).map("a", 'A {it} as {"json": 1} {x y}'),
        Flow([], backend=BACKEND).map("a", "A {whatever}").reduce("r", "R {n}"),
    ],
)
async def test_valid_flows_are_accepted(flow: Flow) -> None:
    await flow.run()
    BACKEND.requests.clear()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"task": "A {it}"}, "Each stage of a flow has its own task"),
        ({"tsk": 1}, "Unknown option 'tsk'"),
        ({"max_inflight": 0}, "max_inflight"),
    ],
)
def test_options_of_a_flow_are_checked_at_once(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        Flow([], **options)
    with pytest.raises(SpecError, match="inputs must be a list"):
        Flow("text")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"inputs": []}, "use plan_inputs= instead"),
        ({"plan_output_schema": None}, "plan_output_schema must be a list"),
        ({"plan_output_schema": str}, "plan_output_schema must be a list"),
        ({"plan_output_schema": Review}, "a list field 'items'"),
        ({"plan_options": {"on_failure": "keep"}}, "'on_failure' is not supported here"),
        ({"task": "Do {thing}"}, r"Stage 'map' uses the field \{thing\}.*they have: index, item, plan, topic"),
        ({"plan_inputs": {"item": 1, "topic": 2}}, "'item' is a field of the inputs"),
        ({"plan_inputs": {"about": 1}}, r"Stage 'plan' uses the field \{topic\}"),
    ],
)
async def test_invalid_plans_are_rejected(options: dict[str, Any], match: str) -> None:
    usual: dict[str, Any] = {
        "plan_prompt": "Plan {topic}",
        "plan_inputs": {"topic": "x"},
        "plan_output_schema": list[str],
        "task": "Do {item}",
        "reduce": "Sum",
        "backend": BACKEND,
    }
    with pytest.raises(SpecError, match=match):
        await BatchAgent.run_with_map_reduce(**{**usual, **options})
    assert not BACKEND.requests


@pytest.mark.parametrize(
    ("task", "meant"),
    [("{Review Tekst}", "Review Text"), ("{reviw}", "review"), ("{review.verdikt}", "review.verdict")],
)
async def test_a_misspelt_field_of_a_stage_is_refused_with_the_nearest_name(task: str, meant: str) -> None:
    class Verdict(BaseModel):
        verdict: str

    backend = ScriptedBackend(joining)
    flow = Flow([{"Review Text": "a"}], backend=backend).map("review", "{Review Text}", output_schema=Verdict)
    with pytest.raises(SpecError, match=rf"Stage 'next'.* Did you mean \{{{meant}\}}\?"):
        await flow.map("next", task).run()
    assert backend.requests == []


async def test_elements_of_answers_are_fields_of_later_stages() -> None:
    backend = ScriptedBackend(saying({"List": ["x", "y"], "Say": "said"}))
    flow = Flow([{"a": 1}], backend=backend).map("plan", "List {a}", output_schema=list[str])
    outcome = await flow.map("say", "Say {plan[1]}").run()
    assert outcome.items[0].ok
    assert prompts(backend, beginning="Say") == ["Say y"]
