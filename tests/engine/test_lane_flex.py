"""The lane flex: refusals for capacity are waited out without lowering a limit, and turns fall back to standard."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, run, stream
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind, Flow, Tool
from batch_agent.core.events import LimitChanged, RequestRetried, SchedulingReported
from batch_agent.core.requests import Lane, Reply, Request, Usage
from batch_agent.core.run_reports import LaneUse
from batch_agent.testing import Answer, Script, ScriptedBackend, call, say

TWENTY = [str(number) for number in range(20)]


def flex(script: Script, **options: Any) -> ScriptedBackend:
    return ScriptedBackend(script, seconds=1.0, lanes=("standard", "flex"), **options)


def busy() -> BackendError:
    return BackendError(ErrorKind.CAPACITY, "HTTP 429: Resource Unavailable", status=429)


def lanes_of(backend: ScriptedBackend) -> Counter[str]:
    return Counter(request.lane for request in backend.requests)


def lane_use(log: EventList) -> LaneUse:
    [report] = [event.scheduling.lanes for event in log.events if isinstance(event, SchedulingReported)]
    assert report is not None
    return report


async def test_every_request_of_a_run_takes_the_lane() -> None:
    @Tool.define
    async def look() -> str:
        return "seen"

    backend = flex(lambda request: call("look") if request.turn == 0 else say("done"))
    log = EventList()
    results = await run(backend, TWENTY, lane="flex", tools=[look], events=log)
    assert [result.output for result in results] == ["done"] * 20
    assert lanes_of(backend) == {"flex": 40}
    assert lane_use(log) == LaneUse((("flex", 40),))


async def test_refusals_are_waited_out_whatever_max_retries_is_and_lower_no_limit() -> None:
    seen: Counter[str] = Counter()

    def refuses_six_times(request: Request) -> Answer:
        seen[asked(request)] += 1
        return busy() if seen[asked(request)] <= 6 else say("done")

    log, backend = EventList(), flex(refuses_six_times)
    results = await run(backend, TWENTY, lane="flex", max_retries=0, events=log)
    assert all(result.ok for result in results)
    assert lanes_of(backend) == {"flex": 140}
    assert lane_use(log) == LaneUse((("flex", 20),), refused=120)
    assert not [event for event in log.events if isinstance(event, LimitChanged)]
    retried = [event for event in log.events if isinstance(event, RequestRetried)]
    assert {event.kind for event in retried} == {ErrorKind.CAPACITY}
    assert 20 < now() < 120


async def test_a_rate_limit_in_flex_is_one_as_everywhere() -> None:
    backend = flex(lambda request: BackendError(ErrorKind.RATE_LIMITED, "HTTP 429: slow down", status=429))
    [result] = await run(backend, ["a"], lane="flex", max_retries=0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.RATE_LIMITED
    assert lanes_of(backend) == {"flex": 1}


async def test_without_capacity_turns_fall_back_after_a_while_and_not_each_one_anew() -> None:
    @Tool.define
    async def look() -> str:
        return "seen"

    def script(request: Request) -> Answer:
        if request.lane == "flex":
            return busy()
        return call("look") if request.turn < 3 else say("done")

    log, backend = EventList(), flex(script)
    results = await run(backend, TWENTY, lane="flex", tools=[look], events=log)
    assert all(result.ok for result in results)
    assert dict(lane_use(log).requests) == {"standard": 80}
    assert 900 < now() < 1000, "the later turns of all agents do not wait as the first did"
    assert "80 requests fell back to standard" in str(lane_use(log))


async def test_a_probe_finds_out_that_flex_has_capacity_again() -> None:
    @Tool.define
    async def wait() -> str:
        await asyncio.sleep(100)
        return "waited"

    def script(request: Request) -> Answer:
        if request.lane == "flex" and now() < 1000:
            return busy()
        return call("wait") if request.turn < 8 else say("done")

    backend = flex(script)
    [result] = await run(backend, ["a"], lane="flex", tools=[wait], timeout_per_tool=None)
    assert result.ok
    assert backend.requests[-1].lane == "flex"
    assert lanes_of(backend)["standard"] in (1, 2)


@pytest.mark.parametrize("seconds", [60.0, 600.0, 3600.0])
async def test_near_the_deadline_turns_fall_back_so_that_the_run_ends_in_time(seconds: float) -> None:
    backend = flex(lambda request: busy() if request.lane == "flex" else say("done"))
    results = await run(backend, TWENTY, lane="flex", deadline=seconds)
    assert all(result.ok for result in results)
    assert now() < seconds
    if seconds == 600:
        assert now() > seconds / 2, "they waited for capacity as long as there was time"


async def hangs(request: Request) -> Reply:
    if request.lane == "flex":
        await asyncio.Event().wait()
    return say("done")


async def test_a_request_that_hangs_has_the_timeout_of_the_lane_and_then_falls_back() -> None:
    backend = flex(hangs)
    results = await run(backend, TWENTY, lane="flex")
    assert all(result.ok for result in results)
    assert 900 <= now() < 910
    assert lanes_of(backend) == {"flex": 8, "standard": 20}, "the first eight, which is the limit, find out for all"


async def test_a_timeout_that_the_user_sets_holds_in_flex() -> None:
    backend = flex(hangs)
    [result] = await run(backend, ["a"], lane="flex", timeout_per_turn=20)
    assert result.ok
    assert now() == pytest.approx(21)


async def test_a_request_that_hangs_leaves_flex_before_the_deadline() -> None:
    backend = flex(hangs)
    results = await run(backend, TWENTY, lane="flex", deadline=200)
    assert all(result.ok for result in results)
    assert 60 < now() < 200


async def test_a_turn_stays_in_flex_if_the_budget_has_no_room_for_the_full_price() -> None:
    def script(request: Request) -> Answer:
        if request.lane == "flex" and asked(request) == "late" and now() < until:
            return busy()
        return say("done", Usage(10_000).in_lane(request.lane))  # a dollar in standard, half of one in flex

    options: dict[str, Any] = {
        "lane": "flex",
        "deadline": 450,
        "prices": {"scripted": (100, 100, 100)},
        "max_tokens": 1,
    }
    until = 375.0
    backend = flex(script)
    results = await run(backend, ["early", "late"], max_usd=1.2, **options)
    assert [result.ok for result in results] == [True, True]
    assert set(lanes_of(backend)) == {"flex"}
    assert now() > until
    backend, until = flex(script), now() + 445
    results = await run(backend, ["early", "late"], max_usd=2.0, **options)
    assert [result.ok for result in results] == [True, True]
    assert lanes_of(backend)["standard"] == 1


async def test_a_request_in_flex_is_not_cut_for_a_lane_that_the_budget_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(request: Request) -> Answer:
        if asked(request) == "late" and now() < 390:
            return busy()
        return say("done", Usage(10_000).in_lane(request.lane))

    monkeypatch.setattr("random.random", lambda: 0.0)  # the last request is sent at 391.5 and answered at 421.5
    backend = ScriptedBackend(script, seconds=30.0, lanes=("standard", "flex"))
    options: dict[str, Any] = {"prices": {"scripted": (100, 100, 100)}, "max_tokens": 1, "max_usd": 1.2}
    results = await run(backend, ["early", "late"], lane="flex", deadline=450, **options)
    assert [result.ok for result in results] == [True, True]
    assert set(lanes_of(backend)) == {"flex"}
    assert 420 < now() < 425


async def test_leaving_the_run_while_a_turn_waits_for_capacity_leaves_nothing_behind() -> None:
    backend = flex(lambda request: busy() if asked(request) != "0" else say("done"))
    async with stream(backend, TWENTY, lane="flex") as results:
        async for result in results:
            assert result.output == "done"
            break
    assert backend.in_flight == 0


async def test_the_slot_limit_holds_in_flex() -> None:
    backend = flex(lambda request: busy() if len(backend.requests) % 3 else say("done"))
    results = await run(backend, TWENTY, lane="flex", max_inflight=4)
    assert all(result.ok for result in results)
    assert backend.most_in_flight == 4


async def test_auto_without_a_deadline_is_the_cheapest_lane_and_with_a_short_one_the_fastest() -> None:
    for options, expected in [({}, "flex"), ({"deadline": 3600}, "flex"), ({"deadline": 40}, "standard")]:
        backend = flex(lambda request: say("done"))
        results = await run(backend, TWENTY, lane="auto", **options)
        assert all(result.ok for result in results)
        assert lanes_of(backend) == {expected: 20}


async def test_stages_of_a_flow_have_lanes_of_their_own() -> None:
    backend = flex(lambda request: say("done"))
    flow = Flow(["a", "b"], backend=backend).map("draft", "Draft {it}", lane="flex").map("check", "Check {draft}")
    outcome = await flow.run()
    assert [stage.failed for stage in outcome.stages.values()] == [0, 0]
    assert Counter((asked(request).split()[0], request.lane) for request in backend.requests) == {
        ("Draft", "flex"): 2,
        ("Check", "standard"): 2,
    }


async def test_a_run_is_resumed_in_another_lane(tmp_path: Path) -> None:
    backend = flex(lambda request: say("done"))
    await run(backend, ["a"], lane="flex", checkpoint_dir=tmp_path)
    results = await run(backend, ["a", "b"], checkpoint_dir=tmp_path)
    assert all(result.ok for result in results)
    assert lanes_of(backend) == {"flex": 1, "standard": 1}


@pytest.mark.parametrize("billed", ["flex", "standard"])
async def test_a_budget_holds_also_if_the_provider_bills_flex_requests_at_the_full_price(billed: Lane) -> None:
    used = Usage(60, 0, 40)
    backend = flex(lambda request: say("done", used.in_lane(billed)), inflight=20)
    prices = {"scripted": (10_000.0, 10_000.0, 10_000.0)}  # a cent per token
    results = await run(backend, TWENTY, lane="flex", max_tokens=40, max_usd=8.0, prices=prices)
    spent = sum(result.cost or 0.0 for result in results)
    assert spent <= 8.0
    assert spent == pytest.approx(sum(result.ok for result in results) * (1.0 if billed == "standard" else 0.5))
    assert sum(result.ok for result in results) >= (5 if billed == "standard" else 12)


@pytest.mark.parametrize("hours_dry", [0.5, 3.0])
async def test_a_turn_without_money_for_the_full_price_waits_for_capacity_as_long_as_it_takes(hours_dry: float) -> None:
    def script(request: Request) -> Answer:
        if request.lane == "flex" and asked(request) == "late" and now() < hours_dry * 3600:
            return busy()
        return say("done", Usage(10_000).in_lane(request.lane))  # a dollar in standard, half of one in flex

    backend = flex(script)
    options: dict[str, Any] = {"prices": {"scripted": (100, 100, 100)}, "max_tokens": 1}
    results = await run(backend, ["early", "late"], lane="flex", max_usd=1.2, **options)
    assert [result.error for result in results] == [None, None]
    assert set(lanes_of(backend)) == {"flex"}
    assert len(backend.requests) < 300, "with pauses"
