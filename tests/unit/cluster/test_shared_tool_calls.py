"""A call that one worker makes for all: claimed, landed, let go of; without a hub, each makes its own."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import pytest
from tests.support.virtual_time import virtual

from batch_agent import StoreError
from batch_agent.cluster.memory.memory_coordinator import MemoryCoordinator
from batch_agent.cluster.shared_tool_calls import ClusterToolCalls, decode, encode
from batch_agent.core.shared_calls import CallOutcome
from batch_agent.store.memory_store import MemoryStore

P = ParamSpec("P")
T = TypeVar("T")
FOR_EVER = math.inf


class Line:
    """A worker's line to the hub. It may be slow, both ways, or cut."""

    def __init__(self, coordinator: MemoryCoordinator, seconds: float = 0.0) -> None:
        self._coordinator = coordinator
        self.seconds = seconds
        self.cut: set[str] = set()
        self.sent: Counter[str] = Counter()

    async def claim(self, name: str, worker: str) -> bytes | bool:
        return await self._send("claim", lambda: self._coordinator.calls.claim(name, worker))

    async def complete(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        await self._send("complete", lambda: self._coordinator.calls.complete(name, worker, outcome, ttl=ttl))

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        return await self._send(
            "reserve_rate", lambda: self._coordinator.calls.reserve_rate(name, interval=interval, ahead=ahead)
        )

    async def _send(self, what: str, request: Callable[[], Awaitable[T]]) -> T:
        self.sent[what] += 1
        await asyncio.sleep(self.seconds)
        if what in self.cut:
            raise StoreError("The coordinator cannot be reached.")
        answer = await request()
        await asyncio.sleep(self.seconds)
        return answer


class Worker:
    """One that is alive until it is killed, and reads the news."""

    def __init__(self, name: str, coordinator: MemoryCoordinator) -> None:
        self.name = name
        self._coordinator = coordinator
        line: Any = Line(coordinator)
        self.line = line
        self.calls = ClusterToolCalls(line, coordinator.documents, name)
        self.made: list[str] = []

    async def live(self) -> None:
        after = await self._coordinator.updates.position()
        while True:
            await self._coordinator.work.renew(self.name, {}, ttl=2.0)
            news = await self._coordinator.updates.poll(after, wait=1.0)
            after = news.after
            self.calls.on_completed(news.completed_calls)

    async def call(self, name: str = "look", seconds: float = 1.0, good: float = FOR_EVER, text: str = "") -> Any:
        async def make() -> CallOutcome:
            self.made.append(name)
            await asyncio.sleep(seconds)
            return CallOutcome(text or f"made by {self.name}", False, seconds, good)

        return await self.calls.call(name, make)


@asynccontextmanager
async def workers(*names: str) -> AsyncIterator[list[Worker]]:
    coordinator = MemoryCoordinator(MemoryStore())
    there = [Worker(name, coordinator) for name in names]
    lives = [asyncio.create_task(worker.live()) for worker in there]
    await asyncio.sleep(0.001)
    try:
        yield there
    finally:
        for worker in there:
            await worker.calls.aclose()
        for life in lives:
            life.cancel()
        await asyncio.wait(lives)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def task(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return asyncio.create_task(work)


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_an_outcome_is_shared_with_waiting_workers_and_kept_for_later_ones() -> None:
    async with workers("a", "b", "c") as (a, b, c):
        asked = [task(worker.call()) for worker in (a, b)]
        made = CallOutcome("made by a", False, 1.0, FOR_EVER)
        assert [await each for each in asked] == [(made, "executed"), (made, "shared")]
        assert await c.call() == (made, "cached")
        assert a.made + b.made + c.made == ["look"]


@virtual
async def test_a_cancelled_call_is_executed_by_another_worker_at_once() -> None:
    async with workers("a", "b") as (a, b):
        unlucky, waiting = task(a.call(seconds=100)), task(b.call())
        await asyncio.sleep(0.5)
        unlucky.cancel()
        assert (await waiting)[0].content == "made by b"
        assert now() == pytest.approx(1.5, abs=0.1)


@virtual
async def test_a_claim_granted_after_its_call_was_cancelled_is_released() -> None:
    async with workers("a", "b") as (a, b):
        a.line.seconds = 0.5
        unlucky = task(a.call())
        await asyncio.sleep(0.7)  # the hub has given it the call, and it does not know yet
        waiting = task(b.call())
        await asyncio.sleep(0.1)
        unlucky.cancel()
        await asyncio.wait([unlucky])
        assert now() == pytest.approx(0.8, abs=0.01)
        assert (await waiting)[0].content == "made by b"
        assert now() < 3.0  # by the news, before it asks again
        assert a.made == []


@virtual
async def test_a_cancelled_caller_leaves_the_claim_to_another_of_its_worker() -> None:
    async with workers("a", "b") as (a, b):
        leaving, staying, waiting = task(a.call(seconds=2)), task(a.call(seconds=2)), task(b.call())
        await asyncio.sleep(1)
        leaving.cancel()
        assert (await waiting, b.made) == ((CallOutcome("made by a", False, 2.0, FOR_EVER), "shared"), [])
        await staying


@virtual
async def test_a_caller_cancelled_before_its_claim_is_answered_leaves_it_to_another() -> None:
    async with workers("a", "b") as (a, b):
        a.line.seconds = 0.5
        staying = task(a.call(seconds=2))
        await asyncio.sleep(0.2)
        leaving = task(a.call(seconds=2))
        await asyncio.sleep(0.9)
        leaving.cancel()
        assert ((await b.call())[1], b.made) == ("shared", [])
        await staying


@virtual
async def test_a_call_of_a_dead_worker_is_executed_by_a_waiting_worker() -> None:
    async with workers("a", "b", "c") as (a, b, c):
        dead = ClusterToolCalls(a.line, a._coordinator.documents, "d")
        await a._coordinator.work.renew("d", {}, ttl=5.0)

        async def never() -> CallOutcome:
            await asyncio.sleep(1000)
            raise AssertionError

        made = task(dead.call("look", never))
        await asyncio.sleep(0.1)
        found = [await each for each in [task(b.call()), task(c.call())]]
        assert len({outcome for outcome, _ in found}) == 1
        assert sorted(how for _, how in found) == ["executed", "shared"]
        assert len(b.made + c.made) == 1
        assert 5 < now() < 10
        made.cancel()
        await asyncio.wait([made])
        await dead.aclose()
        assert (await a.call())[1] == "cached"  # what the dead one says when it wakes changes nothing


@virtual
async def test_an_update_before_the_reply_to_a_claim_is_not_missed() -> None:
    async with workers("a", "b") as (a, b):
        making = task(a.call(seconds=1.0))
        await asyncio.sleep(0.1)
        b.line.seconds = 0.6  # asked at 0.7, landed at 1, told at 1.3
        waiting = task(b.call())
        await making
        assert (await waiting)[1] == "shared"
        assert now() == pytest.approx(0.1 + 4 * 0.6, abs=0.1)


@virtual
async def test_without_updates_a_claim_is_repeated_after_a_while() -> None:
    async with workers("a", "b") as (a, b):
        making = task(a.call(seconds=1.0))
        await asyncio.sleep(0.1)
        deaf = ClusterToolCalls(b.line, b._coordinator.documents, "b")
        found, how = await deaf.call("look", lambda: pytest.fail("it is made already"))
        assert (found, how) == ((await making)[0], "shared")
        assert now() == pytest.approx(3.1, abs=0.01)
        assert b.line.sent["claim"] == 2


@virtual
async def test_an_outcome_without_a_ttl_is_executed_again_by_later_workers() -> None:
    async with workers("a", "b", "c") as (a, b, c):
        asked = [task(worker.call(good=0.0)) for worker in (a, b)]
        assert [(await each)[0].content for each in asked] == ["made by a", "made by a"]
        assert (await c.call(good=0.0)) == (CallOutcome("made by c", False, 1.0, 0.0), "executed")
        await asyncio.sleep(1)
        assert (await b.call(good=0.0))[0].content == "made by b"


@virtual
async def test_no_worker_uses_an_outcome_beyond_its_ttl() -> None:
    async with workers("a", "b", "c") as (a, b, c):
        asked = [task(worker.call(good=10.0)) for worker in (a, b)]
        await asyncio.wait(asked)
        assert asked[0].result()[0].ttl == 10.0
        assert asked[1].result()[0].ttl == pytest.approx(9.0, abs=0.01)  # it asked a second before it was there
        await asyncio.sleep(5)
        assert (await c.call())[0].ttl == 0.0  # which is as old as it may be, for all that it can tell
        await asyncio.sleep(5)
        assert (await c.call())[1] == "executed"


@virtual
async def test_a_call_with_a_too_large_outcome_is_executed_by_each_worker() -> None:
    async with workers("a", "b") as (a, b):
        asked = [task(worker.call(text="x" * 1_000_001)) for worker in (a, b)]
        assert [(await each)[1] for each in asked] == ["executed", "executed"]
        assert (await a.call(text="short"))[1] == "executed"
        await asyncio.sleep(0.1)
        assert (await b.call(text="short"))[1] == "cached"


def test_an_outcome_arrives_unchanged() -> None:
    for made in (CallOutcome("größe \n", True, 1.5, FOR_EVER), CallOutcome("", False, 0.0, 2.5)):
        assert decode(encode(made)) == made


@virtual
async def test_without_a_coordinator_each_worker_executes_its_calls_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with workers("a", "b") as (a, b):
        a.line.cut = {"claim", "complete", "reserve_rate"}
        with caplog.at_level(logging.WARNING, "batch_agent"):
            for name in ("one", "two"):
                assert (await a.call(name))[1] == "executed"
                assert await a.calls.reserve_rate(name, interval=1.0, ahead=0.0) is None
        [warning] = caplog.records
        assert "The coordinator cannot be reached. Meanwhile, workers do not share tool calls" in warning.getMessage()
        assert a.line.sent["claim"] == 1  # a hub that cannot be reached is left alone for a while
        assert a.line.sent["reserve_rate"] == 0
        a.line.cut = set()
        await asyncio.sleep(10)
        assert (await b.call("three"))[1] == "executed"
        assert (await a.call("three"))[1] == "cached"
        assert await a.calls.reserve_rate("one", interval=1.0, ahead=0.0) == 0.0


@virtual
async def test_a_completion_of_a_call_is_sent_until_it_arrives() -> None:
    async with workers("a", "b") as (a, b):
        a.line.cut = {"complete"}
        assert (await a.call(good=30.0))[1] == "executed"
        assert now() == pytest.approx(1.0, abs=0.01)  # nobody here waits for it
        waiting = task(b.call())
        await asyncio.sleep(5)
        assert not waiting.done()
        a.line.cut = set()
        found, how = await waiting
        assert (found.content, how, b.made) == ("made by a", "shared", [])
        assert found.ttl <= 1 + 30 - now()  # counted from when it was made


@virtual
async def test_a_failed_claim_that_may_have_arrived_is_released() -> None:
    async with workers("a", "b") as (a, b):
        await a._coordinator.calls.claim("look", "a")
        a.line.cut = {"claim"}
        assert (await a.call())[1] == "executed"
        assert (await b.call())[1] == "cached"


@virtual
async def test_closing_waits_a_limited_time_for_completions() -> None:
    async with workers("a", "b") as (a, b):
        a.line.seconds = 1.0
        await a.call()
        await a.calls.aclose()
        assert (await b.call())[1] == "cached"
        a.line.cut = {"complete"}
        await a.call("other")
        closed = now()
        await a.calls.aclose()
        assert now() == pytest.approx(closed + 3)
