"""Slots and places together: an agent needs both, and loses neither to somebody's bad luck."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from tests.support.virtual_time import virtual

from batch_agent.core.agent_config import Job
from batch_agent.core.facts import Compacted, Replied, Returned, Shortened, Started
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import Usage
from batch_agent.core.run_reports import LimitChange, Scheduling
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.residency import Residency
from batch_agent.engine.slots import HeldSlot, Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.testing import say

LOOK = (ToolCall("1", "look", "{}"),)


def gate(
    inflight: int = 10,
    kv_tokens: int | None = 10_000,
    *,
    fixed: bool = True,
    device_tokens: int | None = None,
) -> AdmissionController:
    """Of an engine whose agents are known not to grow."""
    ledger = KvLedger(kv_tokens)
    ledger._context_growth.finished = 1
    return AdmissionController(
        Slots(InflightLimit(inflight, fixed=fixed)), Residency(ledger, 0), device_tokens=device_tokens
    )


def job(index: int, tokens: int = 1000) -> Job:
    return Job(index, str(index), index, "x" * 4 * tokens)


def answer(prompt: int, cached: int = 0, output: int = 0, seconds: float = 1.0) -> Replied:
    return Replied(say("", Usage(prompt, cached, output)), seconds=seconds)


def places(entered: AdmissionController) -> KvLedger:
    assert isinstance(entered.residency, Residency)
    return entered.residency.ledger


async def begin(asking: Coroutine[Any, Any, HeldSlot]) -> "asyncio.Task[HeldSlot]":
    task = asyncio.create_task(asking)
    await asyncio.sleep(0)
    return task


async def cancel(task: "asyncio.Task[HeldSlot]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@virtual
async def test_without_residency_only_slots_are_counted() -> None:
    slots_only = AdmissionController(Slots(InflightLimit(2, fixed=True)))
    await slots_only.admit(job(0, 10**6), ())
    second = await slots_only.admit(job(1, 10**6), ())
    third = await begin(slots_only.readmit(job(2), 3))
    assert not third.done()
    with slots_only.tool_wait("1", LOOK, None):
        second.release()
        await third
    slots_only.on_reply("1", answer(100))
    slots_only.release("1")
    slots_only.on_load(ServerLoad())
    await slots_only.aclose()
    assert slots_only.report() == Scheduling(2)


@virtual
async def test_an_agent_with_residency_still_needs_a_slot() -> None:
    entered = gate(inflight=1)
    held = await entered.admit(job(0), ())
    waiting = await begin(entered.admit(job(1), ()))
    assert (waiting.done(), places(entered).residents) == (False, 2)
    held.release()
    await waiting


@virtual
async def test_an_agent_without_residency_takes_no_slot() -> None:
    entered = gate(inflight=2, kv_tokens=1500)
    await entered.admit(job(0), ())
    waiting = await begin(entered.admit(job(1), ()))
    assert not waiting.done()
    assert not entered.slots.is_full
    entered.release("0")
    await waiting


@virtual
async def test_a_new_agent_cancelled_while_it_waits_for_a_slot_releases_its_residency() -> None:
    entered = gate(inflight=1)
    await entered.admit(job(0), ())
    waiting = await begin(entered.admit(job(1), ()))
    await cancel(waiting)
    assert (places(entered).residents, places(entered).is_resident("1")) == (1, False)


@virtual
async def test_a_started_agent_cancelled_while_it_waits_for_a_slot_keeps_residency_until_it_leaves() -> None:
    entered = gate(inflight=1)
    held = await entered.admit(job(0), ())
    held.release()
    await entered.admit(job(1), ())
    await cancel(await begin(entered.readmit(job(0), 3)))
    assert places(entered).is_resident("0")
    entered.release("0")
    assert places(entered).residents == 1


@virtual
async def test_a_resumed_conversation_counts_with_its_whole_context() -> None:
    entered = gate()
    call = LOOK[0]
    facts = (
        Started(0, 0, "x" * 999),
        Replied(say("y" * 400)),
        Returned((ToolResult(call, "z" * 800), ToolResult(call, "z" * 1200))),
    )
    await entered.admit(job(0), facts)
    assert places(entered).reserved_tokens == 1000 + (400 + 800 + 1200) / 4


@virtual
async def test_no_more_agents_run_than_fit_on_the_device() -> None:
    entered = gate(kv_tokens=None, device_tokens=3300)
    held = [await entered.admit(job(number), ()) for number in range(3)]
    waiting = await begin(entered.admit(job(3), ()))
    assert not waiting.done()
    held[0].release()
    await waiting
    assert entered.slots.limit == 10


@virtual
async def test_the_device_holds_fewer_contexts_as_these_grow_and_more_as_they_shrink() -> None:
    entered = gate(kv_tokens=None, device_tokens=3300)
    held = [await entered.admit(job(number), ()) for number in range(3)]
    for number in range(3):
        entered.on_reply(str(number), answer(3000))
        held[number].release()
    again = [await begin(entered.readmit(job(number), 3)) for number in range(3)]
    assert [task.done() for task in again] == [True, False, False]
    entered.on_reply("0", answer(1500))
    entered.on_reply("1", answer(1500))
    await asyncio.sleep(0)
    assert [task.done() for task in again] == [True, True, False]
    entered.on_reply("2", answer(100))
    await again[2]


@virtual
async def test_without_device_tokens_the_contexts_do_not_bound_the_slots() -> None:
    entered = gate(kv_tokens=None)
    assert [await entered.admit(job(number, 10**6), ()) for number in range(10)]


@virtual
async def test_an_agent_keeps_residency_on_lease_while_its_tools_run() -> None:
    entered = gate(kv_tokens=2500)
    await entered.admit(job(0), ())
    await entered.admit(job(1), ())
    places(entered).prefill_speed.tokens_per_second = 1000.0
    waiting = await begin(entered.admit(job(2), ()))
    with entered.tool_wait("0", LOOK, None):
        await waiting
        assert asyncio.get_running_loop().time() == pytest.approx(2.25)
    assert not places(entered).is_resident("0")


@pytest.mark.parametrize(("inflight", "overcommitted"), [(1, 0), (4, 1)])
@virtual
async def test_agents_that_wait_for_a_slot_do_not_make_the_engine_look_fast(inflight: int, overcommitted: int) -> None:
    """Four contexts fit, tools take twice as long as a turn, and a context is computed in no time."""
    entered = gate(inflight, kv_tokens=4500)
    places(entered).prefill_speed.tokens_per_second = 1e6
    asking = [await begin(entered.admit(job(number), ())) for number in range(4)]
    assert entered.slots.waiting == 4 - inflight
    entered.on_reply("0", answer(1000))
    asking[0].result().release()
    with entered.tool_wait("0", LOOK, None):
        await asyncio.sleep(2)
    returning = await begin(entered.readmit(job(0), 3))
    new = await begin(entered.admit(job(4), ()))
    assert entered.report().overcommitted == overcommitted
    for task in (*asking[1:], returning, new):
        await cancel(task)


@virtual
async def test_the_admission_report_has_slots_and_residency() -> None:
    entered = gate(inflight=2, kv_tokens=2500, fixed=False)
    await entered.admit(job(0), ())
    await entered.admit(job(1), ())
    await asyncio.sleep(3)
    for _ in range(2):
        entered.on_reply("0", answer(1000, 1000))
    with entered.tool_wait("0", LOOK, None), entered.tool_wait("1", LOOK, None):
        await entered.admit(job(2), ())
        report = entered.report()
    assert report == Scheduling(
        inflight=4,
        limits=(LimitChange(3.0, 4, "capacity available"),),
        kv_tokens=2500,
        kv_limit=2250,
        max_residents=3,
        overcommitted=1,
    )


@virtual
async def test_the_admission_report_counts_released_residency_and_lost_contexts() -> None:
    entered = gate(kv_tokens=2500)
    await entered.admit(job(0), ())
    await entered.admit(job(1), ())
    entered.on_reply("0", answer(1000, 900))
    entered.on_reply("0", answer(1000, 0))
    places(entered).prefill_speed.tokens_per_second = 1000.0
    with entered.tool_wait("0", LOOK, None):
        await entered.admit(job(2), ())
    report = entered.report()
    assert (report.evictions, report.cache_misses, report.overcommitted) == (1, 1, 0)


@virtual
async def test_the_admission_report_without_a_capacity_has_no_limit() -> None:
    entered = gate(kv_tokens=None)
    await entered.admit(job(0), ())
    assert entered.report() == Scheduling(10, max_residents=1)


@virtual
async def test_a_compaction_is_reported_to_the_residency() -> None:
    both = gate()
    await both.admit(job(0), ())
    both.on_reply("0", answer(3_000, 0, 100))
    both.on_compaction("0", Compacted((), before=3_200, after=1_200))
    assert isinstance(both.residency, Residency)
    assert both.residency.ledger.tokens("0") == 1_200
    AdmissionController(both.slots).on_compaction("0", Compacted(()))  # nobody counts places there


@virtual
async def test_a_returning_agent_counts_with_its_size_after_compaction() -> None:
    both = gate()
    results = tuple(ToolResult(LOOK[0], "x" * 4_000) for _ in range(2))
    shortened = Compacted((Shortened(2, "x" * 40), Shortened(1, "")))
    facts = (Returned(results), Returned(results), shortened)
    await both.admit(job(1), facts)
    assert isinstance(both.residency, Residency)
    assert both.residency.ledger._agents["1"].own == 1_000 + 2_000 + 10


@virtual
async def test_a_host_tier_raises_the_capacity_when_its_size_is_known() -> None:
    entered = gate(kv_tokens=3000, device_tokens=3000)
    held = [await entered.admit(job(number), ()) for number in range(2)]
    waiting = await begin(entered.admit(job(2), ()))
    assert not waiting.done()
    entered.on_load(ServerLoad(running=2, kv_host_tokens=2000))
    await asyncio.sleep(0)
    assert not waiting.done()  # a smaller tier holds only copies
    entered.on_load(ServerLoad(running=2, kv_host_tokens=9000))
    await asyncio.sleep(0)
    assert places(entered).capacity == 9000
    held[0].release()
    await waiting


@virtual
async def test_with_a_host_tier_no_more_contexts_run_than_the_device_holds() -> None:
    entered = gate(kv_tokens=3300, device_tokens=3300)
    await entered.admit(job(0), ())
    entered.on_load(ServerLoad(running=1, kv_host_tokens=100_000))
    held = [await entered.admit(job(number), ()) for number in (1, 2)]
    waiting = await begin(entered.admit(job(3), ()))
    assert places(entered).residents == 4
    assert not waiting.done()
    held[0].release()
    await waiting


@virtual
async def test_the_last_agents_start_before_others_continue_once_there_is_a_result() -> None:
    ledger = KvLedger(100_000)
    ledger._context_growth.finished = 1
    entered = AdmissionController(Slots(InflightLimit(1, fixed=True)), Residency(ledger, 0), agents=4)
    for number in range(2):
        slot = await entered.admit(job(number), ())
        entered.on_reply(str(number), answer(1000))
        slot.release()
    entered.release("1")
    slot = await entered.admit(job(2), ())
    continued = await begin(entered.readmit(job(0), 3))
    new = await begin(entered.admit(job(3), ()))
    slot.release()
    await asyncio.sleep(0)
    assert (new.done(), continued.done()) == (True, False)
    (await new).release()
    await continued


@virtual
async def test_on_a_service_that_manages_its_cache_the_last_agents_start_before_others_continue() -> None:
    """The last one would otherwise take all of its turns alone at the end."""
    entered = AdmissionController(Slots(InflightLimit(4, fixed=True)), agents=6)
    slots = [await entered.admit(job(number), ()) for number in range(4)]
    continued = await begin(entered.readmit(job(0), 3))
    new = await begin(entered.admit(job(4), ()))
    slots[0].release()
    await asyncio.sleep(0)
    assert (new.done(), continued.done()) == (True, False)
    slots[1].release()
    await asyncio.sleep(0)
    assert continued.done()


@virtual
async def test_before_the_first_result_many_new_agents_wait_for_those_that_were_started() -> None:
    entered = AdmissionController(Slots(InflightLimit(4, fixed=True)), agents=7)
    slots = [await entered.admit(job(number), ()) for number in range(4)]
    new = await begin(entered.admit(job(4), ()))
    continued = await begin(entered.readmit(job(0), 3))
    slots[0].release()
    await asyncio.sleep(0)
    assert (new.done(), continued.done()) == (False, True)
    slots[1].release()
    await new
