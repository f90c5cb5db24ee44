"""Agents that keep to limits per minute of a service, in virtual time."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine_harness import now
from tests.support.event_list import EventList

from batch_agent import BackendError, BatchAgent, ErrorKind, Results
from batch_agent.backends.http.rate_limit_headers import read_rate_limits
from batch_agent.core.events import Notice
from batch_agent.core.protocols.backend import PaceKind, ServiceLimit
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.sim import RateLimits
from batch_agent.sim.routes import RateLimiter
from batch_agent.testing import ScriptedBackend, run_virtual, say

PROMPT, ANSWER = 400, 100


async def run(backend: ScriptedBackend, inputs: list[str], **options: Any) -> Results[str]:
    results: Results[str] = await BatchAgent.run(task="{it}", inputs=inputs, backend=backend, **options)
    return results


class Service:
    """Refuses requests beyond a number of requests or tokens per minute, counted in a sliding window."""

    def __init__(self, rpm: int = 10**9, tpm: int = 10**9, failures: int = 0) -> None:
        self.rpm, self.tpm, self.failures = rpm, tpm, failures
        self.arrivals: list[float] = []
        self.refused = 0

    async def answer(self, request: Request) -> Reply:
        window = sum(each > now() - 59.99 for each in self.arrivals)
        if window + 1 > self.rpm or (window + 1) * (PROMPT + ANSWER) > self.tpm:
            self.refused += 1
            raise BackendError(ErrorKind.RATE_LIMITED, "slow down", retry_after=1.0, status=429)
        self.arrivals.append(now())
        await asyncio.sleep(0.5)
        if self.failures:
            self.failures -= 1
            raise BackendError(ErrorKind.SERVER, "failed", status=500)
        reply = say("done")
        return Reply(reply.text, reply.finish, Usage(PROMPT, 0, ANSWER))


async def agents(service: Service, count: int, **options: int) -> EventList:
    log = EventList()
    backend = ScriptedBackend(service.answer, inflight=32)
    results = await run(backend, ["x" * 4 * PROMPT] * count, events=log, **options)
    assert all(result.ok for result in results)
    assert results.scheduling.pace is not None
    return log


def test_agents_keep_to_the_options_without_a_refusal() -> None:
    async def main() -> None:
        service = Service(rpm=120)
        log = await agents(service, 200, rpm=120)
        assert service.refused == 0
        assert 95 < now() < 105  # at best 200 / 120 minutes
        assert [each for each in log.events if isinstance(each, Notice)] == [
            Notice("Requests are paced at 120 requests/min (as set).")
        ]

    run_virtual(main())


def test_agents_keep_to_tokens_per_minute_without_a_refusal() -> None:
    async def main() -> None:
        service = Service(tpm=60_000)
        await agents(service, 200, tpm=57_000)
        assert service.refused == 0
        assert 100 < now() < 1.1 * 200 * (PROMPT + ANSWER) / 57_000 * 60

    run_virtual(main())


def test_retries_count() -> None:
    async def main() -> None:
        service = Service(rpm=60, failures=5)
        await agents(service, 40, rpm=60)
        assert service.refused == 0
        assert len(service.arrivals) == 45

    run_virtual(main())


def test_the_warm_up_of_the_prefix_counts() -> None:
    async def main() -> None:
        service = Service(rpm=60)
        log = EventList()
        backend = ScriptedBackend(service.answer, inflight=32)
        results = await run(backend, ["x"] * 5, events=log, rpm=60, warm_prefix=True)
        assert all(result.ok for result in results)
        assert len(service.arrivals) == 6
        assert all(after - before > 0.9 for before, after in itertools.pairwise(service.arrivals))

    run_virtual(main())


def test_one_slot_is_enough_for_a_paced_warm_up() -> None:
    async def main() -> None:
        service = Service()
        backend = ScriptedBackend(service.answer)
        results = await run(backend, ["x"] * 3, rpm=60, max_inflight=1, warm_prefix=True)
        assert all(result.ok for result in results)
        assert backend.most_in_flight == 1

    run_virtual(main())


def test_a_run_without_limits_is_not_paced() -> None:
    async def main() -> None:
        service = Service()
        results = await run(ScriptedBackend(service.answer, inflight=32), list(map(str, range(64))))
        assert now() < 2.0
        assert results.scheduling.pace is None

    run_virtual(main())


class ReportingBackend(ScriptedBackend):
    """Service with the simulator's limits, which reports them as OpenAI does."""

    def __init__(self, limits: RateLimits, seconds: float = 0.5) -> None:
        super().__init__(self._answer, inflight=32)
        self.traits = replace(self.traits, reports_rate_limits=True)
        self.limiter = RateLimiter(limits, 0.0)
        self._seconds = seconds
        self._observers: list[Callable[[Mapping[PaceKind, ServiceLimit]], None]] = []

    def observe_rate_limits(self, observer: Callable[[Mapping[PaceKind, ServiceLimit]], None]) -> Callable[[], None]:
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    async def _answer(self, request: Request) -> Reply:
        retry_after = self.limiter.retry_after(PROMPT + ANSWER, now())
        headers = self.limiter.headers()
        await asyncio.sleep(self._seconds)
        for observer in self._observers:
            observer(read_rate_limits(headers))
        if retry_after is not None:
            raise BackendError(ErrorKind.RATE_LIMITED, "slow down", retry_after=retry_after, status=429)
        return Reply("done", "stop", Usage(PROMPT, 0, ANSWER))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 2.0, 20.0])
@pytest.mark.parametrize(
    "limits",
    [
        RateLimits(rpm=120),
        RateLimits(rpm=500, burst_s=5),
        RateLimits(tpm=50_000),
        RateLimits(rpm=100, tpm=30_000),
        RateLimits(rpm=10),
    ],
    ids=str,
)
def test_200_agents_that_read_the_limits_of_a_service_are_never_refused(limits: RateLimits, seconds: float) -> None:
    async def main() -> None:
        backend = ReportingBackend(limits, seconds)
        results = await run(backend, ["x" * 4 * PROMPT] * 200, timeout_per_turn=None, timeout_per_agent=None)
        assert all(result.ok for result in results)
        assert backend.limiter.refused == 0
        per_minute = min(limits.rpm or 10**9, (limits.tpm or 10**9) / (PROMPT + ANSWER))
        in_flight = 200 / 32 * seconds if seconds > 2 else 0.0
        assert now() < 1.1 * 200 / per_minute * 60 + 10 * seconds + in_flight
        assert results.scheduling.pace is not None
        assert results.scheduling.pace.is_reported

    run_virtual(main())


def test_a_service_that_others_use_too_gets_time_to_recover() -> None:
    async def main() -> None:
        backend = ReportingBackend(RateLimits(rpm=300))

        async def other() -> None:
            for _ in range(400):
                backend.limiter.retry_after(0, now())
                await asyncio.sleep(0.4)  # half of the limit

        async with asyncio.TaskGroup() as group:
            task = group.create_task(other())
            results = await run(backend, ["x"] * 400)
            task.cancel()
        assert all(result.ok for result in results)
        assert backend.limiter.refused == 0

    run_virtual(main())
