"""What a real SGLang says of its load and its room."""

import asyncio

from scripts.engines.layout import MODEL_NAME

from batch_agent.backends.connect import connect
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.core.requests import Request, Sampling

ROOM = 8_192
ANSWER = 32


async def test_load_and_kv_capacity_of_sglang_are_read_while_it_works(sglang_url: str) -> None:
    backend = await connect(f"sglang://{sglang_url.removeprefix('http://')}", None, uses_tools=False, notify=print)
    assert isinstance(backend, HttpBackend)
    try:
        assert backend.traits.kv_tokens == ROOM
        assert await backend.count_tokens("one two three") == 3
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(_ask(backend, number)) for number in range(24)]
            busiest = ServerLoad()
            while not all(task.done() for task in asking):
                seen = await backend.load()
                busiest = max(busiest, seen or ServerLoad(), key=lambda load: (load.running, load.waiting))
                await asyncio.sleep(0.1)
        assert busiest.running > 0, busiest
        assert busiest.kv_usage is not None
        assert 0 < busiest.kv_usage <= 1
    finally:
        await backend.aclose()


async def _ask(backend: HttpBackend, number: int) -> None:
    sampling = Sampling(max_tokens=ANSWER, temperature=0.0, extra={"ignore_eos": True})
    async with backend.stream(Request(Prompt(""), (User(f"Count to {number}."),), MODEL_NAME, sampling)) as deltas:
        async for _ in deltas:
            pass
