"""A reduce for each group of items."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.engine_harness import asked
from tests.support.flow_harness import entries, joining, leaves, prompts, saying

from batch_agent import Flow
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, say


class Review(BaseModel):
    verdict: str


def its(*kinds: Any) -> list[dict[str, Any]]:
    return [{"it": number, "kind": kind} for number, kind in enumerate(kinds)]


async def grouped(backend: ScriptedBackend, inputs: Any, by: Any, task: str = "Join {n} of {group}") -> Any:
    return await Flow(inputs, backend=backend).map("do", "Do {it}").reduce("all", task, group_by=by).run()


async def test_groups_are_in_the_order_of_their_first_items() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(0 if asked(request).startswith("Join") else 10 - int(asked(request)[3:]))
        return joining(request)

    outcome = await grouped(ScriptedBackend(answer), its("b", "a", "b", "c", "a"), "kind", "Join {n} of {kind}")
    assert [(item["kind"], item["group"], item["n"], item["all"]) for item in outcome.items] == [
        ("b", "b", 2, "0 2"),
        ("a", "a", 2, "1 4"),
        ("c", "c", 1, "3"),
    ]
    assert [item.position for item in outcome.items] == [(0,), (1,), (2,)]


async def test_items_can_be_grouped_by_a_field_of_an_answer() -> None:
    backend = ScriptedBackend(saying({"Do [02]": {"verdict": "good"}, "Do": {"verdict": "bad"}}))
    flow = Flow(its(*"xyz"), backend=backend).map("review", "Do {it}", output_schema=Review)
    flow = flow.reduce("all", "Sum up {n} that are {review.verdict}", group_by="review.verdict")
    outcome = await flow.map("told", "Tell of {review.verdict}: {all}").run()
    assert [item["group"] for item in outcome.items] == ["good", "bad"]
    assert prompts(backend, beginning="Tell") == ["Tell of good: ok", "Tell of bad: ok"]


async def test_a_group_key_is_rendered_in_the_reduce_task() -> None:
    backend = ScriptedBackend(joining, context_tokens=2000)
    outcome = await grouped(backend, its(1, 20, 1), "kind", "Join {n:03d} of {kind:>4d}")
    begins = [prompt.split("\n")[0] for prompt in prompts(backend, beginning="Join")]
    assert begins == ["Join 002 of    1", "Join 001 of   20"]
    assert all(item.ok for item in outcome.items)


async def test_a_group_key_may_be_any_hashable_value() -> None:
    backend = ScriptedBackend(joining)
    outcome = await grouped(backend, its("a", "bb", "c"), lambda item: (len(item["kind"]), None))
    assert [(item["group"], item["all"]) for item in outcome.items] == [((1, None), "0 2"), ((2, None), "1")]
    assert prompts(backend, beginning="Join")[0].startswith("Join 2 of [1,null]")


@pytest.mark.parametrize(
    ("by", "says"),
    [
        (lambda item: [item["kind"]], "unhashable type: 'list'"),
        (lambda item: item["kind"].missing, "has no attribute 'missing'"),
        (lambda item: item["nothing"], "KeyError"),
    ],
)
async def test_items_without_a_valid_group_key_form_a_group_of_errors(by: Any, says: str) -> None:
    backend = ScriptedBackend(joining)
    outcome = await grouped(backend, its("a", "b"), lambda item: "fine" if item["kind"] == "a" else by(item))
    assert [item["group"] for item in outcome.items] == ["fine", None]
    [entry] = entries(prompts(backend, beginning="Join")[1])
    assert entry["status"] == "error"
    assert says in entry["error"]["message"]


async def test_a_failed_item_stays_in_its_group_if_the_key_is_known() -> None:
    backend = ScriptedBackend(lambda request: say("no") if asked(request) == "Do 1" else joining(request))
    flow = Flow(its("a", "a", "b"), backend=backend, max_retries=0)
    strict = flow.map("do", "Do {it}", output_schema=Review)
    await strict.reduce("all", "Join", group_by="kind").run()
    first, second = prompts(backend, beginning="Join")
    assert [(leaves(first), leaves(second))] == [(["0", "1"], ["2"])]


async def test_no_items_make_no_groups() -> None:
    backend = ScriptedBackend(joining)
    outcome = await grouped(backend, [], "kind")
    assert (outcome.items, backend.requests) == ((), [])
    nothing = Flow(its("a"), backend=backend).filter(lambda item: False)
    outcome = await nothing.reduce("all", "Join", group_by="kind").run()
    assert (outcome.items, backend.requests) == ((), [])


async def test_groups_of_expanded_items_do_not_depend_on_which_finishes_first() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(sum(asked(request).encode()) % 11)
        return joining(request)

    backend = ScriptedBackend(answer)
    flow = Flow(its(*"abcd"), backend=backend).map("do", "Do {it}").expand("part", lambda item: range(item["it"]))
    outcome = await flow.map("more", "More {it} {part}").reduce("all", "Join", group_by="part").run()
    assert [(item["part"], item["all"]) for item in outcome.items] == [
        (0, "1.0 2.0 3.0"),
        (1, "2.1 3.1"),
        (2, "3.2"),
    ]
