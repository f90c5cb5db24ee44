"""The HTTP backend on real sockets: what is sent, what is reused, and what every way to fail is called."""

import asyncio
import html
import json
import logging
import socket
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar
from urllib.parse import quote_plus

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, raw_server
from yarl import URL

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, Finished, Request, Sampling, TextDelta, Usage

TRAITS = Traits("test", "m", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=4)
PLAIN = Request(Prompt("Be brief."), (User("Hi"),), "m", Sampling())
STREAMED = replace(PLAIN, stream=True)
both = pytest.mark.parametrize("request_", [PLAIN, STREAMED], ids=["plain", "streamed"])
HELLO = {"choices": [{"delta": {"content": "Hello"}}]}
STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


@asynccontextmanager
async def backend_at(url: str, *, key: str | None = None, keep_alive: bool = True) -> AsyncIterator[HttpBackend]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    root = URL(url) / "v1"
    backend = HttpBackend(
        ServerClient(open_transport(root, headers, keep_alive=keep_alive), root), OpenAIChat(), TRAITS
    )
    try:
        yield backend
    finally:
        await backend.aclose()


async def ask(backend: HttpBackend, request: Request = PLAIN) -> list[Delta]:
    async with asyncio.timeout(60), backend.stream(request) as deltas:
        return [delta async for delta in deltas]


async def failure(backend: HttpBackend, request: Request = PLAIN) -> BackendError:
    with pytest.raises(BackendError) as raised:
        await ask(backend, request)
    return raised.value


async def hello(request: RawRequest, line: Line) -> None:
    if orjson.loads(request.body).get("stream"):
        await line.open_stream()
        await line.event(HELLO)
        await line.event(STOP)
        await line.event(b"[DONE]")
        await line.end_stream()
    else:
        await line.say("Hello")


@both
async def test_a_request_is_sent_and_its_answer_decoded(request_: Request) -> None:
    async with raw_server(hello) as server, backend_at(server.url, key="sk-secret") as backend:
        assert await ask(backend, request_) == [TextDelta("Hello"), Finished("stop", Usage())]
        [asked] = server.requests
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["authorization"] == "Bearer sk-secret"
    assert asked.body == OpenAIChat().encode(request_)


@both
async def test_a_connection_is_reused(request_: Request) -> None:
    async with raw_server(hello) as server, backend_at(server.url) as backend:
        for _ in range(10):
            await ask(backend, request_)
        assert server.connections == 1


async def test_a_stream_whose_end_comes_after_its_last_event_leaves_its_connection_usable() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        await line.event(STOP)
        await line.event(b"[DONE]")
        await asyncio.sleep(0.02)
        await line.end_stream()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        for _ in range(3):
            async with backend.stream(STREAMED) as deltas:
                assert isinstance(await anext(deltas), Finished)
        assert server.connections == 1


async def test_a_server_that_does_not_keep_connections_gets_a_new_one_each_time() -> None:
    async with raw_server(hello) as server, backend_at(server.url, keep_alive=False) as backend:
        await ask(backend)
        await ask(backend)
        assert server.connections == 2


async def test_bytes_after_the_end_of_a_stream_are_not_waited_for() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        await line.event(STOP)
        await line.event(b"[DONE]")
        await line.gone()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        async with asyncio.timeout(30):
            assert await ask(backend, STREAMED) == [Finished("stop", Usage())]


async def test_a_plain_reply_to_a_stream_request_is_decoded() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.say("Hello")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        assert await ask(backend, STREAMED) == [TextDelta("Hello"), Finished("stop", Usage())]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, b'{"error": {"message": "no such field"}}', ErrorKind.BAD_REQUEST),
        (400, b'{"error": {"message": "maximum context length is 4096"}}', ErrorKind.CONTEXT_OVERFLOW),
        (400, b'{"error": {"code": "context_length_exceeded", "message": "too long"}}', ErrorKind.CONTEXT_OVERFLOW),
        (500, b'{"error": {"message": "the request exceeds the available context size"}}', ErrorKind.CONTEXT_OVERFLOW),
        (401, b'{"message": "who are you"}', ErrorKind.AUTH),
        (402, b"pay", ErrorKind.AUTH),
        (403, b'{"detail": "not you"}', ErrorKind.AUTH),
        (404, b"", ErrorKind.NOT_FOUND),
        (405, b'{"detail": "Method Not Allowed"}', ErrorKind.BAD_REQUEST),
        (408, b"slow", ErrorKind.SERVER),
        (409, b"conflict", ErrorKind.SERVER),
        (413, b"big", ErrorKind.CONTEXT_OVERFLOW),
        (422, b'{"detail": [{"loc": ["body"], "msg": "bad"}]}', ErrorKind.BAD_REQUEST),
        (429, b'{"error": "slow down"}', ErrorKind.RATE_LIMITED),
        (429, b'{"error": {"code": "insufficient_quota", "message": "no money"}}', ErrorKind.AUTH),
        (500, b"<html>oops</html>", ErrorKind.SERVER),
        (500, b'{"error": {"message": "EngineCore encountered an issue. See stack trace"}}', ErrorKind.UNAVAILABLE),
        (502, b"\xff\xfe", ErrorKind.UNAVAILABLE),
        (503, b"null", ErrorKind.UNAVAILABLE),
        (504, b"", ErrorKind.SERVER),
        (529, b"[]", ErrorKind.UNAVAILABLE),
        (204, b"", ErrorKind.BAD_REQUEST),
    ],
)
async def test_an_http_status_becomes_an_error_kind(status: int, body: bytes, kind: ErrorKind) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(status, body)

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        for request in (PLAIN, STREAMED):
            error = await failure(backend, request)
            assert error.kind is kind
            assert str(error).startswith(f"HTTP {status} from {server.url}/v1/chat/completions: ")
        assert server.connections == 1


async def test_the_error_of_a_server_whose_engine_died_says_so_also_inside_of_a_stream() -> None:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    body = orjson.dumps({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})

    async def answer(request: RawRequest, line: Line) -> None:
        if orjson.loads(request.body).get("stream"):
            await line.reply(200, b"data: " + body + b"\n\ndata: [DONE]\n\n", "content-type: text/event-stream\r\n")
        else:
            await line.reply(500, body)

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        for request in (PLAIN, STREAMED):
            error = await failure(backend, request)
            assert error.kind is ErrorKind.UNAVAILABLE
            assert f"the engine has died, and the server has to be restarted. Its log says why. ({message})" in str(
                error
            )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.25", 0.25), ("-3", 0.0), ("soon", None), ("", None), ("nan", None), ("inf", None)],
)
async def test_retry_after_seconds_are_read(header: str, seconds: float | None) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(429, b"{}", f"retry-after: {header}\r\n")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        assert (await failure(backend)).retry_after == seconds


@pytest.mark.parametrize(("ahead", "least", "most"), [(30, 27.0, 30.0), (-30, 0.0, 0.0)])
async def test_a_retry_after_date_is_read(ahead: float, least: float, most: float) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
        await line.reply(503, b"{}", f"retry-after: {date}\r\n")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        waited = (await failure(backend)).retry_after
        assert waited is not None
        assert least <= waited <= most


@both
@pytest.mark.parametrize("how", ["hang_up", "reset"])
async def test_a_request_on_a_stale_connection_is_resent_without_an_attempt(request_: Request, how: str) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 2:
            line.reset() if how == "reset" else line.hang_up()
        else:
            await hello(request, line)

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        for _ in range(3):
            assert TextDelta("Hello") in await ask(backend, request_)
        assert len(server.requests) == 4
        assert server.connections == 2


@both
@pytest.mark.parametrize("how", ["hang_up", "reset"])
async def test_a_request_dropped_on_a_new_connection_is_not_resent(request_: Request, how: str) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        line.reset() if how == "reset" else line.hang_up()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        error = await failure(backend, request_)
        assert error.kind is ErrorKind.CONNECTION
        assert error.may_be_billed
        assert len(server.requests) == 1


async def test_a_request_dropped_on_a_reused_connection_is_resent_once() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await hello(request, line)
        else:
            line.hang_up()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        await ask(backend)
        assert (await failure(backend)).kind is ErrorKind.CONNECTION
        assert len(server.requests) == 3


async def test_a_partly_answered_request_is_not_resent() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await hello(request, line)
        else:
            await line.send(b"HTTP/1.1 200 O")
            line.hang_up()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        await ask(backend)
        assert (await failure(backend)).kind is ErrorKind.CONNECTION
        assert len(server.requests) == 2


class Payer:
    """Counts the sends that it is asked to pay for beyond the first."""

    worst, usd = Usage(), 0.0

    def __init__(self, room: int) -> None:
        self.asked = 0
        self._room = room

    def again(self) -> bool:
        self.asked += 1
        return self.asked <= self._room


@pytest.mark.parametrize(("room", "sent"), [(0, 2), (1, 3)])
async def test_a_resend_is_counted_in_the_budget_or_not_made(room: int, sent: int) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 2:
            line.hang_up()
        else:
            await hello(request, line)

    payer = Payer(room)
    async with raw_server(answer) as server, backend_at(server.url) as backend:
        await ask(backend)
        paid = replace(PLAIN, charge=payer)
        if room:
            await ask(backend, paid)
        else:
            await failure(backend, paid)
        assert payer.asked == 1
        assert len(server.requests) == sent


async def test_a_request_that_crashes_the_server_is_not_resent_without_an_attempt() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await hello(request, line)
            return
        await asyncio.sleep(1.1)
        line.reset()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        await ask(backend)
        error = await failure(backend)
        assert error.kind is ErrorKind.CONNECTION
        assert len(server.requests) == 2


async def reset_in_stream(request: RawRequest, line: Line) -> None:
    await line.open_stream()
    await line.event(HELLO)
    await asyncio.sleep(0.02)
    line.reset()


async def hang_up_in_stream(request: RawRequest, line: Line) -> None:
    await line.open_stream()
    await line.event(HELLO)
    line.hang_up()


async def end_without_end(request: RawRequest, line: Line) -> None:
    await line.open_stream()
    await line.event(HELLO)
    await line.end_stream()


async def half_a_body(request: RawRequest, line: Line) -> None:
    await line.reply(200, b'{"choices": [', length=400)
    line.hang_up()


async def half_an_error(request: RawRequest, line: Line) -> None:
    await line.reply(400, b'{"error": ', length=400)
    line.hang_up()


async def garbage(request: RawRequest, line: Line) -> None:
    await line.reply(200, b'{"choices": [{"message": {"content": ')


async def garbage_in_stream(request: RawRequest, line: Line) -> None:
    await line.open_stream()
    await line.event(HELLO)
    await line.event(b'{"choices": [{"delta"')
    await line.end_stream()


async def no_http(request: RawRequest, line: Line) -> None:
    await line.send(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    line.hang_up()


async def error_in_stream(request: RawRequest, line: Line) -> None:
    await line.open_stream()
    await line.event(HELLO)
    await line.event({"error": {"message": "out of memory", "code": 500}})
    await line.end_stream()


@pytest.mark.parametrize(
    ("answer", "request_", "kind"),
    [
        (reset_in_stream, STREAMED, ErrorKind.CONNECTION),
        (hang_up_in_stream, STREAMED, ErrorKind.CONNECTION),
        (end_without_end, STREAMED, ErrorKind.CONNECTION),
        (half_a_body, PLAIN, ErrorKind.CONNECTION),
        (half_a_body, STREAMED, ErrorKind.CONNECTION),
        (half_an_error, PLAIN, ErrorKind.CONNECTION),
        (garbage, PLAIN, ErrorKind.SERVER),
        (garbage, STREAMED, ErrorKind.SERVER),
        (garbage_in_stream, STREAMED, ErrorKind.SERVER),
        (no_http, PLAIN, ErrorKind.CONNECTION),
        (error_in_stream, STREAMED, ErrorKind.SERVER),
    ],
)
async def test_a_broken_answer_is_a_backend_error_and_the_next_request_succeeds(
    answer: Any, request_: Request, kind: ErrorKind
) -> None:
    async def first_badly(request: RawRequest, line: Line) -> None:
        await (answer if len(server.requests) == 1 else hello)(request, line)

    async with raw_server(first_badly) as server, backend_at(server.url) as backend:
        error = await failure(backend, request_)
        assert error.kind is kind
        assert error.retryable
        assert TextDelta("Hello") in await ask(backend, request_)


async def test_an_unreachable_server_is_a_plain_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with backend_at(url) as backend:
        error = await failure(backend)
    assert error.kind is ErrorKind.UNAVAILABLE
    assert str(error).startswith(f"Cannot connect to {url}")


async def before_the_headers(line: Line) -> None:
    pass


async def inside_the_body(line: Line) -> None:
    await line.reply(200, b'{"choices": [', length=400)


async def inside_the_stream(line: Line) -> None:
    await line.open_stream()
    await line.event(HELLO)


@pytest.mark.parametrize("stage", [before_the_headers, inside_the_body, inside_the_stream])
async def test_a_cancelled_request_is_aborted_on_the_server(stage: Any) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        await stage(line)
        begun.set()
        await line.gone()
        gone.set()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        asking = asyncio.create_task(ask(backend, STREAMED if stage is inside_the_stream else PLAIN))
        await begun.wait()
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(60):
            await gone.wait()


async def test_a_stream_that_is_left_early_is_aborted_on_the_server() -> None:
    gone = asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        await inside_the_stream(line)
        await line.gone()
        gone.set()

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        async with backend.stream(STREAMED) as deltas:
            assert await anext(deltas) == TextDelta("Hello")
        async with asyncio.timeout(60):
            await gone.wait()


async def test_the_client_does_not_limit_concurrent_requests() -> None:
    together, waiting = asyncio.Event(), 0

    async def answer(request: RawRequest, line: Line) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 150:  # aiohttp alone would stop at 100
            together.set()
        await together.wait()
        await line.say("Hello")

    async with raw_server(answer) as server, backend_at(server.url) as backend, asyncio.TaskGroup() as group:
        for _ in range(150):
            group.create_task(ask(backend))


@pytest.mark.parametrize(
    "answer", [half_a_body, garbage, no_http, reset_in_stream, error_in_stream, "status", "quoted", "nobody"]
)
async def test_a_key_is_shown_in_no_error_and_in_no_log(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def status(request: RawRequest, line: Line) -> None:
        await line.reply(401, b'{"error": "wrong key"}')

    async def quoted(request: RawRequest, line: Line) -> None:
        await line.reply(401, b'{"error": "wrong key: %b"}' % request.headers["authorization"].encode())

    caplog.set_level(logging.DEBUG)
    answers = {"status": status, "quoted": quoted, "nobody": status}
    async with raw_server(answers.get(answer, answer)) as server:
        url = "http://127.0.0.1:1" if answer == "nobody" else server.url
        async with backend_at(url, key="sk-secret") as backend:
            for request in (PLAIN, STREAMED):
                error = await failure(backend, request)
                shown = "".join(traceback.format_exception(error)) + repr(error)
                assert "sk-secret" not in shown
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize(
    "quoting", [str, quote_plus, json.dumps, html.escape, lambda key: b64encode(key.encode()).decode()]
)
async def test_a_key_quoted_by_the_server_in_any_encoding_is_not_shown(quoting: Callable[[str], str]) -> None:
    key = 'sk-a/b+c"d=e&f0123456789'
    words = quoting(key)

    async def refused(request: RawRequest, line: Line) -> None:
        await line.reply(401, json.dumps({"error": {"message": f"The key {words} is wrong."}}).encode())

    async with raw_server(refused) as server, backend_at(server.url, key=key) as backend:
        error = str(await failure(backend, PLAIN))
    assert "***" in error
    assert words not in error


async def test_possible_secrets_of_a_url_are_not_shown() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(500, b"no")

    async with raw_server(answer) as server:
        url = URL(server.url).with_user("me").with_password("sk-secret").with_query(api_key="sk-secret")
        backend = HttpBackend(ServerClient(open_transport(url, {}), url), OpenAIChat(), TRAITS)
        error = await failure(backend)
        await backend.aclose()
        assert "sk-secret" not in str(error)
        assert server.requests[0].path == "/chat/completions?api_key=sk-secret"


async def test_owned_resources_are_closed_even_if_closing_the_transport_fails() -> None:
    closed = []

    class StubbornWire:
        headers: ClassVar[dict[str, str]] = {}

        async def aclose(self) -> None:
            raise asyncio.CancelledError

    async def on_close() -> None:
        closed.append(True)

    backend = HttpBackend(
        ServerClient(StubbornWire(), URL("http://x")),  # type: ignore[arg-type]
        OpenAIChat(),
        TRAITS,
        on_close=on_close,
    )
    with pytest.raises(asyncio.CancelledError):
        await backend.aclose()
    assert closed == [True]


async def test_a_server_that_rejects_streams_gets_plain_requests_from_then_on() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if orjson.loads(request.body).get("stream"):
            await line.reply(400, b'{"error": {"message": "stream is not supported by this model"}}')
        else:
            await line.say("Hello")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        streamed = Request(Prompt(""), (User("Hi"),), "m", Sampling(), stream=True)
        for _ in range(2):
            async with backend.stream(streamed) as deltas:
                assert await anext(deltas) == TextDelta("Hello")
        assert [orjson.loads(request.body).get("stream", False) for request in server.requests] == [True, False, False]
