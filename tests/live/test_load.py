"""What real engines say of their load and their room."""

import asyncio

from scripts.engines.layout import MODEL_NAME

from batch_agent.backends.connect import connect
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import Request, Sampling

KV_BYTES = 2**30
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4
"""Keys and values, layers, heads, their width, float32."""
BLOCK = 32
ANSWER = 24


async def test_load_and_kv_capacity_of_vllm_are_read_while_it_works(vllm_url: str) -> None:
    backend = await connect(vllm_url, None, uses_tools=False, notify=lambda text: None)
    assert isinstance(backend, HttpBackend)
    try:
        assert backend.traits.kv_tokens == KV_BYTES // (TOKEN_BYTES * BLOCK) * BLOCK
        before = await _load(backend)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(_ask(backend, number)) for number in range(80)]
            busiest = before
            while not all(task.done() for task in asking):
                busiest = max(busiest, await _load(backend), key=lambda load: (load.running, load.waiting))
                await asyncio.sleep(0.1)
        assert 1 < busiest.running <= 64, busiest
        assert busiest.waiting > 0, busiest
        assert busiest.kv_usage is not None
        assert 0 < busiest.kv_usage <= 1
        after = await _load(backend)
        assert after.computed - before.computed >= 80 * ANSWER
        assert after.preemptions >= before.preemptions
    finally:
        await backend.aclose()


async def _load(backend: HttpBackend) -> ServerLoad:
    load = await backend.load()
    assert load is not None
    return load


async def _ask(backend: HttpBackend, number: int) -> None:
    sampling = Sampling(max_tokens=ANSWER, temperature=0.0, extra={"ignore_eos": True})
    async with backend.stream(Request(Prompt(""), (User(f"Count to {number}."),), MODEL_NAME, sampling)) as deltas:
        async for _ in deltas:
            pass
