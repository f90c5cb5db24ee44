"""Agents that keep to limits per minute of a service, in virtual time."""

import asyncio

from tests.support.engine_harness import EventLog, now, run

from batch_agent import BackendError, ErrorKind
from batch_agent.core.events import Notice
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import ScriptedBackend, run_virtual, say

PROMPT, ANSWER = 400, 100


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


async def agents(service: Service, count: int, **options: int) -> EventLog:
    log = EventLog()
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


def test_a_run_without_limits_is_not_paced() -> None:
    async def main() -> None:
        service = Service()
        results = await run(ScriptedBackend(service.answer, inflight=32), list(map(str, range(64))))
        assert now() < 2.0
        assert results.scheduling.pace is None

    run_virtual(main())
