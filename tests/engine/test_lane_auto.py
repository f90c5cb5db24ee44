"""The lane auto: each turn has the cheapest lane that the deadline leaves time for; the last agents are promoted."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.batch_provider import BatchProvider, Faults
from tests.support.engine_harness import asked, now, run
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Tool
from batch_agent.core.requests import Lane, Reply, Request, Usage
from batch_agent.testing import ScriptedBackend, call, say

SECONDS: dict[Lane, float] = {"standard": 2.0, "flex": 20.0, "batch": 2 * 3600.0}
ALL: tuple[Lane, ...] = ("standard", "flex", "batch")
HOUR = 3600.0


@Tool.define
async def look() -> str:
    return "seen"


def provider(
    reply: Callable[[Request], Reply], lanes: tuple[Lane, ...] = ALL, seconds: dict[Lane, float] = SECONDS
) -> ScriptedBackend:
    """A provider whose lanes take their time."""

    async def script(request: Request) -> Reply:
        await asyncio.sleep(seconds[request.lane])
        answer = reply(request)
        return Reply(answer.text, answer.finish, Usage(10_000).in_lane(request.lane), answer.calls)

    return ScriptedBackend(script, lanes=lanes)


def turns(count: int) -> Callable[[Request], Reply]:
    return lambda request: call("look") if request.turn < count - 1 else say("done")


def lanes_of(backend: ScriptedBackend) -> Counter[Lane]:
    return Counter(request.lane for request in backend.requests)


def inputs(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def test_without_a_deadline_everything_goes_through_batch() -> None:
    backend = provider(turns(3))
    results = await run(backend, inputs(100), lane="auto", tools=[look])
    assert all(result.ok for result in results)
    assert lanes_of(backend) == {"batch": 300}
    assert now() == pytest.approx(6 * HOUR)
    assert backend.most_in_flight == 100, "requests in lane batch take no slots"


async def test_with_a_deadline_far_away_too() -> None:
    backend = provider(turns(3))
    results = await run(backend, inputs(100), lane="auto", tools=[look], deadline=24 * HOUR)
    assert all(result.ok for result in results)
    assert lanes_of(backend) == {"batch": 300}


async def test_a_provider_without_batch_uses_flex_and_one_without_flex_uses_batch() -> None:
    cases: list[tuple[tuple[Lane, ...], Lane]] = [
        (("standard", "flex"), "flex"),
        (("standard", "batch"), "batch"),
        (("standard",), "standard"),
    ]
    for lanes, expected in cases:
        backend = provider(turns(1), lanes)
        results = await run(backend, inputs(10), lane="auto")
        assert all(result.ok for result in results)
        assert lanes_of(backend) == {expected: 10}


async def test_turns_move_to_faster_lanes_as_the_deadline_comes_closer() -> None:
    backend = provider(turns(5))
    results = await run(backend, inputs(50), lane="auto", tools=[look], deadline=3 * HOUR)
    assert all(result.ok for result in results)
    assert now() < 3 * HOUR
    used = lanes_of(backend)
    assert used["batch"] >= 50
    assert used["flex"] + used["standard"] >= 100
    first_other = next(index for index, request in enumerate(backend.requests) if request.lane != "batch")
    assert not any(request.lane == "batch" for request in backend.requests[first_other + 50 :])


@pytest.mark.parametrize("deadline", [60.0, 600.0, HOUR, 1.5 * HOUR, 2.5 * HOUR, 5 * HOUR, 12 * HOUR])
async def test_every_agent_answers_before_the_deadline(deadline: float) -> None:
    backend = provider(turns(4))
    results = await run(backend, inputs(40), lane="auto", tools=[look], deadline=deadline)
    assert [result.error for result in results] == [None] * 40
    assert now() < deadline


async def test_a_wave_that_does_not_end_is_left_in_time() -> None:
    backend = provider(turns(1), seconds={**SECONDS, "batch": 1e9})
    results = await run(backend, inputs(40), lane="auto", deadline=5 * HOUR)
    assert all(result.ok for result in results)
    assert now() < 5 * HOUR
    assert lanes_of(backend)["batch"] == 40


def stragglers(request: Request) -> Reply:
    """One agent in fifty takes eight turns; the others take one."""
    is_straggler = int(asked(request)) % 50 == 7
    return call("look") if is_straggler and request.turn < 7 else say("done")


@pytest.mark.parametrize(("lanes", "faster"), [(ALL, "flex"), (("standard", "batch"), "standard")])
async def test_the_last_stragglers_are_promoted(lanes: tuple[Lane, ...], faster: Lane) -> None:
    backend = provider(stragglers, lanes)
    results = await run(backend, inputs(200), lane="auto", tools=[look])
    assert all(result.ok for result in results)
    assert lanes_of(backend) == {"batch": 204, faster: 24}, "when a wave ends, it is not known yet who is left"
    assert now() < 5 * HOUR, "not eight waves"


@pytest.mark.parametrize(("dollars", "faster"), [(100.0, "standard"), (53.0, "batch")])
async def test_stragglers_are_promoted_only_if_the_budget_has_room_for_the_full_price(
    dollars: float, faster: Lane
) -> None:
    """A turn costs a dollar, and half of one in lane batch: 100 agents have 104 turns."""

    def reply(request: Request) -> Reply:
        return call("look") if asked(request) == "7" and request.turn < 4 else say("done")

    backend = provider(reply, ("standard", "batch"))
    options: dict[str, Any] = {"prices": {"scripted": (100, 100, 100)}, "max_tokens": 1, "tools": [look]}
    results = await run(backend, inputs(100), lane="auto", max_usd=dollars, **options)
    assert [result.error for result in results] == [None] * 100
    expected = Counter[str]({"batch": 101})
    expected[faster] += 3
    assert lanes_of(backend) == expected


async def test_requests_in_batches_fail_and_are_retried_as_others_are() -> None:
    seen: Counter[str] = Counter()

    async def script(request: Request) -> Reply:
        await asyncio.sleep(SECONDS[request.lane])
        seen[asked(request)] += 1
        if seen[asked(request)] == 1:
            raise BackendError(ErrorKind.SERVER, "The line has expired.")
        return say("done")

    backend, log = ScriptedBackend(script, lanes=ALL), EventList()
    results = await run(backend, inputs(30), lane="auto", events=log)
    assert all(result.ok for result in results)
    assert lanes_of(backend) == {"batch": 60}


async def test_leaving_a_run_in_lane_auto_leaves_nothing_behind() -> None:
    async def never(request: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    backend = ScriptedBackend(never, lanes=ALL)
    waiting: Awaitable[Any] = run(backend, inputs(30), lane="auto")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(HOUR):
            await waiting
    assert backend.in_flight == 0


async def run_in_waves(backend: BatchProvider, folder: Path, numbers: list[int], **options: Any) -> list[AgentResult]:
    @Tool.define
    async def look(key: str) -> str:
        """Looks up a key."""
        await asyncio.sleep(1 + len(key) % 3)
        return f"value of {key}"

    results: list[AgentResult] = await BatchAgent.run(
        task="Do number {n}",
        inputs=[{"n": number} for number in numbers],
        tools=[look],
        backend=backend,
        model="m",
        checkpoint_dir=folder,
        max_turns=8,
        max_retries=30,
        **options,
    )
    return results


@pytest.mark.slow
@pytest.mark.parametrize("faults", [Faults(), Faults(line=0.2, call=0.1, cut=0.02)], ids=["sound", "faults"])
@pytest.mark.parametrize("hours", [1.5, 8, *(pytest.param(hours, marks=pytest.mark.slow) for hours in (0.5, 3, 24))])
async def test_waves_and_other_lanes_together_end_before_the_deadline(
    hours: float, faults: Faults, tmp_path: Path
) -> None:
    expected = await run_in_waves(BatchProvider(), tmp_path / "standard", list(range(30)))
    began = now()
    backend = BatchProvider(seed=round(hours), faults=faults, seconds=2 * HOUR)
    results = await run_in_waves(backend, tmp_path / "auto", list(range(30)), lane="auto", deadline=hours * HOUR)
    assert [result.error for result in results] == [None] * 30
    assert [result.output for result in results] == [result.output for result in expected]
    assert now() - began < hours * HOUR
    if hours <= 0.5:
        assert not backend.batches
    if hours >= 24:
        assert backend.live.total() <= 60, "most of 105 turns were in batches"


async def test_the_last_two_of_a_hundred_agents_are_not_submitted_as_a_wave(tmp_path: Path) -> None:
    backend = BatchProvider(seconds=2 * HOUR)
    numbers = [6 * number for number in range(98)]  # one turn each
    results = await run_in_waves(backend, tmp_path, [*numbers, 5, 11], lane="auto")  # six turns each
    assert [result.error for result in results] == [None] * 100
    assert [result.turns for result in results[-2:]] == [6, 6]
    assert len(backend.batches) == 1
    assert backend.live.total() == 10


@pytest.mark.slow
async def test_a_run_in_lane_auto_is_interrupted_and_resumed_without_paying_twice(tmp_path: Path) -> None:
    backend = BatchProvider(seconds=2 * HOUR)
    numbers = [6 * number + 2 for number in range(50)]  # three turns each
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1500):
                await run_in_waves(backend, tmp_path, numbers, lane="auto")
    results = await run_in_waves(backend, tmp_path, numbers, lane="auto")
    assert [result.error for result in results] == [None] * 50
    assert set(backend.billed.values()) == {1}
    assert backend.billed.total() + backend.live.total() == 150


async def test_a_run_that_is_resumed_near_its_deadline_does_not_wait_for_what_was_submitted(tmp_path: Path) -> None:
    backend = BatchProvider(seconds=20 * HOUR)
    numbers = [6 * number for number in range(20)]  # one turn each
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await run_in_waves(backend, tmp_path, numbers, lane="auto")
    assert len(backend.batches) == 1
    began = now()
    results = await run_in_waves(backend, tmp_path, numbers, lane="auto", deadline=25)
    assert [result.error for result in results] == [None] * 20
    assert now() - began < 25
