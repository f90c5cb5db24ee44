"""Flows of many items take work in proportion to them, and tell what happens in order."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from tests.support.event_list import EventList
from tests.support.flow_harness import joining

from batch_agent import Flow
from batch_agent.core.events import AgentFinished, FlowStarted, ItemQueued, RunStarted, StageEvent
from batch_agent.testing import ScriptedBackend


def flow(count: int, **options: Any) -> Flow:
    inputs = ({"it": number} for number in range(count))
    backend = ScriptedBackend(joining, seconds=0.1, context_tokens=8000)
    started = Flow(inputs, backend=backend, max_inflight=64, **options).map("a", "A {it}")
    return started.expand("part", lambda item: ["x"]).map("b", "B {it}").reduce("all", "Join {n}")


async def calls_of(count: int) -> int:
    """How many functions of flows and of merging are called."""
    calls = 0

    def counting(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and ("/flows/" in frame.f_code.co_filename or "merging" in frame.f_code.co_filename)

    sys.setprofile(counting)
    try:
        outcome = await flow(count).run()
    finally:
        sys.setprofile(None)
    assert outcome.items[0]["n"] == count
    assert len(outcome.items[0]["all"].split()) == count
    return calls


@pytest.mark.slow
async def test_the_work_of_a_flow_grows_linearly_with_its_items() -> None:
    few, many = await calls_of(100), await calls_of(400)
    assert many < 5.5 * few


@pytest.mark.slow
async def test_two_thousand_items_pass_three_stages() -> None:
    outcome = await flow(2000).run()
    assert [len(outcome.stages[name].results) for name in ("a", "b")] == [2000, 2000]
    assert len(outcome.items[0]["all"].split()) == 2000


async def test_events_of_a_flow_name_their_stage() -> None:
    log = EventList()
    await flow(10).run(events=log)
    assert log.events[0] == FlowStarted(("a", "b", "all"))
    of_stages = [event for event in log.events if isinstance(event, StageEvent)]
    assert Counter(event.stage for event in of_stages if isinstance(event.event, RunStarted)) == Counter(
        ["a", "b", "all"]
    )
    finished = Counter(event.stage for event in of_stages if isinstance(event.event, AgentFinished))
    queued = Counter(event.stage for event in of_stages if isinstance(event.event, ItemQueued))
    assert finished == {"a": 10, "b": 10, "all": 1}
    assert queued == {"b": 10, "all": 1}
    assert not any(isinstance(event, AgentFinished) for event in log.events)
