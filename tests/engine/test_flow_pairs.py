"""Dedupe and join: few pairs are asked about, and their number is known before the first one is."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked
from tests.support.event_list import EventList
from tests.support.flow_harness import joining, leaves, prompts

from batch_agent import ErrorKind, Flow, RunStopped, SpecError
from batch_agent.core.events import Notice, StageEvent
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say

FIRMS = [
    {"name": "Acme Corporation", "id": 0},
    {"name": "Banana Computers", "id": 1},
    {"name": "ACME corporation Ltd", "id": 2},
    {"name": "Acme Corporation Limited", "id": 3},
    {"name": "Banana Computers", "id": 4},
    {"name": "Cherry Motors", "id": 5},
]


def same_word(request: Request) -> Answer:
    """Entries are the same if their first words are."""
    left, right = (line[3:].split()[0].lower() for line in asked(request).splitlines() if line[:3] in ("A: ", "B: "))
    return say("true" if left == right else "false", Usage(10, 0, 1))


def firms(backend: ScriptedBackend, **options: Any) -> Flow:
    return Flow(FIRMS, backend=backend, **options)


async def test_items_that_are_the_same_become_one() -> None:
    backend, log = ScriptedBackend(same_word), EventList()
    outcome = await firms(backend).dedupe("same", on="name").run(events=log)
    assert [item["id"] for item in outcome.items] == [0, 1, 5]
    assert [[each["id"] for each in item["same"]] for item in outcome.items] == [[2, 3], [4], []]
    asked_for = len(backend.requests)
    assert 2 <= asked_for <= 3  # of 15 pairs; equal texts are not asked about
    notices = [
        each.event.text for each in log.events if isinstance(each, StageEvent) and isinstance(each.event, Notice)
    ]
    assert f"same: {asked_for} pairs to ask about, among 6 items." in notices


async def test_what_is_the_same_as_the_same_is_the_same() -> None:
    texts = ["a b", "a b c", "b c d", "c d"]
    backend = ScriptedBackend(lambda request: say("true"))
    outcome = await Flow(texts, backend=backend).dedupe("same", on="text", similarity=0.4).run()
    assert [item["text"] for item in outcome.items] == ["a b"]
    assert len(backend.requests) < 6  # the first and the last one are not similar


async def test_keys_choose_the_pairs() -> None:
    backend = ScriptedBackend(same_word)
    flow = firms(backend).dedupe("same", on=lambda item: item["name"], block=lambda item: item["name"][0].lower())
    outcome = await flow.run()
    assert [item["id"] for item in outcome.items] == [0, 1, 5]
    assert len(backend.requests) == 3


async def test_too_many_pairs_stop_the_flow_before_any_is_asked_about() -> None:
    backend = ScriptedBackend(same_word)
    with pytest.raises(
        RunStopped, match=r"more than max_pairs=2 pairs of 6 items\. It has asked about none"
    ) as stopped:
        await firms(backend).dedupe("same", on="name", block=lambda item: "all", max_pairs=2).run()
    assert stopped.value.kind is ErrorKind.BUDGET
    assert not backend.requests


async def test_a_failed_answer_merges_nothing_and_a_failed_item_passes() -> None:
    backend = ScriptedBackend(lambda request: say("nonsense"))
    flow = firms(backend, max_retries=0).dedupe("same", on=lambda item: item["name"] * (1 - 0 // item["id"]))
    outcome = await flow.run()
    assert [item.position for item in outcome.items] == [(0,), (1,), (2,), (3,), (5,)]
    assert [item.ok for item in outcome.items] == [False, True, True, True, True]
    assert outcome.stages["same"].failed == len(backend.requests) > 0


async def test_a_resumed_dedupe_asks_nothing_again(tmp_path: Path) -> None:
    backend = ScriptedBackend(same_word)

    async def run(inputs: Any) -> Any:
        return await Flow(inputs, backend=backend, checkpoint_dir=tmp_path).dedupe("same", on="name").run()

    first, calls = await run(FIRMS), len(backend.requests)
    again = await run(FIRMS)
    assert len(backend.requests) == calls
    assert [item.fields for item in again.items] == [item.fields for item in first.items]
    await run([*FIRMS, {"name": "Cherry Motors Inc", "id": 6}])
    assert len(backend.requests) == calls + 1


ROWS = [{"firm": "acme corporation", "city": "Rome"}, {"firm": "Cherry Motors Ltd", "city": "Bonn"},
        {"firm": "Acme Corporation", "city": "Oslo"}]  # fmt: skip


async def test_items_are_joined_with_the_rows_that_match() -> None:
    backend = ScriptedBackend(same_word)
    outcome = await firms(backend).join("at", ROWS, on="name", others_on="firm").run()
    found = [(item["id"], item["at"]["city"]) for item in outcome.items]
    assert found == [(0, "Rome"), (0, "Oslo"), (2, "Rome"), (2, "Oslo"), (3, "Rome"), (3, "Oslo"), (5, "Bonn")]
    assert [item.position for item in outcome.items][:2] == [(0, 0), (0, 1)]
    assert len(backend.requests) < 18


async def test_unmatched_items_are_kept_if_wanted_and_later_stages_see_the_row() -> None:
    def answer(request: Request) -> Answer:
        return same_word(request) if asked(request).startswith("Do these") else joining(request)

    backend = ScriptedBackend(answer)
    flow = firms(backend).filter(lambda item: item["id"] in (1, 5))
    flow = flow.join("at", ROWS, on="name", others_on="firm", keep_unmatched=True).map("b", "B {name}: {at}")
    outcome = await flow.reduce("all", "Join {n}").run()
    assert prompts(backend, beginning="B Banana") == ["B Banana Computers: None"]
    [prompt] = prompts(backend, beginning="Join")
    assert leaves(prompt) == ["1.0", "5.0"]
    assert outcome.items[0]["n"] == 2


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (lambda flow: flow.dedupe("same", on="nme"), "nme"),
        (lambda flow: flow.dedupe("same", on=3), "must be a function"),
        (lambda flow: flow.dedupe("same", on="name", block=3), "must be a function"),
        (lambda flow: flow.dedupe("same", on="name", similarity=0), "similarity must be"),
        (lambda flow: flow.dedupe("same", on="name", max_pairs=0), "max_pairs"),
        (lambda flow: flow.dedupe("same", "Same? {name}", on="name"), "do not have at this step"),
        (lambda flow: flow.dedupe("same", on="name", output_schema=int), "yes or no"),
        (lambda flow: flow.join("at", "rows", on="name"), "must be a list"),
    ],
)
async def test_mistakes_are_found_before_anything_is_sent(flow: Any, message: str) -> None:
    backend = ScriptedBackend(same_word)
    with pytest.raises(SpecError, match=message):
        await flow(firms(backend)).run()
    assert not backend.requests


async def test_a_row_that_cannot_be_read_is_named() -> None:
    with pytest.raises(RunStopped, match="row 1 cannot be read"):
        await firms(ScriptedBackend(same_word)).join("at", [{"firm": "x"}, {}], on="name", others_on="firm").run()
