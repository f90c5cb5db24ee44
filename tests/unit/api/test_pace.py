"""Runs against a server that enforces requests and tokens per minute, over HTTP."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from batch_agent import BatchAgent, Results
from batch_agent.core.events import Event, Notice
from batch_agent.sim import RateLimits, SimConfig, SimServer


class Log:
    def __init__(self) -> None:
        self.notices: list[str] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)


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


def run(sim: SimServer, scheme: str = "openai", log: Log | None = None, **options: Any) -> Results[str]:
    results: Results[str] = BatchAgent.run_sync(
        task="Answer: {text}",
        inputs=[f"question {index}" for index in range(200)],
        backend=sim.url.replace("http", scheme, 1) + "/v1",
        model="sim",
        max_tokens=8,
        progress=False,
        events=log,
        **options,
    )
    assert sum(result.ok for result in results) == 200
    return results


def test_200_agents_keep_to_the_headers_of_a_service_without_a_refusal(service: SimServer) -> None:
    log = Log()
    results = run(service, log=log)
    assert refused(service) == 0
    assert log.notices == ["Requests are paced at 3,000 requests/min (the service's limit)."]
    pace = results.scheduling.pace
    assert pace is not None
    assert (pace.rpm, pace.tpm, pace.is_reported) == (3000, None, True)
    assert pace.delayed > 50


def test_streamed_responses_report_limits_too(service: SimServer) -> None:
    assert run(service, streaming=True).scheduling.pace is not None
    assert refused(service) == 0


def test_200_agents_keep_to_an_option_without_a_refusal() -> None:
    limits = RateLimits(rpm=3000, burst_s=2, headers=False)
    with SimServer(SimConfig(zero_latency=True, rate_limits=limits)) as sim:
        results = run(sim, "http", rpm=3000)
        assert refused(sim) == 0
        assert results.scheduling.pace is not None
        assert not results.scheduling.pace.is_reported


def test_200_agents_keep_to_tokens_per_minute_without_a_refusal() -> None:
    with SimServer(SimConfig(zero_latency=True, rate_limits=RateLimits(tpm=100_000, burst_s=5))) as sim:
        results = run(sim)
        assert refused(sim) == 0
        assert results.scheduling.pace is not None
        assert results.scheduling.pace.tpm == 100_000


def test_without_headers_and_options_requests_are_not_paced_and_refusals_are_retried() -> None:
    limits = RateLimits(rpm=3000, burst_s=2, headers=False)
    with SimServer(SimConfig(zero_latency=True, rate_limits=limits)) as sim:
        results = run(sim, "http")
        assert refused(sim) > 0
        assert results.scheduling.pace is None
