"""A simulated engine for the tests of this folder."""

from collections.abc import Iterator

import pytest

from batch_agent.sim import Script, SimConfig, SimServer


@pytest.fixture(scope="session")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as server:
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY", "SGLANG_API_KEY", "DYNAMO_API_KEY"):
        monkeypatch.delenv(name, raising=False)
