"""Places in the KV cache, in virtual time: who gets one when, and that nothing is left behind."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.virtual_time import in_virtual_time

from batch_agent.core.agent_config import FirstPrompt
from batch_agent.core.requests import Usage
from batch_agent.engine.residency import Residency
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.slot_queue import Priority

FRESH, RETURNING = Priority(is_fresh=True), Priority(is_fresh=False)
_TOO_MANY = 20_000


class Watched(Residency):
    """One that is caught when it polls instead of waiting."""

    looks = 0

    def admit_waiting(self) -> None:
        self.looks += 1
        assert self.looks < _TOO_MANY
        super().admit_waiting()


def places(
    limit: int | None, *, speed: float | None = None, shared_chars: int = 0, chars_per_token: float = 4.0
) -> Watched:
    """Residents may hold so much, and a place is worth limit / speed seconds; agents are known not to grow."""
    ledger = KvLedger(limit)
    ledger._limit = None if limit is None else float(limit)
    ledger._context_growth.finished = 1
    ledger.prefill_speed.tokens_per_second = speed
    return Watched(ledger, shared_chars, chars_per_token)


def now() -> float:
    return asyncio.get_running_loop().time()


def no_timer_is_armed() -> None:
    assert armed() == []


def armed() -> list[asyncio.TimerHandle]:
    scheduled: list[asyncio.TimerHandle] = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009
    return [handle for handle in scheduled if not handle.cancelled() and "Timeout" not in repr(handle)]


virtual = in_virtual_time(limit=1e6, check=no_timer_is_armed)


async def enter(residency: Residency, *agents: str, tokens: int = 100) -> None:
    for agent in agents:
        await residency.admit(agent, FirstPrompt(4 * tokens), FRESH)


async def begin(asking: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    task = asyncio.create_task(asking)
    await asyncio.sleep(0)
    return task


async def cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def wait_for_tools(residency: Residency, agent: str, seconds: float, tool: str = "look") -> None:
    with residency.lease(agent, [tool]):
        await asyncio.sleep(seconds)


def leave(residency: Residency, agents: str) -> None:
    for agent in agents:
        residency.release(agent)


@virtual
async def test_agents_beyond_the_kv_capacity_wait_until_a_resident_leaves() -> None:
    residency = places(200)
    await enter(residency, *"ab")
    waiting = await begin(enter(residency, "c"))
    assert residency.has_waiters
    await asyncio.sleep(100)
    assert not waiting.done()
    residency.release("a")
    await waiting
    assert not residency.has_waiters
    assert now() == 100
    leave(residency, "bc")


@virtual
async def test_a_returning_agent_is_admitted_before_a_new_one() -> None:
    residency = places(200, speed=100)
    await enter(residency, *"ab")
    tools = await begin(wait_for_tools(residency, "a", 5))
    await enter(residency, "c")
    assert now() == 2  # when the lease of a was over
    fresh = await begin(enter(residency, "d"))
    await tools
    returning = await begin(residency.readmit("a", RETURNING))
    residency.release("b")
    await returning
    assert not fresh.done()
    residency.release("c")
    await fresh
    leave(residency, "ad")


@virtual
async def test_no_agent_overtakes_waiting_agents_even_if_it_would_fit() -> None:
    residency = places(200)
    await enter(residency, "a")
    big = await begin(enter(residency, "big", tokens=150))
    small = await begin(enter(residency, "small", tokens=10))
    assert [big.done(), small.done()] == [False, False]
    residency.release("a")
    await big
    await small
    leave(residency, "a")
    residency.release("big")
    residency.release("small")


@virtual
async def test_residency_with_an_expired_lease_goes_to_a_waiting_agent() -> None:
    residency = places(200, speed=100)
    await enter(residency, *"ab")
    tools = await begin(wait_for_tools(residency, "a", 5))
    await enter(residency, "c")
    assert now() == 2
    assert not residency.ledger.is_resident("a")
    await tools
    again = await begin(residency.readmit("a", RETURNING))
    await asyncio.sleep(10)
    assert not again.done()
    residency.release("c")
    await again
    leave(residency, "ab")
    assert residency.ledger.counts.evictions == 1


@virtual
async def test_an_agent_that_returns_within_its_lease_continues_at_once() -> None:
    residency = places(200, speed=100)
    await enter(residency, *"ab")
    fresh = await begin(enter(residency, "c"))
    await wait_for_tools(residency, "a", 1.9)
    await residency.readmit("a", RETURNING)
    assert now() == 1.9
    await asyncio.sleep(10)
    assert not fresh.done()
    leave(residency, "ab")
    await fresh
    residency.release("c")


@virtual
async def test_an_agent_with_a_slow_tool_releases_residency_at_once() -> None:
    residency = places(200, speed=100)
    await enter(residency, *"ab")
    for _ in range(4):
        await wait_for_tools(residency, "a", 3)
    tools = await begin(wait_for_tools(residency, "a", 3))
    began = now()
    await enter(residency, "c")
    assert now() == began
    await tools
    leave(residency, "abc")


@virtual
async def test_an_insufficient_expired_lease_does_not_cause_polling() -> None:
    residency = places(300, speed=100)
    await enter(residency, *"abc")
    tools = await begin(wait_for_tools(residency, "a", 60))
    waiting = await begin(enter(residency, "d", tokens=150))
    await asyncio.sleep(50)
    assert residency.looks < 20
    residency.release("b")
    await asyncio.sleep(0)
    assert waiting.done()
    await tools
    leave(residency, "acd")


@virtual
async def test_while_little_is_known_an_idle_engine_overcommits_after_the_idle_limit_and_not_before() -> None:
    residency = places(100)
    await enter(residency, "a")
    tools = await begin(wait_for_tools(residency, "a", 10))
    await enter(residency, "b")
    assert now() == pytest.approx(0.05)
    assert residency.ledger.counts.overcommitted == 1
    await tools
    leave(residency, "ab")


@virtual
async def test_no_agent_is_overcommitted_while_another_is_busy() -> None:
    residency = places(200)
    await enter(residency, *"ab")
    tools = await begin(wait_for_tools(residency, "a", 10))
    waiting = await begin(enter(residency, "c"))
    await asyncio.sleep(9)
    assert not waiting.done()
    residency.release("b")
    await waiting
    assert residency.ledger.counts.overcommitted == 0
    await tools
    leave(residency, "ac")


@pytest.mark.parametrize(("speed", "patience"), [(10.0, 1.0), (1000.0, 0.1), (10_000.0, 0.05)])
@virtual
async def test_the_idle_limit_is_the_bounded_time_to_recompute_a_context(speed: float, patience: float) -> None:
    residency = places(1000, speed=speed)
    await enter(residency, *"abcdefghij")
    tools = [await begin(wait_for_tools(residency, agent, 10)) for agent in "abcdefghij"]
    await enter(residency, "k")
    assert now() == pytest.approx(patience)
    assert (residency.ledger.counts.overcommitted, residency.ledger.counts.evictions) == (1, 0)
    for task in tools:
        await task
    leave(residency, "abcdefghijk")


async def after_one_turn_each(speed: float, turn: float, tools: float) -> Watched:
    """Two agents of 100 tokens fill the cache. A turn takes the engine `turn` seconds, one at a time."""
    residency = places(200, speed=speed)
    await enter(residency, *"ab")
    for agent in "ab":
        await asyncio.sleep(turn)
        residency.on_reply(agent, Usage(), turn, None, in_flight=1)
        await wait_for_tools(residency, agent, tools)
        await residency.readmit(agent, RETURNING)
    return residency


@virtual
async def test_an_engine_that_is_known_to_be_idle_overcommits_at_once() -> None:
    residency = await after_one_turn_each(speed=1000, turn=0.1, tools=1)
    tools = [await begin(wait_for_tools(residency, agent, 1)) for agent in "ab"]
    began = now()
    await enter(residency, "c")
    assert now() == began
    assert residency.ledger.counts.overcommitted == 1
    for task in tools:
        await task
    leave(residency, "abc")


@virtual
async def test_agents_are_overcommitted_until_the_engine_has_no_time_left_between_the_tool_waits() -> None:
    residency = await after_one_turn_each(speed=100, turn=1, tools=8)  # and a context takes 1 s
    began = now()
    await enter(residency, *"cde")
    assert now() == began
    waiting = await begin(enter(residency, "f"))
    await asyncio.sleep(100)
    assert not waiting.done()  # five turns in 10 s, each with its context: the engine can do no more
    assert residency.ledger.counts.overcommitted == 3
    residency.release("e")
    await waiting
    assert residency.ledger.counts.overcommitted == 4
    leave(residency, "abcdf")


@virtual
async def test_where_recomputing_costs_more_than_the_tools_take_only_an_idle_engine_is_overcommitted() -> None:
    residency = await after_one_turn_each(speed=100, turn=1, tools=1)
    waiting = await begin(enter(residency, "c"))
    await asyncio.sleep(100)
    assert not waiting.done()
    began = now()
    tools = [await begin(wait_for_tools(residency, agent, 1.5)) for agent in "ab"]
    await waiting
    assert now() == began + 1  # as long as a context takes
    assert residency.ledger.counts.overcommitted == 1
    for task in tools:
        await task
    leave(residency, "abc")


@pytest.mark.parametrize("turn", [None, 0.0], ids=["no reply", "a reply at once"])
@virtual
async def test_a_busy_engine_is_not_overcommitted_while_it_is_unknown_how_long_a_turn_takes(turn: float | None) -> None:
    residency = places(200, speed=1000)
    await enter(residency, *"ab")
    if turn is not None:
        residency.on_reply("a", Usage(), turn, None)
    await wait_for_tools(residency, "a", 60)
    await residency.readmit("a", RETURNING)
    waiting = await begin(enter(residency, "c"))
    await asyncio.sleep(100)
    assert not waiting.done()
    leave(residency, "ab")
    await waiting
    residency.release("c")


@virtual
async def test_an_agent_larger_than_the_cache_is_admitted_when_no_other_agent_waits() -> None:
    residency = places(200)
    await enter(residency, *"ab")
    tools = [await begin(wait_for_tools(residency, agent, seconds)) for agent, seconds in (("a", 20), ("b", 3))]
    await tools[1]
    await residency.readmit("b", RETURNING)
    big = await begin(enter(residency, "big", tokens=5000))
    await asyncio.sleep(1)
    assert not big.done()
    residency.release("b")
    await big
    assert now() == pytest.approx(4.05)
    await tools[0]
    leave(residency, "a")
    residency.release("big")


@pytest.mark.parametrize("start", [0.1, 0.3, 0.7, 1.1, 1000.1, 12345.678, 1e5 + 1 / 3])
@virtual
async def test_an_agent_is_overcommitted_whenever_the_engine_became_idle(start: float) -> None:
    residency = places(100)
    await enter(residency, "a")
    await asyncio.sleep(start)
    tools = await begin(wait_for_tools(residency, "a", 10))
    await enter(residency, "b")
    assert now() == pytest.approx(start + 0.05)
    assert residency.looks < 10
    await tools
    leave(residency, "ab")


@virtual
async def test_each_overcommitted_agent_waits_for_an_idle_limit_of_its_own() -> None:
    residency = places(100)
    await enter(residency, "a")
    tools = [await begin(wait_for_tools(residency, "a", 20))]
    await enter(residency, "b")
    tools.append(await begin(wait_for_tools(residency, "b", 20)))
    await asyncio.sleep(5 - now())
    await enter(residency, "c")
    assert now() == pytest.approx(5.05)
    for task in tools:
        await task
    leave(residency, "abc")


@virtual
async def test_several_overcommitted_agents_in_a_row_each_wait_for_the_engine_to_be_idle() -> None:
    residency = places(100)
    await enter(residency, "a")
    tools = [await begin(wait_for_tools(residency, "a", 20))]
    waiting = [await begin(enter(residency, agent)) for agent in "bcd"]
    for number, agent in enumerate("bcd"):
        await waiting[number]
        assert now() == pytest.approx(0.05 + number * 1.05)
        await asyncio.sleep(1)
        tools.append(await begin(wait_for_tools(residency, agent, 20)))
    for task in tools:
        await task
    leave(residency, "abcd")


@virtual
async def test_the_idle_limit_restarts_after_a_waiting_agent_leaves() -> None:
    residency = places(100)
    await enter(residency, "a")
    tools = await begin(wait_for_tools(residency, "a", 20))
    await cancel(await begin(enter(residency, "b")))
    await asyncio.sleep(5)
    await enter(residency, "c")
    assert now() == pytest.approx(5.05)
    await tools
    leave(residency, "ac")


@virtual
async def test_an_agent_cancelled_while_it_waits_for_residency_leaves_nothing_behind() -> None:
    residency = places(100)
    await enter(residency, "a")
    first, second = await begin(enter(residency, "b")), await begin(enter(residency, "c"))
    await cancel(first)
    residency.release("a")
    await second
    assert residency.ledger.residents == 1
    assert "b" not in residency.ledger._agents
    assert "b" not in residency._chars
    residency.release("c")
    assert residency.ledger.reserved_tokens == 0
    assert not residency._busy


@virtual
async def test_the_last_cancelled_waiting_agent_leaves_no_timer() -> None:
    residency = places(100)
    await enter(residency, "a")
    tools = await begin(wait_for_tools(residency, "a", 1))
    waiting = await begin(enter(residency, "b"))
    assert len(armed()) == 2
    await cancel(waiting)
    await cancel(tools)
    residency.release("a")
    assert armed() == []


@virtual
async def test_residency_granted_to_a_cancelled_agent_is_not_lost() -> None:
    residency = places(100)
    await enter(residency, "a")
    first, second = await begin(enter(residency, "b")), await begin(enter(residency, "c"))
    residency.release("a")
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert residency.ledger.residents == 1
    residency.release("c")


@virtual
async def test_residency_granted_to_an_agent_with_a_pending_cancellation_is_not_lost() -> None:
    residency = places(100)
    await enter(residency, "a")
    first, second = await begin(enter(residency, "b")), await begin(enter(residency, "c"))
    first.cancel()
    residency.release("a")
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert residency.ledger.residents == 1
    residency.release("c")


@virtual
async def test_a_returning_agent_cancelled_while_it_waits_blocks_no_other() -> None:
    residency = places(200, speed=100)
    await enter(residency, *"ab")
    tools = await begin(wait_for_tools(residency, "a", 3))
    await enter(residency, "c", tokens=100)
    await tools
    returning, fresh = await begin(residency.readmit("a", RETURNING)), await begin(enter(residency, "d"))
    await cancel(returning)
    residency.release("a")
    residency.release("b")
    await fresh
    leave(residency, "cd")
    assert residency.ledger.reserved_tokens == 0


@virtual
async def test_many_agents_may_be_cancelled_while_residency_is_granted() -> None:
    residency = places(300)
    await enter(residency, *"abc")
    waiting = [await begin(enter(residency, str(number))) for number in range(20)]
    for number, agent in enumerate("abc"):
        waiting[number].cancel()
        residency.release(agent)
        waiting[number + 10].cancel()
    for number, task in enumerate(waiting):
        with suppress(asyncio.CancelledError):
            await task
            residency.release(str(number))
    assert (residency.ledger.residents, residency.ledger.reserved_tokens) == (0, 0)
    assert not residency._busy


@virtual
async def test_growth_beyond_the_capacity_evicts_the_youngest_residents_that_wait_for_tools() -> None:
    residency = places(400)
    await enter(residency, *"abcd")
    tools = [await begin(wait_for_tools(residency, agent, 5)) for agent in "bcd"]
    residency.on_reply("a", Usage(250, 0, 0), 0.0, None)
    assert [residency.ledger.is_resident(agent) for agent in "abcd"] == [True, True, False, False]
    for task in tools:
        await task
    await residency.readmit("b", RETURNING)
    again = await begin(residency.readmit("c", RETURNING))
    assert not again.done()
    residency.release("b")
    await again
    leave(residency, "acd")
    assert residency.ledger.reserved_tokens == 0


@virtual
async def test_the_shared_prefix_counts_once_before_the_first_answer() -> None:
    residency = places(1000, shared_chars=4 * 800)
    await enter(residency, *"ab")
    waiting = await begin(enter(residency, "c"))
    assert not waiting.done()
    await cancel(waiting)
    leave(residency, "ab")


@virtual
async def test_estimates_begin_with_the_length_of_a_token_that_is_given() -> None:
    residency = places(1000, shared_chars=1200, chars_per_token=2.0)
    assert residency.ledger.shared_tokens == 600
    await residency.admit("a", FirstPrompt(400), FRESH)
    assert residency.ledger.reserved_tokens == 800
    residency.release("a")


@virtual
async def test_estimates_follow_what_the_server_counts() -> None:
    residency = places(10**6)
    for number in range(30):
        await residency.admit(str(number), FirstPrompt(1000), FRESH)
        residency.on_reply(str(number), Usage(500, 0, 0), 0.1, None)
    await residency.admit("next", FirstPrompt(1000), FRESH)
    assert residency.ledger._agents["next"].own == pytest.approx(500, rel=0.01)
    for number in range(30):
        residency.release(str(number))
    residency.release("next")


@virtual
async def test_a_server_that_reports_no_usage_changes_nothing() -> None:
    residency = places(200)
    await enter(residency, *"ab")
    for agent in "ab":
        residency.on_reply(agent, Usage(), 0.0, None)
    waiting = await begin(enter(residency, "c"))
    assert not waiting.done()
    leave(residency, "ab")
    await waiting
    residency.release("c")


@virtual
async def test_a_tool_that_fails_or_is_cancelled_ends_the_lease_and_teaches_nothing() -> None:
    residency = places(100, speed=100)
    await enter(residency, "a")
    for _ in range(8):
        with pytest.raises(KeyError), residency.lease("a", ["look"]):
            raise KeyError
    assert residency._tool_waits.estimate(["look"]) is None
    await residency.readmit("a", RETURNING)
    waiting = await begin(enter(residency, "b"))
    await asyncio.sleep(100)
    assert not waiting.done()
    residency.release("a")
    await waiting
    residency.release("b")


@virtual
async def test_leaving_twice_or_without_having_come_is_harmless() -> None:
    residency = places(100)
    await enter(residency, "a")
    leave(residency, "aax")
    assert residency.ledger.reserved_tokens == 0


class Counted(Priority):
    compared = 0

    def __lt__(self, other: object) -> bool:
        Counted.compared += 1
        return False

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return True

    __hash__ = None  # type: ignore[assignment]


async def cost_of_cancelling(waiting: int) -> float:
    residency = places(100)
    await enter(residency, "a")
    tasks = [await begin(residency.admit(str(number), FirstPrompt(400), Counted(False))) for number in range(waiting)]
    Counted.compared = 0
    for task in reversed(tasks):
        await cancel(task)
    residency.release("a")
    return Counted.compared / waiting


@virtual
async def test_cancelling_a_wait_for_residency_costs_the_same_for_any_queue_length() -> None:
    assert await cost_of_cancelling(1000) <= 3 * await cost_of_cancelling(50)


SECONDS = st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.3])
SIZES = st.sampled_from([0, 1, 50, 100, 400, 5000])
AGENTS = st.tuples(SIZES, st.lists(st.tuples(SECONDS, SECONDS, SIZES), min_size=1, max_size=4))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    capacity=st.none() | st.sampled_from([1, 100, 450, 3000]),
    speed=st.none() | st.sampled_from([1.0, 100.0, 1e6]),
    agents=st.lists(AGENTS, min_size=1, max_size=14),
    patience=st.lists(st.none() | SECONDS, min_size=1, max_size=4),
    one_by_one=st.booleans(),
    counts=st.sampled_from(["all", "none", "odd"]),
)
def test_every_agent_finishes_whatever_its_size_and_its_tools(
    capacity: int | None,
    speed: float | None,
    agents: list[tuple[int, list[tuple[float, float, int]]]],
    patience: list[float | None],
    one_by_one: bool,
    counts: str,
) -> None:
    """An agent: its size, and for each turn how long it takes, how long its tools take, and by how much it grows. Some
    lose their patience. The server counts, or does not, or says odd things."""
    done: set[int] = set()

    async def live(residency: Residency, number: int, inside: asyncio.Event) -> None:
        size, turns = agents[number]
        prompt, name, limit = size, str(number), patience[number % len(patience)]
        try:
            async with asyncio.timeout(limit):
                try:
                    await residency.admit(name, FirstPrompt(4 * size), FRESH)
                finally:
                    inside.set()
                for turn, (thinking, tools, more) in enumerate(turns):
                    if turn:
                        await residency.readmit(name, Priority(False, len(turns) - turn, number))
                    assert residency.ledger.is_resident(name)
                    await asyncio.sleep(thinking)
                    usage = Usage(prompt, prompt * (number % 3) // 2, more)
                    residency.on_reply(name, usage if counts == "all" else Usage(0, 99, 0), thinking, None)
                    prompt += more if counts != "odd" else -prompt // 2
                    await wait_for_tools(residency, name, tools, f"tool {number % 3}")
        except TimeoutError:
            assert limit is not None
        finally:
            residency.release(name)
        done.add(number)

    @virtual
    async def main() -> None:
        residency = places(capacity, speed=speed)
        residency.ledger._context_growth.finished = 0
        async with asyncio.TaskGroup() as group:
            for number in range(len(agents)):
                inside = asyncio.Event()
                group.create_task(live(residency, number, inside))
                if one_by_one:
                    await inside.wait()
        assert (residency.ledger.residents, residency._queue, residency._busy) == (0, [], set())
        assert residency.ledger.reserved_tokens == pytest.approx(residency.ledger.shared_tokens, abs=1e-6)

    main()
    assert done == set(range(len(agents)))
