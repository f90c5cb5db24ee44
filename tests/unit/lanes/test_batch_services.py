"""What both batch services keep to, over real HTTP with the simulated provider."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from hashlib import blake2b

import orjson
import pytest
from yarl import URL

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
from batch_agent.backends.dialects.openai.encoder import PATH, OpenAIChat
from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.store import Submission, SubmittedLine
from batch_agent.core.requests import Request, Sampling
from batch_agent.lanes.anthropic_batch_service import AnthropicBatchService
from batch_agent.lanes.batch_service import Answered, BatchLine, BatchService, BatchStatus, LineFailed, LineResult
from batch_agent.lanes.batch_tracker import line_id
from batch_agent.lanes.openai_batch_service import OpenAIBatchService, encode_lines, read_result_line
from batch_agent.schedule.retry import is_overload_refusal
from batch_agent.sim import BatchConfig, SimConfig, SimServer

SECONDS = 1000.0
WAVE = "0123456789abcdef"


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, batches=BatchConfig(seconds=SECONDS))) as sim:
        yield sim


@pytest.fixture
def sim(server: SimServer) -> Iterator[SimServer]:
    yield server
    server._request("DELETE", "/sim/faults")


def key_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Provider:
    """A service, and the lines that it takes."""

    def __init__(self, name: str, server: ServerClient) -> None:
        self.name = name
        is_openai = name == "openai"
        self.service: BatchService = OpenAIBatchService(server, PATH) if is_openai else AnthropicBatchService(server)
        self.dialect = OpenAIChat() if is_openai else AnthropicMessages()
        self._texts: dict[str, str] = {}

    def line(self, text: str, wave: str = WAVE) -> BatchLine:
        request = Request(Prompt("", ()), (User(text),), "sim", Sampling(max_tokens=8))
        self._texts[key_of(text)] = text
        return BatchLine(line_id(wave, key_of(text)), self.dialect.encode(request))

    async def submit(self, *texts: str, wave: str = WAVE) -> BatchStatus:
        lines = [self.line(text, wave) for text in texts]
        return await self.service.create(wave, await self.service.upload(lines), lines)

    async def results(self, status: BatchStatus) -> dict[str, LineResult]:
        found = {}
        async for result in self.service.results(await self.service.status(status.id)):
            found[self._texts[result.id.rpartition("-")[2]]] = result
        return found


@pytest.fixture(params=["openai", "anthropic"])
async def provider(request: pytest.FixtureRequest, sim: SimServer) -> AsyncIterator[Provider]:
    async with AsyncExitStack() as stack:
        root = URL(f"{sim.url}/v1")
        headers = {"anthropic-version": "2023-06-01"} if request.param == "anthropic" else {}
        client = ServerClient(open_transport(root, headers), root)
        stack.push_async_callback(client.aclose)
        yield Provider(request.param, client)


def submission(*texts: str, wave: str = WAVE) -> Submission:
    return Submission(wave, time.time(), tuple(SubmittedLine(key_of(text)) for text in texts))


def ids(*texts: str, wave: str = WAVE) -> frozenset[str]:
    return frozenset(line_id(wave, key_of(text)) for text in texts)


async def test_a_batch_is_worked_off_and_each_line_has_its_answer(provider: Provider, sim: SimServer) -> None:
    status = await provider.submit("one", "two", "dréi")
    assert status.state == "waiting"
    sim.advance(SECONDS / 2)
    status = await provider.service.status(status.id)
    assert (status.state, status.total) == ("waiting", 3)
    sim.advance(SECONDS)
    status = await provider.service.status(status.id)
    assert (status.state, status.total, status.done) == ("ended", 3, 3)
    results = await provider.results(status)
    assert sorted(results) == ["dréi", "one", "two"]
    for result in results.values():
        assert isinstance(result, Answered)
        deltas = provider.dialect.decode_reply(result.body, "batch")
        assert deltas[-1].usage.lane == "batch"  # type: ignore[union-attr]


async def test_a_line_that_fails_fails_alone_and_is_not_billed(provider: Provider, sim: SimServer) -> None:
    before = sim.billed("batch")["requests"]
    status = await provider.submit("good", '[[sim: {"fault": "500"}]]')
    sim.advance(2 * SECONDS)
    results = await provider.results(status)
    failed = results['[[sim: {"fault": "500"}]]']
    assert isinstance(results["good"], Answered)
    assert isinstance(failed, LineFailed)
    assert failed.error.retryable
    assert not failed.error.may_be_billed
    assert sim.billed("batch")["requests"] == before + 1


async def test_lines_of_an_expired_batch_that_were_not_processed_may_be_retried(
    provider: Provider, sim: SimServer
) -> None:
    sim.arm("expired", share=0.5)
    status = await provider.submit("a", "b", "c", "d")
    sim.advance(30 * 3600)
    assert (await provider.service.status(status.id)).state == "ended"
    results = await provider.results(status)
    expired = [result for result in results.values() if isinstance(result, LineFailed)]
    assert len(expired) == 2
    for result in expired:
        assert result.error.retryable
        assert not result.error.may_be_billed


async def test_a_batch_whose_answer_was_lost_is_found(provider: Provider, sim: SimServer) -> None:
    for fault in ("error_after_create", "lost_answer"):
        sim.arm(fault)
        wave = f"{fault[:8]:x<16}".replace("_", "x")
        with pytest.raises(BackendError) as raised:
            await provider.submit("a", fault, wave=wave)
        assert raised.value.kind in (ErrorKind.SERVER, ErrorKind.CONNECTION)
        await provider.submit("another", "of the same size", wave="b" * 16)
        sim.advance(2 * SECONDS)
        own = [
            status
            for status in await provider.service.find(submission("a", fault, wave=wave))
            if await provider.service.owns(status, ids("a", fault, wave=wave))
        ]
        assert len(own) == 1
        assert set(await provider.results(own[0])) == {"a", fault}


async def test_a_batch_that_was_not_created_is_not_found(provider: Provider, sim: SimServer) -> None:
    await provider.submit("something", "else", wave="c" * 16)
    sim.advance(2 * SECONDS)
    absent = submission("x", "y", wave="d" * 16)
    found = await provider.service.find(absent)
    assert not [each for each in found if await provider.service.owns(each, ids("x", "y", wave="d" * 16))]


async def test_lost_results_are_a_404(provider: Provider, sim: SimServer) -> None:
    sim.arm("lost_file")
    status = await provider.submit("a")
    sim.advance(2 * SECONDS)
    with pytest.raises(BackendError) as raised:
        await provider.results(status)
    assert raised.value.kind is ErrorKind.NOT_FOUND


async def test_too_many_enqueued_tokens_are_told_apart_from_other_failures(provider: Provider, sim: SimServer) -> None:
    sim.arm("token_limit")
    if provider.name == "anthropic":
        with pytest.raises(BackendError) as raised:
            await provider.submit("a")
        assert raised.value.kind is ErrorKind.RATE_LIMITED
        return
    status = await provider.submit("a")
    status = await provider.service.status(status.id)
    assert (status.state, status.is_over_limit) == ("failed", True)
    assert status.error is not None
    assert "Limit:" in str(status.error)


@pytest.mark.parametrize("provider", ["openai"], indirect=True)
async def test_a_batch_that_fails_validation_names_its_line(provider: Provider) -> None:
    lines = [provider.line("a"), BatchLine("bad", b"{"), provider.line("c")]
    status = await provider.service.create(WAVE, await provider.service.upload(lines), lines)
    status = await provider.service.status(status.id)
    assert status.state == "failed"
    assert list(status.bad_lines) == [1]


@pytest.mark.parametrize("provider", ["openai"], indirect=True)
async def test_a_withdrawn_file_makes_no_batch(provider: Provider) -> None:
    lines = [provider.line("a")]
    file = await provider.service.upload(lines)
    await provider.service.withdraw(file)
    with pytest.raises(BackendError) as raised:
        await provider.service.create(WAVE, file, lines)
    assert raised.value.status == 404


def test_a_line_has_the_bytes_of_an_ordinary_request() -> None:
    body = OpenAIChat().encode(Request(Prompt("Sei kurz.", ()), (User("ä"),), "m", Sampling()))
    data = encode_lines([BatchLine("w-1", body)], "/v1/chat/completions")
    assert body in data
    assert orjson.loads(data) == {
        "custom_id": "w-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": orjson.loads(body),
    }


def test_an_error_that_vllm_writes_beside_the_response_is_read() -> None:
    error = {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError", "code": 400}
    line = {"custom_id": "a", "response": {"status_code": 400, "body": None}, "error": {"error": error}}
    result = read_result_line(orjson.dumps(line))
    assert isinstance(result, LineFailed)
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert "4096" in str(result.error)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b'{"custom_id": 3}', b'{"response": {"status_code": 200, "body": {}}}', b"\xff"],
)
def test_a_line_that_cannot_be_attributed_is_left_out(line: bytes) -> None:
    assert read_result_line(line) is None


@pytest.mark.parametrize("code", ["batch_expired", "batch_cancelled"])
def test_a_line_that_was_not_processed_is_not_billed(code: str) -> None:
    line = {"custom_id": "a", "response": None, "error": {"code": code, "message": "It could not be executed."}}
    result = read_result_line(orjson.dumps(line))
    assert isinstance(result, LineFailed)
    assert result.error.retryable
    assert not result.error.may_be_billed


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_load_of_the_provider_fails_a_line_and_does_not_pause_the_run(status: int) -> None:
    line = {"custom_id": "a", "response": {"status_code": status, "body": {"error": {"message": "busy"}}}}
    result = read_result_line(orjson.dumps(line))
    assert isinstance(result, LineFailed)
    assert result.error.kind is ErrorKind.SERVER
    assert not is_overload_refusal(result.error)
    assert not result.error.may_be_billed
