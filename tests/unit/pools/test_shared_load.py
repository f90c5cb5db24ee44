"""A run and a pool in one process share the capacity of an endpoint."""

import asyncio
from typing import Any

from tests.support.sim_hosts import CHAT, COMPLETIONS, Host, up

from batch_agent import BatchAgent, VLLMPool
from batch_agent.backends.endpoints.endpoint_loads import addresses_of, endpoint_loads
from batch_agent.sim import SimConfig
from batch_agent.sim.http import ClientConnection

SLOW = SimConfig(step_base_ms=3, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0)
LIMIT = 8


class Gauge:
    """Requests in flight of the run and the pool, at each request that arrives."""

    def __init__(self, host: Host) -> None:
        self.samples: list[dict[str, int]] = []
        self._address = addresses_of(f"vllm://{host.address}")[0]
        host.odd = self._sample

    def _sample(self, path: str, body: Any, connection: ClientConnection) -> bool:
        if path in (CHAT, COMPLETIONS):
            clients = endpoint_loads().clients_at(self._address)
            self.samples.append({client.kind: client.in_flight_at(self._address) for client in clients})
        return False

    @property
    def most(self) -> int:
        return max(sum(sample.values()) for sample in self.samples)

    @property
    def smaller_parts(self) -> list[int]:
        """Of the samples while both have requests in flight, the smaller of the two."""
        return [min(sample.values()) for sample in self.samples if len(sample) == 2 and all(sample.values())]


def prompts(count: int) -> list[str]:
    return [f'[[sim: {{"tokens": 12}}]] {number}' for number in range(count)]


async def run_of(host: Host, count: int, max_inflight: int = LIMIT) -> int:
    results = await BatchAgent.run(
        task="{it}",
        inputs=[{"it": each} for each in prompts(count)],
        backend=f"vllm://{host.address}",
        max_inflight=max_inflight,
        progress=False,
    )
    return sum(result.ok for result in results)


async def pool_call(pool: VLLMPool, count: int) -> int:
    return sum(response.success for response in await pool.send_all_batched(prompts(count)))


async def test_a_run_and_a_pool_stay_within_one_limit_and_each_gets_a_fair_part() -> None:
    host = Host(SLOW)
    async with up(host):
        gauge = Gauge(host)
        async with VLLMPool([host.address], prompts_per_endpoint=LIMIT) as pool:
            assert tuple(await asyncio.gather(run_of(host, 120), pool_call(pool, 120))) == (120, 120)
    assert gauge.most <= LIMIT
    assert max(gauge.smaller_parts) >= LIMIT // 2 - 1


async def test_a_run_that_starts_while_a_pool_uses_everything_gets_its_part() -> None:
    host = Host(SLOW)
    async with up(host):
        gauge = Gauge(host)
        async with VLLMPool([host.address], prompts_per_endpoint=LIMIT) as pool, asyncio.TaskGroup() as group:
            call = group.create_task(pool_call(pool, 300))
            while not gauge.samples:
                await asyncio.sleep(0.005)
            assert await run_of(host, 40) == 40
            assert not call.done()
    assert call.result() == 300
    assert gauge.most <= LIMIT
    assert max(gauge.smaller_parts) >= LIMIT // 2 - 1


async def test_an_idle_pool_leaves_a_run_its_whole_limit() -> None:
    host = Host(SLOW)
    async with up(host):
        gauge = Gauge(host)
        async with VLLMPool([host.address], prompts_per_endpoint=LIMIT):
            assert await run_of(host, 60) == 60
    assert gauge.most == LIMIT


async def test_a_small_run_keeps_its_limit_alongside_a_large_pool() -> None:
    host = Host(SLOW)
    async with up(host):
        gauge = Gauge(host)
        async with VLLMPool([host.address], prompts_per_endpoint=40) as pool:
            assert tuple(await asyncio.gather(run_of(host, 60, max_inflight=4), pool_call(pool, 400))) == (60, 400)
    assert gauge.most <= 40
    assert max(sample.get("run", 0) for sample in gauge.samples) == 4


async def test_endpoints_are_forgotten_when_the_run_and_the_pool_end() -> None:
    host = Host()
    async with up(host):
        async with VLLMPool([host.address]) as pool:
            await asyncio.gather(run_of(host, 3), pool_call(pool, 3))
        assert not endpoint_loads().clients_at(addresses_of(f"vllm://{host.address}")[0])
