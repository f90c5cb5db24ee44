"""One request with many prompts: each is told as soon as it is done, and what went wrong is said as it is."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.loopback_servers import Answer, Line, RawRequest, RawServer, raw_server
from yarl import URL

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.batch_completions import BatchCompletionClient
from batch_agent.backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.core.requests import Sampling, Usage

SAMPLING = Sampling(max_tokens=8)
JSON = "content-type: application/json\r\n"


@asynccontextmanager
async def wire_to(answer: Answer, **options: Any) -> AsyncIterator[tuple[BatchCompletionClient, RawServer]]:
    headers = {"Authorization": "Bearer secret-key-of-ours"}
    async with raw_server(answer) as raw:
        root = URL(raw.url) / "v1"
        server = ServerClient(open_transport(root, headers), root)
        yield BatchCompletionClient(server, "m", **options), raw
        await server.aclose()


async def heard(wire: BatchCompletionClient, prompts: Sequence[str], patience: float | None = 5.0) -> list[PromptEvent]:
    events: list[PromptEvent] = []
    await wire.send(prompts, SAMPLING, patience, events.append)
    return events


def piece(index: int, text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}], **more}


async def test_each_prompt_is_reported_as_soon_as_it_is_finished() -> None:
    later = asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        await line.event(piece(1, "two", "stop", usage={"prompt_tokens": 3, "completion_tokens": 1}))
        await later.wait()
        await line.event(piece(0, "one"))
        await line.event(piece(0, "", "length"))
        await line.event(b"[DONE]")
        await line.end_stream()

    events: list[PromptEvent] = []

    def hear(event: PromptEvent) -> None:
        events.append(event)
        later.set()

    async with wire_to(answer) as (wire, _):
        await wire.send(["a", "b"], SAMPLING, 5.0, hear)
    assert events == [
        PromptDelta(1, "two"),
        PromptFinished(1, "stop", Usage(3, 0, 1)),
        PromptDelta(0, "one"),
        PromptFinished(0, "length"),
    ]


@pytest.mark.parametrize(
    ("options", "path", "has", "has_not"),
    [
        ({}, "/v1/completions", {"stream_interval", "add_special_tokens", "stream"}, set[str]()),
        ({"only_standard": True}, "/v1/completions", {"stream"}, {"stream_interval", "add_special_tokens"}),
        ({"are_chats": True}, "/v1/chat/completions/batch", {"messages"}, {"prompt", "stream", "stream_interval"}),
    ],
)
async def test_a_server_gets_only_the_fields_it_supports(
    options: dict[str, Any], path: str, has: set[str], has_not: set[str]
) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        choices = [{"index": at, "text": "x", "finish_reason": "stop"} for at in range(2)]
        await line.reply(200, orjson.dumps({"choices": choices}), JSON)

    async with wire_to(answer, **options) as (wire, raw):
        events = await heard(wire, ["a", "b"])
        (request,) = raw.requests
    body = orjson.loads(request.body)
    assert request.path == path
    assert has <= set(body)
    assert not has_not & set(body)
    assert events == [PromptDelta(0, "x"), PromptFinished(0, "stop"), PromptDelta(1, "x"), PromptFinished(1, "stop")]


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (400, b'{"error": {"message": "no"}}', ErrorKind.BAD_REQUEST),
        (400, b'{"error": {"message": "maximum context length is 10"}}', ErrorKind.CONTEXT_OVERFLOW),
        (401, b'{"error": "secret-key-of-ours is wrong"}', ErrorKind.AUTH),
        (404, b"{}", ErrorKind.NOT_FOUND),
        (413, b"", ErrorKind.CONTEXT_OVERFLOW),
        (429, b"{}", ErrorKind.RATE_LIMITED),
        (500, b"boom", ErrorKind.SERVER),
        (503, b"", ErrorKind.UNAVAILABLE),
        (200, b"no json", ErrorKind.SERVER),
        (200, b'{"choices": [{"index": 5, "text": "x"}]}', ErrorKind.SERVER),
        (200, b'{"error": {"message": "no", "code": 400}}', ErrorKind.BAD_REQUEST),
    ],
)
async def test_a_rejection_carries_the_servers_message(status: int, said: bytes, kind: ErrorKind) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(status, said, JSON)

    async with wire_to(answer) as (wire, _):
        with pytest.raises(BackendError) as raised:
            await heard(wire, ["a", "b"])
    assert raised.value.kind is kind
    assert "secret-key" not in str(raised.value)


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_aborted_answer_is_an_error_after_the_finished_answers(reason: str, is_streamed: bool) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if is_streamed:
            await line.open_stream()
            await line.event(piece(0, "", reason))
            await line.event(piece(1, "fine", "stop"))
            await line.event(b"[DONE]")
            await line.end_stream()
        else:
            choices = [piece(0, "", reason)["choices"][0], piece(1, "fine", "stop")["choices"][0]]
            await line.reply(200, orjson.dumps({"choices": choices}), JSON)

    events: list[PromptEvent] = []
    async with wire_to(answer) as (wire, _):
        with pytest.raises(BackendError, match="aborted"):
            await wire.send(["a", "b"], SAMPLING, 5.0, events.append)
    assert events == [PromptDelta(1, "fine"), PromptFinished(1, "stop")]


@pytest.mark.parametrize("how", ["ends", "hangs up", "resets", "is done"])
async def test_a_stream_that_ends_early_is_an_error_and_finished_prompts_are_kept(how: str) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        await line.event(piece(1, "done", "stop"))
        match how:
            case "ends":
                await line.end_stream()
            case "hangs up":
                line.hang_up()
            case "resets":
                await asyncio.sleep(0.01)
                line.reset()
            case _:
                await line.event(b"[DONE]")
                await line.end_stream()

    events: list[PromptEvent] = []
    async with wire_to(answer) as (wire, _):
        with pytest.raises(BackendError) as raised:
            await wire.send(["a", "b"], SAMPLING, 5.0, events.append)
    assert raised.value.kind is ErrorKind.CONNECTION
    assert events == [PromptDelta(1, "done"), PromptFinished(1, "stop")]


async def test_the_timeout_limits_silence_and_not_the_whole_answer() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        for _ in range(8):
            await asyncio.sleep(0.05)
            await line.event(piece(0, "x"))
        await line.gone()

    events: list[PromptEvent] = []
    async with wire_to(answer) as (wire, _):
        with pytest.raises(BackendError, match=r"sent nothing for 0\.2 s") as raised:
            await wire.send(["a"], SAMPLING, 0.2, events.append)
    assert raised.value.kind is ErrorKind.TURN_TIMEOUT
    assert len(events) == 8


async def test_cancelling_a_request_closes_its_connection() -> None:
    began, gone = asyncio.Event(), asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        began.set()
        await line.gone()
        gone.set()

    async with wire_to(answer) as (wire, _), asyncio.timeout(60):
        asking = asyncio.create_task(heard(wire, ["a"], None))
        await began.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await gone.wait()
