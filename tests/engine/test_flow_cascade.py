"""Stages that ask a strong model only where a cheaper one is not enough: escalations and cascades."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.engine_harness import asked
from tests.support.event_list import EventList
from tests.support.flow_harness import entries, prompts

from batch_agent import Cascade, ErrorKind, Fields, Flow, SpecError
from batch_agent.core.events import Notice, StageEvent
from batch_agent.core.requests import Request, Usage
from batch_agent.flows.summary import flow_summary_lines
from batch_agent.testing import Answer, ScriptedBackend, say


class Verdict(BaseModel):
    label: str
    confidence: float


def cheap(request: Request) -> Answer:
    """Is sure of even numbers, and fails at 5."""
    number = int(asked(request).split()[1])
    if number == 5:
        return say("nonsense", Usage(10, 0, 1))
    return say(Verdict(label="cheap", confidence=1.0 - number % 2 / 2).model_dump_json(), Usage(10, 0, 1))


def strong(request: Request) -> Answer:
    return say(Verdict(label="strong", confidence=1.0).model_dump_json(), Usage(10, 0, 1))


def is_unsure(item: Any) -> bool:
    return bool(item["review"].confidence < 0.8)


def review(inputs: Any, low: ScriptedBackend, **options: Any) -> Flow:
    return Flow(inputs, backend=low, max_retries=0, **options).map("review", "Review {it}", output_schema=Verdict)


ITS = [{"it": str(number)} for number in range(8)]


async def test_unsure_and_failed_items_are_run_again_by_a_stronger_model() -> None:
    low, high = ScriptedBackend(cheap), ScriptedBackend(strong)
    outcome = await review(ITS, low).escalate(when=is_unsure, backend=high, model="large").run()
    assert [item["review"].label for item in outcome.items] == ["cheap", "strong"] * 4
    assert [item["review_escalated"] for item in outcome.items] == [False, True] * 4
    assert sorted(prompts(high)) == ["Review 1", "Review 3", "Review 5", "Review 7"]
    assert {request.model for request in high.requests} == {"large"}
    assert all(item.ok for item in outcome.items)
    stage = outcome.stages["review_escalated"]
    assert (stage.model, len(stage.results), stage.usage) == ("large", 4, Usage(40, 0, 4))


async def test_failed_items_stay_failed_if_they_are_not_to_be_run_again() -> None:
    low, high = ScriptedBackend(cheap), ScriptedBackend(strong)
    outcome = await review(ITS, low).escalate(when=is_unsure, failed=False, backend=high).run()
    assert [item.position for item in outcome.items if not item.ok] == [(5,)]
    assert len(high.requests) == 3


async def test_a_second_escalation_sees_the_answer_of_the_first() -> None:
    low, high = ScriptedBackend(cheap), ScriptedBackend(strong)
    flow = review(ITS, low).escalate(when=is_unsure, backend=low, model="medium")
    outcome = await flow.escalate(when=is_unsure, backend=high).run()
    assert [item.get("review_escalated2") for item in outcome.items] == [False, True] * 4
    assert list(outcome.stages) == ["review", "review_escalated", "review_escalated2"]


async def test_the_stronger_model_gets_the_same_prompt_and_a_reduce_sees_its_answer() -> None:
    low, high = ScriptedBackend(strong), ScriptedBackend(lambda request: say("0"))
    flow = Flow(ITS, backend=low).map("review", Fields("Review"), output_schema=Verdict)
    flow = flow.escalate(when=lambda item: item["it"] == "1", backend=high, output_schema=int)
    await flow.reduce("all", "Join", backend=high).run()
    [first] = [prompt for prompt in prompts(high) if prompt.startswith("Review")]
    assert first in prompts(low)
    [joined] = prompts(high, beginning="Join")
    assert entries(joined)[1] == {"status": "ok", "index": 1, "input": {"it": "1"}, "output": 0}


async def test_a_condition_that_raises_and_an_escalation_that_fails_concern_only_their_item() -> None:
    low, high = ScriptedBackend(strong), ScriptedBackend(lambda request: say("nonsense"))
    flow = review(ITS[:3], low).escalate(when=lambda item: 1 // int(item["it"]) == 1, backend=high)
    outcome = await flow.run()
    kinds = [item.error.kind if item.error else None for item in outcome.items]
    assert kinds == [ErrorKind.CALLBACK, ErrorKind.INVALID_OUTPUT, None]


async def test_a_resumed_escalation_repeats_nothing(tmp_path: Path) -> None:
    low, high = ScriptedBackend(cheap), ScriptedBackend(strong)

    async def run(inputs: Any) -> Any:
        flow = review(inputs, low, checkpoint_dir=tmp_path, retry_failed=False)
        return await flow.escalate(when=is_unsure, backend=high).run()

    first, paid = await run(ITS), (len(low.requests), len(high.requests))
    again = await run(ITS)
    assert (len(low.requests), len(high.requests)) == paid == (8, 4)
    assert [item.fields for item in again.items] == [item.fields for item in first.items]
    await run([*ITS, {"it": "9"}])
    assert (len(low.requests), len(high.requests)) == (9, 5)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (lambda flow: flow.escalate(when=is_unsure), "it must follow .map"),
        (lambda flow: flow.map("a", "A {it}").expand("b", list).escalate(when=is_unsure), "it must follow .map"),
        (lambda flow: flow.map("a", "A {it}").escalate(when="unsure"), "must be a function"),
        (lambda flow: flow.filter("a").map("b", "B {it}"), "must be a function .* or a name and a task"),
        (lambda flow: flow.filter(bool, cascade=Cascade(proxy="small")), "needs a name and a task"),
        (lambda flow: flow.filter("a", "A {it}", output_schema=int), "the answer is yes or no"),
        (lambda flow: flow.filter("a", "A {it}", cascade=0.95), "must be a Cascade"),
        (lambda flow: flow.filter("a", "A {it}", cascade=Cascade(proxy="")), "proxy must be a function"),
        (lambda flow: flow.filter("a", "A {it}", cascade=Cascade(proxy=len, target=1)), "target must be between"),
        (lambda flow: flow.filter("a", "A {it}", cascade=Cascade(proxy=len, delta=0)), "delta must be between"),
        (lambda flow: flow.filter("a", "A {it}", cascade=Cascade(proxy=len, labels=2)), "labels must be at least"),
        (lambda flow: flow.filter("a", "A {no}", cascade=Cascade(proxy=len)), "do not have at this step"),
    ],
)
async def test_mistakes_are_found_before_anything_is_sent(flow: Any, message: str) -> None:
    backend = ScriptedBackend(strong)
    with pytest.raises(SpecError, match=message):
        await flow(Flow(ITS, backend=backend)).run()
    assert not backend.requests


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = Random(seed)
    truth = [rng.random() < 0.5 for _ in range(count)]
    return [
        {"id": str(number), "yes": label, "score": rng.betavariate(12, 2) if label else rng.betavariate(2, 12)}
        for number, label in enumerate(truth)
    ]


def oracle(request: Request) -> Answer:
    return say("true" if "True" in asked(request) else "false", Usage(10, 0, 1))


def score(item: Any) -> float:
    return float(item["score"])


async def test_a_filter_by_a_model_keeps_what_it_answers_with_yes() -> None:
    backend = ScriptedBackend(oracle)
    inputs = rows(10)
    outcome = await Flow(inputs, backend=backend).filter("fits", "Fits {id}? {yes}").run()
    assert [item["id"] for item in outcome.items] == [row["id"] for row in inputs if row["yes"]]
    assert outcome.stages["fits"].cascade is None


async def test_a_cascade_asks_the_strong_model_only_where_the_score_is_uncertain() -> None:
    backend, log, inputs = ScriptedBackend(oracle), EventList(), rows(600)
    flow = Flow(inputs, backend=backend).filter("fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score, labels=150))
    outcome = await flow.map("next", "Next {id}").run(events=log)
    report = outcome.stages["fits"].cascade
    assert report is not None
    asked_for = len(prompts(backend, beginning="Fits"))
    assert (report.rows, report.asked, report.reason) == (600, asked_for, "")
    assert report.asked + report.kept + report.rejected == 600
    assert asked_for < 300
    found, wanted = {item["id"] for item in outcome.items}, {row["id"] for row in inputs if row["yes"]}
    assert len(found & wanted) >= 0.95 * max(len(found), len(wanted))
    assert all(item["fits"] is True for item in outcome.items)
    assert [item.position for item in outcome.items] == sorted(item.position for item in outcome.items)
    notices = [
        event.event.text for event in log.events if isinstance(event, StageEvent) and isinstance(event.event, Notice)
    ]
    assert f"fits: {report}." in notices
    assert any(str(report) in line for line in flow_summary_lines(outcome, 1.0))


async def test_with_a_useless_score_the_strong_model_decides_all_items_and_the_report_says_so() -> None:
    backend, inputs = ScriptedBackend(oracle), rows(300)
    for row in inputs:
        row["score"] = 0.5
    flow = Flow(inputs, backend=backend).filter("fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score, labels=50))
    outcome = await flow.run()
    assert len(backend.requests) == 300
    assert [item["id"] for item in outcome.items] == [row["id"] for row in inputs if row["yes"]]
    assert str(outcome.stages["fits"].cascade) == (
        "the strong model decided all 300 items: the proxy does not tell the items apart well enough"
    )


async def test_few_items_are_all_decided_by_the_strong_model() -> None:
    backend = ScriptedBackend(oracle)
    flow = Flow(rows(20), backend=backend).filter("fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score))
    outcome = await flow.run()
    assert len(backend.requests) == 20
    report = outcome.stages["fits"].cascade
    assert report is not None
    assert report.reason == "fewer items than labels"


async def test_a_cheap_model_is_asked_for_a_probability() -> None:
    def answer(request: Request) -> Answer:
        if request.model == "small":
            if "Fits 7?" in asked(request):
                return say("nonsense")
            return say(f'{{"probability": {0.9 if "True" in asked(request) else 0.1}}}')
        return oracle(request)

    backend, inputs = ScriptedBackend(answer), rows(400)
    flow = Flow(inputs, backend=backend, max_retries=0).filter(
        "fits", "Fits {id}? {yes}", cascade=Cascade(proxy="small", labels=150), model="large"
    )
    outcome = await flow.run()
    assert [item["id"] for item in outcome.items] == [row["id"] for row in inputs if row["yes"]]
    assert list(outcome.stages) == ["fits_proxy", "fits"]
    large = [request for request in backend.requests if request.model == "large"]
    assert len(large) < 200
    assert any("Fits 7?" in asked(request) for request in large)  # its proxy failed


async def test_failed_labels_are_failures_of_their_items_and_count_as_errors_of_the_score() -> None:
    def answer(request: Request) -> Answer:
        return oracle(request) if int(asked(request).split()[1][:-1]) % 3 else say("nonsense")

    backend, inputs = ScriptedBackend(answer), rows(300)
    flow = Flow(inputs, backend=backend, max_retries=0).filter(
        "fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score, labels=60)
    )
    outcome = await flow.run()
    assert {item.error.kind for item in outcome.items if item.error} == {ErrorKind.INVALID_OUTPUT}
    assert len(backend.requests) == 300


async def test_a_resumed_cascade_repeats_nothing(tmp_path: Path) -> None:
    backend, calls = ScriptedBackend(oracle, seconds=0.1), 0
    inputs = rows(300)

    async def run() -> Any:
        flow = Flow(inputs, backend=backend, checkpoint_dir=tmp_path)
        return await flow.filter("fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score, labels=100)).run()

    first, calls = await run(), len(backend.requests)
    again = await run()
    assert len(backend.requests) == calls < 300
    assert [item.fields for item in again.items] == [item.fields for item in first.items]
    assert again.stages["fits"].cascade == first.stages["fits"].cascade


async def test_a_cascade_that_was_interrupted_continues_with_the_same_labels(tmp_path: Path) -> None:
    inputs = rows(300)

    def flow(backend: ScriptedBackend, folder: Path, **options: Any) -> Flow:
        begun = Flow(inputs, backend=backend, checkpoint_dir=folder, max_tokens=10, **options)
        return begun.filter("fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score, labels=100))

    whole = ScriptedBackend(oracle)
    first = await flow(whole, tmp_path / "whole").run()
    parts = ScriptedBackend(oracle)
    stopped = await flow(parts, tmp_path / "parts", max_total_tokens=600).run()
    assert any(item.error for item in stopped.items)
    second = await flow(parts, tmp_path / "parts").run()
    assert sorted(prompts(parts)) == sorted(prompts(whole))
    assert second.stages["fits"].cascade == first.stages["fits"].cascade


async def test_a_score_that_raises_fails_only_its_item() -> None:
    backend, inputs = ScriptedBackend(oracle), rows(30)
    inputs[3]["score"], inputs[4]["score"] = "high", float("nan")
    flow = Flow(inputs, backend=backend).filter("fits", "Fits {id}? {yes}", cascade=Cascade(proxy=score))
    outcome = await flow.run()
    assert [item.position for item in outcome.callback_failures] == [(3,), (4,)]
    assert len(backend.requests) == 28
