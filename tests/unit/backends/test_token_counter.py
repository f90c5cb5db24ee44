"""How many tokens a text is, as each kind of server says it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server

from batch_agent.backends.connect import connect
from batch_agent.core.protocols.backend import Backend, CountsTokens
from batch_agent.sim import SimServer


@asynccontextmanager
async def server_of(owner: str, status: int = 200, says: Any = None) -> AsyncIterator[RawServer]:
    """A server that answers at /tokenize, and nowhere else beside its API."""

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/models":
            await line.reply(200, orjson.dumps({"data": [{"id": "m", "owned_by": owner}]}))
        elif request.path == "/tokenize":
            await line.reply(status, says if isinstance(says, bytes) else orjson.dumps(says))
        else:
            await line.reply(404, b"{}")

    async with raw_server(answer) as server:
        yield server


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Backend]:
    backend = await connect(url, None, uses_tools=False, notify=lambda text: None)
    try:
        yield backend
    finally:
        await backend.aclose()


async def count(url: str, text: str) -> int | None:
    async with connected(url) as backend:
        assert isinstance(backend, CountsTokens)
        return await backend.count_tokens(text)


@pytest.mark.parametrize(
    ("owner", "says", "body"),
    [
        ("vllm", {"count": 3, "max_model_len": 8, "tokens": [1, 2, 3]}, {"model": "m", "prompt": "some text"}),
        ("sglang", {"count": 3, "tokens": [1, 2, 3]}, {"model": "m", "prompt": "some text"}),
        ("llamacpp", {"tokens": [1, 2, 3]}, {"content": "some text"}),
    ],
)
async def test_each_server_gets_its_own_tokenize_request(
    owner: str, says: dict[str, Any], body: dict[str, str]
) -> None:
    async with server_of(owner, says=says) as server:
        assert await count(server.url, "some text") == 3
    [request] = [request for request in server.requests if request.path == "/tokenize"]
    assert orjson.loads(request.body) == body


@pytest.mark.parametrize(
    ("status", "says"),
    [(404, {}), (500, {"count": 3}), (200, b"<html>"), (200, {"count": "3"}), (200, {"tokens": "abc"}), (200, [1, 2])],
)
async def test_a_server_that_does_not_count_tokens_is_not_an_error(status: int, says: Any) -> None:
    async with server_of("llamacpp", status, says) as server:
        assert await count(server.url, "some text") is None


async def test_a_flavor_without_a_tokenizer_page_gets_no_request() -> None:
    async with server_of("somebody", says={"count": 3}) as server:
        assert await count(server.url, "some text") is None
    assert all(request.path != "/tokenize" for request in server.requests)


async def test_the_simulated_engine_counts(sim: SimServer) -> None:
    assert await count(sim.url, "x" * 400) == 100
