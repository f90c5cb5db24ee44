"""The lane batch over HTTP: what the simulated provider bills is what the run reports; failures are retried."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batch_agent import BatchAgent, Results, Tool, Traces, read_request_log
from batch_agent.lanes import batch_backend, batch_tracker
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import BatchConfig, Script, SimConfig, SimServer

AGENTS = 8
TURNS = 2


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batch_backend, batch_tracker):
        monkeypatch.setattr(module, "CERTAIN_SECONDS", 0.2)
    monkeypatch.setattr(batch_tracker, "_RETRY", Backoff(0.02, 0.1))
    monkeypatch.setattr(batch_tracker, "_LIMITED", Backoff(0.02, 0.1))
    defaults: Any = batch_backend.BatchBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "polls", Backoff(0.05, 0.2))


@pytest.fixture
def sim() -> Iterator[SimServer]:
    config = SimConfig(zero_latency=True, batches=BatchConfig(seconds=0.1))
    with SimServer(config, Script(tool_turns=TURNS - 1, answer_tokens=8)) as server:
        yield server


@Tool.define(effect="read")
def look_up(key: str) -> str:
    """Looks up a key."""
    return f"value of {key}"


async def run(sim: SimServer, scheme: str, folder: Path, **options: Any) -> Results[str]:
    url = sim.url.replace("http", "anthropic", 1) if scheme == "anthropic" else sim.url
    inputs = [f"item {number}" for number in range(AGENTS)]
    results: Results[str] = await BatchAgent.run(
        task="About {it}",
        inputs=inputs,
        tools=[look_up],
        backend=f"{url}/v1",
        lane="batch",
        checkpoint_dir=folder,
        prices={"sim": (100, 100, 100)},
        backoff=0.01,
        **options,
    )
    return results


each_service = pytest.mark.parametrize("scheme", ["openai", "anthropic"])


@pytest.mark.slow
@each_service
async def test_each_turn_is_billed_once_in_lane_batch(sim: SimServer, scheme: str, tmp_path: Path) -> None:
    results = await run(sim, scheme, tmp_path)
    assert [result.error for result in results] == [None] * AGENTS
    billed, used = sim.billed("batch"), results.usage.of_lane("batch")
    assert billed["requests"] == AGENTS * TURNS
    assert (billed["prompt_tokens"], billed["completion_tokens"]) == (used.input, used.output)
    assert sim.metrics()["sim:batch_submissions_total"] == TURNS


@pytest.mark.slow
@each_service
@pytest.mark.parametrize("fault", ["expired", "errored", "token_limit", "error_after_create", "lost_answer"])
async def test_what_goes_wrong_is_retried_and_no_answer_is_billed_twice(
    sim: SimServer, scheme: str, fault: str, tmp_path: Path
) -> None:
    sim.arm(fault)
    results = await run(sim, scheme, tmp_path)
    assert [result.error for result in results] == [None] * AGENTS
    assert sim.billed("batch")["requests"] == AGENTS * TURNS


async def test_results_that_the_provider_has_lost_are_requested_again(sim: SimServer, tmp_path: Path) -> None:
    sim.arm("lost_file")
    results = await run(sim, "openai", tmp_path)
    assert [result.error for result in results] == [None] * AGENTS
    assert sim.billed("batch")["requests"] == AGENTS * (TURNS + 1)


async def test_the_key_of_the_provider_is_masked_in_the_log_and_in_spans(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, log = "sk-very-secret-0123456789", tmp_path / "requests.jsonl"
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    events = [Traces(provider, content=True)]
    options: dict[str, Any] = {"log_requests": log, "events": events, "system_prompt": f"Never say {key}."}
    results = await run(sim, "anthropic", tmp_path / "run", **options)
    assert all(result.ok for result in results)
    spans = "".join(span.to_json() for span in memory.get_finished_spans())
    for shown in (log.read_text(), spans):
        assert "Never say ***." in shown
        assert key not in shown


async def test_the_log_of_requests_has_the_lines_of_batches(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    results = await run(sim, "openai", tmp_path / "run", log_requests=log)
    lines = [line for line in read_request_log(log) if line["index"] is not None]  # not the trial of tools
    assert len(lines) == AGENTS * TURNS
    assert {line["status"] for line in lines} == {200}
    assert all(line["body"]["messages"] for line in lines)
    assert all(line["response"]["choices"] for line in lines)
    assert all(result.ok for result in results)
