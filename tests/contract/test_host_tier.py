"""A run learns the size of a server's host tier over HTTP, from the counters that vLLM has."""

import asyncio

import pytest

from batch_agent import BatchAgent, Tool
from batch_agent.sim import Script, SimConfig, SimServer

INPUTS = [f"lorem ipsum {number} " * 200 for number in range(24)]


@Tool.define(effect="read")
async def look(key: str) -> str:
    """Look a key up."""
    await asyncio.sleep(0.05)
    return f"the value of {key}"


@pytest.mark.slow
@pytest.mark.parametrize(("host_blocks", "capacity"), [(0, 8_000), (200, 8_000), (4_000, 64_000)])
def test_the_capacity_of_a_run_is_that_of_the_larger_tier(host_blocks: int, capacity: int) -> None:
    config = SimConfig(
        num_blocks=500, host_blocks=host_blocks, step_base_ms=1, prefill_us_per_token=20, step_ns_per_kv_token=0
    )
    with SimServer(config, Script(tool_turns=2)) as sim:
        results = BatchAgent.run_sync(
            task="Look up {text}", inputs=INPUTS, tools=[look], backend=sim.url, model="sim", progress=False
        )
    assert all(result.ok for result in results)
    assert results.scheduling.kv_tokens == capacity
    assert results.scheduling.max_residents is not None
    if capacity > 8_000:
        assert results.scheduling.max_residents > 8
