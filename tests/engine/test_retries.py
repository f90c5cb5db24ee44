"""A failed request is sent again: later, without its slot, and only when that can help."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.support.engine_harness import asked, now, run
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind
from batch_agent.core.errors import RETRYABLE
from batch_agent.core.events import LimitChanged, RequestRetried
from batch_agent.core.requests import Reply, Request
from batch_agent.testing import Answer, ScriptedBackend, say


def failing(times: int, error: BackendError) -> ScriptedBackend:
    """The first `times` requests of each agent fail."""
    seen: Counter[str] = Counter()

    def answer(request: Request) -> Answer:
        seen[asked(request)] += 1
        return error if seen[asked(request)] <= times else say("done")

    return ScriptedBackend(answer)


async def test_a_retry_waits_for_retry_after_and_not_much_longer() -> None:
    backend = failing(1, BackendError(ErrorKind.RATE_LIMITED, "slow down", retry_after=7.0))
    [result] = await run(backend, ["a"])
    assert result.ok
    assert 7.0 <= now() < 7.6


async def test_an_agent_whose_server_asks_for_too_long_a_wait_fails_at_once_and_says_how_long() -> None:
    backend = failing(1, BackendError(ErrorKind.RATE_LIMITED, "out of quota.", retry_after=6 * 3600))
    [result] = await run(backend, ["a"])
    assert now() < 1
    assert result.error is not None
    assert result.error.message == (
        "out of quota. The server asks to wait 21,600 s, and a request waits for 300 s at most. "
        "Run this input again later."
    )


@pytest.mark.parametrize("kind", [ErrorKind.AUTH, ErrorKind.BAD_REQUEST])
async def test_an_error_that_is_never_retried_says_nothing_of_a_wait(kind: ErrorKind) -> None:
    [result] = await run(failing(1, BackendError(kind, "no.", retry_after=6 * 3600)), ["a"])
    assert result.error is not None
    assert result.error.message == "no."


async def test_an_agent_that_waits_for_its_retry_holds_no_slot() -> None:
    times: dict[str, float] = {}

    def answer(request: Request) -> Answer:
        name = asked(request)
        if name == "a" and "a" not in times:
            times["a"] = now()
            return BackendError(ErrorKind.SERVER, "boom", retry_after=100.0)
        times[name] = now()
        return say("done")

    results = await run(ScriptedBackend(answer), ["a", "b"], max_inflight=1)
    assert all(result.ok for result in results)
    assert times["b"] == 0
    assert times["a"] >= 100


@pytest.mark.parametrize("kind", sorted(RETRYABLE - {ErrorKind.UNAVAILABLE}))
async def test_a_retryable_error_is_retried_max_retries_times(kind: ErrorKind) -> None:
    backend = failing(10**6, BackendError(kind, "no luck"))
    [result] = await run(backend, ["a"], max_retries=2)
    patience = 10 if kind is ErrorKind.RATE_LIMITED else 1
    assert len(backend.requests) == 1 + 2 * patience
    assert result.error is not None
    assert (result.error.kind, result.error.message, result.error.retryable) == (kind, "no luck", True)


@pytest.mark.parametrize("kind", sorted(set(ErrorKind) - RETRYABLE - {ErrorKind.TLS}))
async def test_a_permanent_error_is_not_retried(kind: ErrorKind) -> None:
    backend = failing(10**6, BackendError(kind, "never"))
    [result] = await run(backend, ["a"])
    assert len(backend.requests) == 1
    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == (kind, False)


async def test_every_retry_is_an_event_with_its_reason_and_delay() -> None:
    log = EventList()
    backend = failing(2, BackendError(ErrorKind.SERVER, "boom"))
    await run(backend, ["a"], events=log)
    retries = [event for event in log.events if isinstance(event, RequestRetried)]
    assert [(event.kind, event.message) for event in retries] == [(ErrorKind.SERVER, "boom")] * 2
    assert 0 < sum(event.delay for event in retries) == pytest.approx(now())


async def test_attempts_are_counted_per_turn() -> None:
    failed: set[int] = set()

    def answer(request: Request) -> Answer:
        turn = len(request.messages)
        if turn not in failed:
            failed.add(turn)
            return BackendError(ErrorKind.CONNECTION, "reset")
        return say("not a number") if turn < 5 else say("7")

    [result] = await run(ScriptedBackend(answer), ["a"], output_schema=int, max_retries=1)
    assert result.error is not None  # one retry of each request, one more question for the answer
    assert result.error.kind is ErrorKind.INVALID_OUTPUT
    assert failed == {1, 3}


async def test_a_reply_without_a_final_delta_is_a_broken_connection() -> None:
    class CutOff(ScriptedBackend):
        async def _deltas(self, request: Request):  # type: ignore[no-untyped-def]
            async for delta in super()._deltas(request):
                if len(self.requests) == 1:
                    return
                yield delta

    [result] = await run(CutOff(lambda request: say("whole")), ["a"])
    assert result.text == "whole"


@pytest.mark.parametrize("retry_after", [None, 1.0])
async def test_a_busy_server_gets_a_pause_and_then_fewer_requests(retry_after: float | None) -> None:
    async def answer(request: Request) -> Reply:
        if backend.in_flight > 4:
            raise BackendError(ErrorKind.RATE_LIMITED, "busy", retry_after=retry_after)
        await asyncio.sleep(1)
        return say("done")

    backend = ScriptedBackend(answer, inflight=16)
    results = await run(backend, list(map(str, range(100))))
    assert all(result.ok for result in results)
    assert len(backend.requests) < 1.75 * 100  # some at each limit that is one too many: a single refusal says little


@pytest.mark.parametrize("seed", range(3))
async def test_occasional_server_failures_fail_no_agent_and_cost_little_time(seed: int) -> None:
    chance = random.Random(seed)

    async def answer(request: Request) -> Reply:
        draw = chance.random()
        if draw < 0.05:
            raise BackendError(ErrorKind.SERVER, "boom")
        if draw < 0.1:
            raise BackendError(ErrorKind.RATE_LIMITED, "busy", retry_after=0.1)
        await asyncio.sleep(0.06)
        return say("done")

    log = EventList()
    results = await run(ScriptedBackend(answer), list(map(str, range(1000))), max_inflight=64, events=log)
    assert all(result.ok for result in results)
    assert now() < 0.06 * 1000 / 64 + 1.5
    assert not any(isinstance(event, LimitChanged) for event in log.events)


async def test_refusals_do_not_count_as_failed_attempts() -> None:
    busy, boom = BackendError(ErrorKind.RATE_LIMITED, "busy"), BackendError(ErrorKind.SERVER, "boom")
    script: Iterator[Answer] = iter([busy, busy, busy, boom, busy, boom, busy, boom, say("done")])
    [result] = await run(ScriptedBackend(lambda request: next(script)), ["a"], max_retries=3)
    assert result.ok


async def test_a_retry_after_of_an_hour_is_not_waited_for() -> None:
    backend = failing(10**6, BackendError(ErrorKind.RATE_LIMITED, "come back tomorrow", retry_after=3600.0))
    results = await run(backend, list(map(str, range(20))), max_inflight=4)
    assert all(result.error and result.error.kind is ErrorKind.RATE_LIMITED for result in results)
    assert len(backend.requests) == 20
    assert now() < 60


async def test_no_request_is_sent_before_the_retry_after_of_the_server_has_passed() -> None:
    def answer(request: Request) -> Answer:
        if now() < 30:
            return BackendError(ErrorKind.RATE_LIMITED, "quota", retry_after=30.0)
        return say("done")

    backend = ScriptedBackend(answer)
    results = await run(backend, list(map(str, range(100))), max_inflight=4)
    assert all(result.ok for result in results)
    assert len(backend.requests) <= 100 + 10 + 4
    assert 30 <= now() < 31
