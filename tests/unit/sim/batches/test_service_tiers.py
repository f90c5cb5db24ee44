"""Service tiers: what was asked for is echoed, billed by lane, and refused where there is no capacity."""

import openai
import pytest
from openai import OpenAI

from batch_agent.sim import FaultRates, SimConfig, SimServer


def ask(client: OpenAI, tier: str | None) -> str | None:
    messages = [{"role": "user", "content": "hello"}]
    extra = {"service_tier": tier} if tier else {}
    return client.chat.completions.create(model="sim", messages=messages, max_tokens=4, **extra).service_tier  # type: ignore[call-overload, no-any-return]


def test_the_tier_of_a_response_is_that_of_the_request(client: OpenAI) -> None:
    assert [ask(client, tier) for tier in (None, "flex", "priority", "auto", "default")] == [
        None,
        "flex",
        "priority",
        "default",
        "default",
    ]
    with pytest.raises(openai.BadRequestError, match="service_tier"):
        ask(client, "free")


def test_a_stream_names_its_tier(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hello"}], service_tier="flex", stream=True, max_tokens=4
    )
    assert {chunk.service_tier for chunk in stream} == {"flex"}


def test_lanes_are_billed_apart(client: OpenAI, sim: SimServer) -> None:
    for tier in (None, "flex", "flex"):
        ask(client, tier)
    assert sim.billed("standard") == {"requests": 1, "prompt_tokens": 9, "completion_tokens": 4}
    assert sim.billed("flex") == {"requests": 2, "prompt_tokens": 18, "completion_tokens": 8}


def test_a_flex_request_without_capacity_is_refused_and_not_billed(client: OpenAI, sim: SimServer) -> None:
    sim.arm("flex_unavailable", times=2)
    assert ask(client, None) is None
    for _ in range(2):
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client, "flex")
        assert refused.value.code == "resource_unavailable"
    assert ask(client, "flex") == "flex"
    assert sim.billed("flex")["requests"] == 1


def test_a_share_of_the_flex_requests_is_refused() -> None:
    config = SimConfig(zero_latency=True, faults=FaultRates(flex_unavailable=0.5))
    with SimServer(config) as sim, OpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        refused = 0
        for _ in range(40):
            try:
                ask(client, "flex")
            except openai.RateLimitError:
                refused += 1
        assert 10 <= refused <= 30
        assert sim.billed("flex")["requests"] == 40 - refused
    with pytest.raises(ValueError, match="flex_unavailable"):
        FaultRates(flex_unavailable=2)
