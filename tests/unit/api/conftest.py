"""A simulated engine for the tests of this folder."""

from collections.abc import Iterator

import pytest

from batch_agent.sim import Script, SimConfig, SimServer


@pytest.fixture(scope="session")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as server:
        yield server
