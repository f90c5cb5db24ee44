"""What an agent does, as those who watch it are told."""

from collections.abc import Sequence
from dataclasses import replace

from tests.support.engine_harness import run, waiting_tool
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    LoadSampled,
    RequestRetried,
    TurnEnded,
    TurnStarted,
)
from batch_agent.core.requests import Reply, Usage
from batch_agent.testing import ScriptedBackend, by_turn, call, run_virtual, say

LIFE = AgentStarted | TurnStarted | TurnEnded | CallsStarted | CallsEnded | RequestRetried | AgentFinished


def life(events: Sequence[Event], key: str) -> list[str]:
    """The kinds of an agent's events, in order, with the number of the turn."""
    return [
        f"{type(event).__name__} {getattr(event, 'turn', '')}".strip()
        for event in events
        if isinstance(event, LIFE) and (event.result.key if isinstance(event, AgentFinished) else event.key) == key
    ]


def test_each_turn_and_each_tool_wait_has_a_start_and_an_end_event() -> None:
    log = EventList()
    usage = Usage(100, 60, 7)
    backend = ScriptedBackend(by_turn(replace(call("wait"), usage=usage), say("done", usage)), seconds=2.0)
    [result] = run_virtual(run(backend, ["a"], tools=[waiting_tool(5.0)], events=log))
    assert life(log.events, result.key) == [
        "AgentStarted",
        "TurnStarted 1",
        "TurnEnded 1",
        "CallsStarted 1",
        "CallsEnded 1",
        "TurnStarted 2",
        "TurnEnded 2",
        "AgentFinished",
    ]
    turns = [event for event in log.events if isinstance(event, TurnEnded)]
    [waited] = [event for event in log.events if isinstance(event, CallsEnded)]
    assert [turn.seconds for turn in turns] == [2.0, 2.0]
    assert sum((turn.usage for turn in turns[1:]), turns[0].usage) == result.usage
    assert (waited.seconds, waited.calls) == (5.0, result.tool_calls)


def test_a_retried_turn_has_a_start_event_per_attempt_and_one_end_event() -> None:
    answers: list[Reply | BackendError] = [BackendError(ErrorKind.SERVER, "busy"), say("done")]
    log = EventList()
    [result] = run_virtual(run(ScriptedBackend(lambda _: answers.pop(0)), ["a"], events=log))
    assert life(log.events, result.key) == [
        "AgentStarted", "TurnStarted 1", "RequestRetried", "TurnStarted 1", "TurnEnded 1", "AgentFinished",
    ]  # fmt: skip
    [ended] = [event for event in log.events if isinstance(event, TurnEnded)]
    assert ended.attempts == 2


def test_slot_usage_is_sampled_during_the_run() -> None:
    log = EventList()
    backend = ScriptedBackend(by_turn(say("done")), seconds=10.0)
    run_virtual(run(backend, [str(number) for number in range(6)], max_inflight=2, events=log))
    samples = [event for event in log.events if isinstance(event, LoadSampled)]
    assert {(sample.inflight, sample.limit) for sample in samples[:-1]} == {(2, 2)}
    assert 28 <= len(samples) <= 34, "about one a second"
