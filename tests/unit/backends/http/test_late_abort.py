"""Requests to servers whose engine dies if one is aborted before its first token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server
from yarl import URL

from batch_agent import BackendError
from batch_agent.backends.connect import connect
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.late_abort import LateAborts
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, Request, Sampling, TextDelta

TRAITS = Traits("test", "m", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=4)
STREAMED = Request(Prompt(""), (User("Hi"),), "m", Sampling(), stream=True)
TEXT = {"choices": [{"delta": {"content": "Hello"}}]}
STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


@dataclass
class Prefill:
    """Server that computes a prompt until it is told that this has ended."""

    status: int = 200
    received: asyncio.Event = field(default_factory=asyncio.Event)
    computed: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    died: bool = False

    async def answer(self, request: RawRequest, line: Line) -> None:
        self.received.set()
        watch = asyncio.create_task(line.gone())
        computed = asyncio.create_task(self.computed.wait())
        try:
            await asyncio.wait({watch, computed}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            self.died = watch.done()
            if self.status != 200:
                await line.reply(self.status, b"{}")
                return
            await line.open_stream()
            await line.event(TEXT)
            await asyncio.wait({watch}, timeout=60)
            self.gone.set()
        finally:
            watch.cancel()
            computed.cancel()


@asynccontextmanager
async def backend_of(server: RawServer) -> AsyncIterator[HttpBackend]:
    root = URL(server.url) / "v1"
    client = ServerClient(open_transport(root, {}, keep_alive=True), root)
    backend = HttpBackend(client, OpenAIChat(), TRAITS, late_aborts=LateAborts())
    try:
        yield backend
    finally:
        await backend.aclose()


async def ask(backend: HttpBackend) -> list[Delta]:
    async with asyncio.timeout(60), backend.stream(STREAMED) as deltas:
        return [delta async for delta in deltas]


async def test_a_cancelled_request_is_aborted_after_its_first_token_and_its_caller_at_once() -> None:
    prefill = Prefill()
    async with raw_server(prefill.answer) as server, backend_of(server) as backend:
        asking = asyncio.create_task(ask(backend))
        await prefill.received.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not prefill.died
        prefill.computed.set()
        async with asyncio.timeout(60):
            await prefill.gone.wait()
    assert not prefill.died


async def test_closing_the_backend_waits_for_the_first_tokens_of_abandoned_requests() -> None:
    prefill = Prefill()
    async with raw_server(prefill.answer) as server:
        async with backend_of(server) as backend:
            asking = asyncio.create_task(ask(backend))
            await prefill.received.wait()
            asking.cancel()
            await asyncio.wait({asking})
            asyncio.get_running_loop().call_soon(prefill.computed.set)
        async with asyncio.timeout(60):
            await prefill.gone.wait()
    assert not prefill.died


async def test_an_abandoned_request_that_fails_disturbs_nobody() -> None:
    prefill = Prefill(status=500)
    async with raw_server(prefill.answer) as server, backend_of(server) as backend:
        asking = asyncio.create_task(ask(backend))
        await prefill.received.wait()
        asking.cancel()
        await asyncio.wait({asking})
        prefill.computed.set()
    assert not prefill.died


async def test_deltas_and_errors_are_those_of_the_request() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) > 1:
            await line.reply(400, b"no")
            return
        await line.open_stream()
        for event in (TEXT, TEXT, STOP, b"[DONE]"):
            await line.event(event)
        await line.end_stream()

    async with raw_server(answer) as server, backend_of(server) as backend:
        texts = [delta.text for delta in await ask(backend) if isinstance(delta, TextDelta)]
        assert "".join(texts) == "HelloHello"
        with pytest.raises(BackendError, match="400"):
            await ask(backend)


@pytest.mark.parametrize(("version", "is_late"), [("0.26.0", True), ("0.32.0", False)])
async def test_only_servers_with_the_fault_are_treated_like_this(version: str, is_late: bool) -> None:
    tier = b'vllm:cache_config_info{block_size="16",kv_offloading_size="16.0",num_gpu_blocks="100",engine="0"} 1.0\n'
    pages = {
        "/v1/models": orjson.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}),
        "/metrics": b"# TYPE vllm:kv_offload_total_bytes counter\n" + tier,
        "/version": orjson.dumps({"version": version}),
    }

    async def answer(request: RawRequest, line: Line) -> None:
        page = pages.get(request.path)
        await line.reply(404 if page is None else 200, page or b"")

    async with raw_server(answer) as server:
        backend = await connect(server.url, "m", uses_tools=False, notify=print)
        try:
            stream = backend.stream(replace(STREAMED, agent="a"))
            assert (type(stream).__name__ == "LateAbortRequest") == is_late
        finally:
            await backend.aclose()
