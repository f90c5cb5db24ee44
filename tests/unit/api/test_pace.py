"""Runs against a server that enforces requests and tokens per minute, over HTTP."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from tests.support.redis_server import redis_of_its_own

from batch_agent import BatchAgent, Results
from batch_agent.core.events import Event, Notice, TurnEnded
from batch_agent.sim import RateLimits, SimConfig, SimServer


class Log:
    def __init__(self) -> None:
        self.notices: list[str] = []
        self.turns = 0

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)
        self.turns += isinstance(event, TurnEnded)


def refused(sim: SimServer) -> int:
    metrics = urlopen(f"{sim.url}/metrics", timeout=10).read().decode()
    found = re.search(r"^sim:rate_limited_total\S* (\S+)$", metrics, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.fixture
def service() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, rate_limits=RateLimits(rpm=3000, burst_s=2))) as sim:
        yield sim


def run(*sims: SimServer, scheme: str = "openai", log: Log | None = None, **options: Any) -> Results[str]:
    endpoints = [sim.url.replace("http", scheme, 1) + "/v1" for sim in sims]
    results: Results[str] = BatchAgent.run_sync(
        task="Answer: {text}",
        inputs=[f"question {index}" for index in range(200)],
        backend=endpoints if len(endpoints) > 1 else endpoints[0],
        model="sim",
        max_tokens=8,
        progress=False,
        events=log,
        **options,
    )
    assert sum(result.ok for result in results) == 200
    return results


@pytest.mark.slow
def test_200_agents_keep_to_the_headers_of_a_service_without_a_refusal(service: SimServer) -> None:
    log = Log()
    results = run(service, log=log)
    assert refused(service) == 0
    assert log.notices == ["Requests are paced at 3,000 requests/min (the service's limit)."]
    pace = results.scheduling.pace
    assert pace is not None
    assert (pace.rpm, pace.tpm, pace.is_reported) == (3000, None, True)
    assert pace.delayed > 50


@pytest.mark.slow
def test_streamed_responses_report_limits_too(service: SimServer) -> None:
    assert run(service, streaming=True).scheduling.pace is not None
    assert refused(service) == 0


@pytest.mark.slow
def test_200_agents_keep_to_an_option_without_a_refusal() -> None:
    limits = RateLimits(rpm=3000, burst_s=2, headers=False)
    with SimServer(SimConfig(zero_latency=True, rate_limits=limits)) as sim:
        results = run(sim, scheme="http", rpm=3000)
        assert refused(sim) == 0
        assert results.scheduling.pace is not None
        assert not results.scheduling.pace.is_reported


def test_200_agents_keep_to_tokens_per_minute_without_a_refusal() -> None:
    with SimServer(SimConfig(zero_latency=True, rate_limits=RateLimits(tpm=100_000, burst_s=5))) as sim:
        results = run(sim)
        assert refused(sim) == 0
        assert results.scheduling.pace is not None
        assert results.scheduling.pace.tpm == 100_000


@pytest.mark.slow
def test_each_of_several_endpoints_is_paced_by_its_own_headers() -> None:
    small, large = RateLimits(rpm=600, burst_s=2), RateLimits(rpm=2400, burst_s=2)
    with (
        SimServer(SimConfig(zero_latency=True, rate_limits=small)) as first,
        SimServer(SimConfig(zero_latency=True, rate_limits=large)) as second,
    ):
        log = Log()
        results = run(first, second, log=log)
        assert (refused(first), refused(second)) == (0, 0)
        pace = results.scheduling.pace
        assert pace is not None
        assert (pace.rpm, pace.is_reported) == (3000, True)
        assert pace.delayed > 50


@pytest.mark.slow
async def test_two_workers_with_a_real_redis_together_keep_to_one_limit() -> None:
    """Each has a burst of one second of its part, and a worker may send more in the half second in which it joins."""
    limits = RateLimits(rpm=1800, burst_s=3, headers=False)
    caller, helper = Log(), Log()
    with SimServer(SimConfig(zero_latency=True, rate_limits=limits)) as sim, redis_of_its_own() as redis:
        options: dict[str, Any] = {"task": "Answer: {it}", "backend": sim.url, "model": "sim", "max_tokens": 8}
        options |= {"store": redis.url, "run_id": "paced", "rpm": 1800, "max_agents": 40}
        inputs = [f"question {index}" for index in range(300)]
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(BatchAgent.run(**options, inputs=inputs, progress=False, events=caller))
            group.create_task(BatchAgent.work(**options, events=helper))
        assert sum(result.ok for result in asked.result()) == 300
        assert refused(sim) == 0
    assert helper.turns > 30
    assert caller.turns > 30  # with those of the worker, which it hears of


@pytest.mark.slow
def test_without_headers_and_options_requests_are_not_paced_and_refusals_are_retried() -> None:
    limits = RateLimits(rpm=3000, burst_s=2, headers=False)
    with SimServer(SimConfig(zero_latency=True, rate_limits=limits)) as sim:
        results = run(sim, scheme="http")
        assert refused(sim) > 0
        assert results.scheduling.pace is None
