"""Whole runs and commands against real servers on loopback that die, come back, refuse, hang and talk nonsense."""

import asyncio
import contextlib
import errno
import gc
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.event_list import EventList
from tests.support.forked_programs import Programs, typed
from tests.support.loopback_servers import Line, RawRequest, raw_server, server_at
from yarl import URL

from batch_agent import AgentResult, BackendError, BatchAgent, BatchAgentError, ErrorKind, RunStopped, SpecError, Tool
from batch_agent.backends import load_metrics as load
from batch_agent.backends import probe
from batch_agent.backends.address import address_of, parse
from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import DiagnosticCheck, diagnose
from batch_agent.backends.http.connection import PlainConnection
from batch_agent.backends.http.connection_pool import Addresses, ConnectionPool
from batch_agent.backends.http.transport import ConnectError
from batch_agent.backends.http_errors import translate_failure
from batch_agent.backends.session_cleanup import SessionCloser, close_session
from batch_agent.core.events import Paused
from batch_agent.sim import Script, SimConfig, SimServer

KEY = "sk-very-secret-0123456789"
Command = Callable[..., Awaitable[tuple[int, str]]]


class Listener:
    """An OpenAI server in this process whose listener can be taken away and put back on the same port."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.port = 0
        self.answered: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_address=True, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    def down(self) -> None:
        self.stop_listening()
        for line in list(self._lines):
            line.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(sizes[0].split(b":")[1]) if sizes else 0)
                method, path = head.decode().split(" ")[:2]
                request = RawRequest(method, path, {}, body)
                await self._answer(self, request, Line(reader, writer))
                if writer.is_closing():
                    break
        self._lines.discard(writer)
        writer.close()


half_accepted = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""asyncio's own server drops what it is just accepting when it is closed, without closing it."""


@asynccontextmanager
async def listening(answer: Any) -> AsyncIterator[Listener]:
    listener = Listener(answer)
    await listener.up()
    try:
        yield listener
    finally:
        listener.down()
        await asyncio.sleep(0.05)
        gc.collect(1)


def prompt_of(request: RawRequest) -> str:
    return str(orjson.loads(request.body)["messages"][-1]["content"])


async def models(line: Line, *names: str, owner: str = "vllm") -> None:
    entries = [{"id": name, "owned_by": owner} for name in names or ("m",)]
    await line.reply(200, orjson.dumps({"data": entries}), "content-type: application/json\r\n")


def serving(chat: Any) -> Any:
    """An OpenAI server whose answers to chats are `chat`'s."""

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path.startswith("/v1/models"):
            await models(line)
        elif request.path.startswith("/v1/chat/completions"):
            await chat(request, line)
        else:
            await line.reply(404, b"{}")

    return answer


async def say_it_back(server: Listener, request: RawRequest, line: Line) -> None:
    if request.path == "/v1/models":
        await models(line)
    elif request.path == "/v1/chat/completions":
        await asyncio.sleep(0.05)
        server.answered[prompt_of(request)] += 1
        await line.say(prompt_of(request))
    else:
        await line.reply(404, b"{}")


def numbers(count: int) -> list[str]:
    return [f"n{n}" for n in range(count)]


async def run(url: str | list[str], inputs: list[str], **options: Any) -> list[AgentResult]:
    results: list[AgentResult] = await BatchAgent.run(
        task="{it}", inputs=inputs, backend=url, progress=False, **options
    )
    return results


@pytest.mark.slow
@half_accepted
async def test_a_listener_that_restarts_with_200_requests_in_flight_fails_no_agent() -> None:
    async with listening(say_it_back) as server:

        async def later(seconds: float) -> None:
            await asyncio.sleep(seconds)
            await server.up()

        seen: list[AgentResult] = []
        async with BatchAgent.stream(
            task="{it}", inputs=numbers(600), backend=server.url, max_inflight=200, progress=False
        ) as stream:
            async for result in stream:
                seen.append(result)
                if len(seen) == 100:
                    server.down()
                    restart = asyncio.create_task(later(0.6))
        await restart
        assert [result.error for result in seen if not result.ok] == []
        assert sorted(result.index for result in seen) == list(range(600))
        assert all(result.output == f"n{result.index}" for result in seen)


@pytest.mark.slow
async def test_a_server_process_restarted_on_its_port_fails_no_agent() -> None:
    config, script = SimConfig(step_base_ms=4), Script(answer_tokens=12)
    sim = SimServer(config, script).start()
    try:
        seen: list[AgentResult] = []
        async with BatchAgent.stream(
            task="Say {it}", inputs=numbers(400), backend=sim.url, max_inflight=200, progress=False
        ) as stream:
            async for result in stream:
                seen.append(result)
                if len(seen) == 50:
                    os.kill(sim.pid, signal.SIGKILL)
                    await asyncio.to_thread(sim.stop)
                    await asyncio.to_thread(sim.start)
        assert [result.error for result in seen if not result.ok] == []
        assert sorted(result.index for result in seen) == list(range(400))
    finally:
        sim.stop()


@pytest.mark.slow
@half_accepted
async def test_a_listener_that_stays_down_is_one_error_with_the_finished_results() -> None:
    async with listening(say_it_back) as server:

        def on_result(result: AgentResult) -> None:
            done.append(result.index)
            if len(done) == 100:
                server.down()

        done: list[int] = []
        with pytest.raises(RunStopped, match="Cannot connect") as stopped:
            await run(server.url, numbers(1000), max_inflight=200, max_retries=0, on_result=on_result)
        assert sorted(result.index for result in stopped.value.results) == sorted(done)
        assert sum(result.ok for result in stopped.value.results) >= 100


async def test_idle_connections_closed_by_the_server_cost_no_attempt() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.say(prompt_of(request) if b'"role":"tool"' not in request.body else "done")
        asyncio.get_running_loop().call_later(0.02, line.hang_up_if_idle)

    async with raw_server(serving(answer)) as server:
        results = await run(server.url, numbers(100), max_inflight=5, max_retries=0)
        assert [result.error for result in results if not result.ok] == []


@pytest.mark.slow
async def test_every_second_request_refused_with_retry_after_fails_no_agent() -> None:
    count = iter(range(10**6))

    async def answer(request: RawRequest, line: Line) -> None:
        await asyncio.sleep(0.005)
        if next(count) % 2:
            await line.reply(503, b"busy", "retry-after: 0\r\n")
        else:
            await line.say(prompt_of(request))

    log = EventList()
    async with raw_server(serving(answer)) as server:
        results = await run(server.url, numbers(32), max_inflight=32, events=log)
        assert [result.output for result in results] == numbers(32)
    assert sum(isinstance(event, Paused) for event in log.events) <= 12


@pytest.mark.parametrize("endpoints", [1, 2])
async def test_a_process_without_a_free_file_sends_fewer_requests_and_blames_no_server(
    endpoints: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts, refused = iter(range(10**6)), asyncio.Event()
    make = ConnectionPool._try_addresses

    async def with_few_files(pool: ConnectionPool, addresses: Addresses) -> PlainConnection:
        if 4 <= next(attempts) < 24:
            refused.set()
            raise ConnectError("Too many open files") from OSError(errno.EMFILE, "Too many open files")
        return await make(pool, addresses)

    async def answer(request: RawRequest, line: Line) -> None:
        async with asyncio.timeout(10):
            await refused.wait()
        await line.say(prompt_of(request))

    monkeypatch.setattr(ConnectionPool, "_try_addresses", with_few_files)
    async with raw_server(serving(answer)) as one, raw_server(serving(answer)) as other:
        urls = [one.url, other.url][:endpoints]
        results = await run(urls, numbers(16), max_inflight=16, max_retries=1, backoff=0.001)
    assert [result.output for result in results] == numbers(16)
    assert "down" not in capsys.readouterr().err


def test_a_connection_without_a_free_file_is_an_error_that_names_the_limit() -> None:
    try:
        raise ConnectError("Too many open files") from OSError(errno.EMFILE, "Too many open files")
    except ConnectError as error:
        failure = translate_failure(error, "http://a")
    assert failure.kind is ErrorKind.RATE_LIMITED
    assert "ulimit -n" in str(failure)


async def test_status_401_for_one_agent_fails_only_that_agent() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if prompt_of(request) == "n50":
            await line.reply(401, b'{"error": {"message": "not you"}}')
        else:
            await line.say("fine")

    async with raw_server(serving(answer)) as server:
        results = await run(server.url, numbers(100), max_inflight=4)
        assert [(result.index, result.error.kind) for result in results if result.error] == [(50, ErrorKind.AUTH)]


async def test_status_401_for_all_agents_is_one_error() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(401, b'{"error": {"message": "not you"}}')

    async with raw_server(serving(answer)) as server:
        with pytest.raises(RunStopped, match="not you"):
            await run(server.url, numbers(100), max_inflight=4)


async def test_a_server_that_accepts_and_never_answers_stops_the_run() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.gone()

    async with raw_server(serving(answer)) as server:
        with pytest.raises(RunStopped, match="hangs"):
            await run(server.url, numbers(100), max_inflight=5, timeout_per_turn=0.1, backoff=0.01)


async def test_a_run_cancelled_during_the_probe_closes_its_connection() -> None:
    left = asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        await line.gone()
        left.set()

    async with raw_server(answer) as server:
        task = asyncio.create_task(run(server.url, ["a"]))
        while not server.requests:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(left.wait(), 60)


async def test_a_connection_reset_during_a_stream_cancels_the_tools_it_started() -> None:
    log: list[str] = []
    first = {"id": "c", "index": 0, "function": {"name": "look", "arguments": '{"at": 1}'}}
    second = {"id": "d", "index": 1, "function": {"name": "peek", "arguments": '{"at": 2}'}}

    @Tool.define(effect="read")
    async def look(at: int) -> str:
        log.append("look")
        try:
            await asyncio.sleep(0.02 if len(log) > 3 else 30)
        except asyncio.CancelledError:
            log.append("look cancelled")
            raise
        return "seen"

    @Tool.define(effect="read")
    def peek(at: int) -> str:
        log.append("peek")
        return "peeked"

    async def answer(request: RawRequest, line: Line) -> None:
        body = orjson.loads(request.body)
        if not body.get("stream"):
            await line.say("probe")
            return
        await line.open_stream()
        if len(body["messages"]) > 1:
            await line.event({"choices": [{"delta": {"content": "done"}}]})
            await line.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        else:
            for made in (first, second, {**first, "index": 2, "id": "e"}):
                await line.event({"choices": [{"delta": {"tool_calls": [made]}}]})
            await asyncio.sleep(0.1)
            if "look cancelled" not in log:
                line.reset()
                return
            await line.event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
        await line.event(b"[DONE]")
        await line.end_stream()

    async with raw_server(serving(answer)) as server:
        [result] = await run(server.url, ["a"], tools=[look, peek], streaming_tool_dispatch=True, backoff=0.01)
    assert result.ok, result.error
    assert log.count("look cancelled") == 1
    assert Counter(record.name for record in result.tool_calls) == {"look": 2, "peek": 1}


# Keys and passwords


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streamed"])
async def test_a_key_that_the_server_quotes_in_an_answer_of_status_200_is_not_shown(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)

    async def answer(request: RawRequest, line: Line) -> None:
        error = {"error": {"message": f"Incorrect API key provided: {KEY}", "type": "invalid_request_error"}}
        if streaming:
            await line.open_stream()
            await line.event(error)
            await line.end_stream()
        else:
            await line.reply(200, orjson.dumps(error), "content-type: application/json\r\n")

    async with raw_server(serving(answer)) as server:
        [result] = await run(server.url.replace("http", "vllm"), ["a"], streaming=streaming)
    assert result.error is not None
    assert KEY not in result.error.message


@pytest.mark.parametrize("where", ["models", "chat"])
async def test_secrets_of_a_url_are_not_shown_when_the_reply_is_not_http(where: str) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if where == "chat" and request.path.startswith("/v1/models"):
            await models(line)
            return
        await line.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        line.hang_up()

    async with raw_server(answer) as server:
        url = server.url.replace("http://", "http://me:hunter2@") + f"/v1?code={KEY}"
        try:
            [result] = await run(url, ["a"], max_retries=0)
            said = str(result.error)
        except BatchAgentError as error:
            said = str(error)
    assert KEY not in said
    assert "hunter2" not in said


async def test_a_password_that_the_server_quotes_is_not_shown() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        sent = request.headers["authorization"].removeprefix("Basic ")
        await line.reply(400, orjson.dumps({"error": {"message": f"bad credentials {sent}"}}))

    async with raw_server(serving(answer)) as server:
        [result] = await run(server.url.replace("http://", "http://me:hunter2@"), ["a"])
    assert result.error is not None
    assert "bWU6aHVudGVyMg==" not in result.error.message


async def test_a_key_does_not_follow_a_redirect_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    async def other(request: RawRequest, line: Line) -> None:
        await line.reply(400, b"{}")

    async with raw_server(other) as thief:

        async def answer(request: RawRequest, line: Line) -> None:
            if request.path == "/v1/models":
                await models(line)
            else:
                await line.reply(307, b"", f"location: {thief.url}/take\r\n")

        async with raw_server(answer) as server:
            await run(server.url.replace("http", "anthropic"), ["a"], max_retries=0)
        assert [request.headers.get("x-api-key") for request in thief.requests if KEY in str(request.headers)] == []


async def test_a_key_with_a_line_break_in_it_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-first\nsk-second")
    async with raw_server(serving(lambda request, line: line.say("fine"))) as server:
        with pytest.raises(BatchAgentError) as raised:
            await run(server.url.replace("http", "vllm"), ["a"])
        assert "sk-first" not in str(raised.value)


def test_a_host_that_only_looks_like_this_machine_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert address_of(parse("http://127.example.com/v1")).key is None


@pytest.mark.parametrize("url", ["htp://me:hunter2@host:8000", "vllm://me:hunter2@host:port"])
def test_a_password_in_a_url_that_names_no_backend_is_not_shown(url: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse(url)
    assert "hunter2" not in str(raised.value)


# URLs


@pytest.mark.parametrize("url", ["vllm:localhost:9000", "vllm:/localhost:9000", "openai:gpt-4o", "sglang:///m"])
def test_a_url_without_a_host_is_rejected_and_not_sent_to_the_default_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(SpecError):
        address_of(parse(url))


@pytest.mark.parametrize("url", ["dynamo://h?sessions=stop", "vllm://h?sessions=end", "dynamo://h?session=end"])
def test_an_unknown_url_option_is_rejected(url: str) -> None:
    with pytest.raises(SpecError):
        address_of(parse(url))


def test_an_encoded_slash_in_a_path_stays_encoded() -> None:
    assert str(address_of(parse("http://h/team%2Fa/v1")).root) == "http://h/team%2Fa/v1"


async def test_all_supported_url_forms_reach_their_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/messages":
            said = {"content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn", "usage": {}}
            await line.reply(200, orjson.dumps(said), "content-type: application/json\r\n")
        else:
            await serving(lambda request, line: line.say("fine"))(request, line)

    async with raw_server(answer) as server:
        port = server.url.rsplit(":", 1)[1]
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1/")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        for url in (
            f"anthropic://127.0.0.1:{port}", f"anthropic://127.0.0.1:{port}/v1/messages", "anthropic://",
            f"openai://127.0.0.1:{port}/v1", f"openai://localhost:{port}/", "openai://",
            f"dynamo://127.0.0.1:{port}?sessions=end", f"vllm://me:pw@127.0.0.1:{port}/v1/",
        ):  # fmt: skip
            [result] = await run(url, ["a"])
            assert result.output == "fine", (url, result.error)


async def test_an_ipv6_server_is_reached() -> None:
    async with listening(say_it_back) as server:
        server.down()
        server.port = 0
        second = await asyncio.start_server(server._serve, "::1", 0)
        async with second:
            port = second.sockets[0].getsockname()[1]
            [result] = await run(f"vllm://[::1]:{port}", ["hello"])
            assert result.output == "hello"
            server.down()


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@asynccontextmanager
async def tls_server(certificate: Path) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    listener = Listener(say_it_back)
    server = await asyncio.start_server(listener._serve, "127.0.0.1", 0, ssl=context)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            listener.down()


async def test_a_self_signed_certificate_is_an_error_with_advice(certificate: Path) -> None:
    async with tls_server(certificate) as port:
        with pytest.raises(BackendError, match="SSL_CERT_FILE") as raised:
            await run(f"https://127.0.0.1:{port}/v1", ["a"])
    assert raised.value.kind is ErrorKind.TLS


async def test_plain_http_to_a_tls_port_is_a_clear_error(certificate: Path) -> None:
    async with tls_server(certificate) as port:
        with pytest.raises(BackendError) as raised:
            await run(f"http://127.0.0.1:{port}/v1", ["a"])
    assert "https" in str(raised.value)


async def test_tls_to_a_plain_http_port_is_an_error_that_suggests_http() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received.")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BackendError, match="use http://") as raised:
            await run(f"https://127.0.0.1:{port}/v1", ["a"])
    assert raised.value.kind is ErrorKind.TLS


@pytest.mark.slow
def test_a_certificate_file_makes_a_server_trusted(certificate: Path, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, os, ssl\n"
        "sys.path.insert(0, os.getcwd())\n"
        "from pathlib import Path\n"
        "from tests.unit.backends.test_faults_in_runs import run, tls_server\n"
        "async def main():\n"
        f"    async with tls_server(Path({str(certificate)!r})) as port:\n"
        "        [result] = await run(f'https://127.0.0.1:{port}/v1', ['hello'])\n"
        "        print(result.output)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate / "cert.pem")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "hello", done.stderr


# What servers say of themselves


@pytest.mark.parametrize("body", [{"data": 5}, {"data": True}, {"data": {"id": "m"}}, {"data": "m"}, {"data": [1]}])
async def test_a_model_list_of_another_format_is_a_batch_agent_error(body: Any) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(200, orjson.dumps(body))

    async with raw_server(answer) as server:
        with pytest.raises(BatchAgentError):
            await connect(server.url, None, uses_tools=False, notify=print)


async def test_metrics_that_are_not_utf_8_stop_no_run() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/metrics":
            await line.reply(200, b'vllm:cache_config_info{block_size="16",path="/m\xff"} 1.0\n')
        else:
            await serving(lambda request, line: line.say("fine"))(request, line)

    async with raw_server(answer) as server:
        [result] = await run(server.url, ["a"])
        assert result.ok


async def checks(url: str, model: str | None = None) -> dict[str, DiagnosticCheck]:
    return {check.name: check async for check in diagnose(url, model, lambda text: None)}


async def test_doctor_does_not_report_unreadable_metrics_as_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PAGE_TIMEOUT", 0.1)
    monkeypatch.setattr(load, "_TIMEOUT", 0.1)

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/metrics":
            await line.gone()
        else:
            await serving(lambda request, line: line.say("fine"))(request, line)

    async with raw_server(answer) as server:
        found = await checks(server.url)
    assert found["answers"].state == "ok"
    assert "metrics" not in found or found["metrics"].state == "unknown"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda request, line: line.reply(200, b"<html>Welcome</html>"), "Is it an inference server"),
        (lambda request, line: line.reply(401, b'{"error": {"message": "no key"}}'), "no key"),
        (lambda request, line: models(line, "a", "b", "c"), "Pass model="),
    ],
    ids=["a web site", "401", "three models"],
)
async def test_doctor_names_the_problem_of_a_faulty_server(answer: Any, words: str) -> None:
    async with raw_server(answer) as server:
        with pytest.raises(BatchAgentError, match=words):
            await checks(server.url)


async def test_doctor_reports_a_server_without_chat_completions() -> None:
    async with raw_server(serving(lambda request, line: line.reply(404, b'{"detail": "Not Found"}'))) as server:
        found = await checks(server.url)
    assert found["model"].found == "m"
    assert found["answers"].state == "failed"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-5-mini", r"\$0.25 input, \$0.025 cached, \$2 output .*, with prices as of 20\d\d-"),
        ("m", "not in the table"),
    ],
)
async def test_doctor_shows_the_price_of_a_hosted_model_and_its_date(
    model: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await (models(line, model) if request.path.startswith("/v1/models") else line.reply(404, b"{}"))

    async with raw_server(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        found = await checks("openai://")
    assert re.search(words, found["price"].found)


def free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


@pytest.fixture
def command(programs: Programs, tmp_path: Path) -> Command:
    """A command to its end, with variables of the environment by name: what it ended with, and all that it said."""

    async def run_it(*words: str, **environment: str) -> tuple[int, str]:
        done = await asyncio.to_thread(programs.call, *words, cwd=tmp_path, **environment)
        return done.returncode, done.stdout + done.stderr

    return run_it


@pytest.mark.slow
def test_the_doctor_command_reports_an_unreachable_server(tmp_path: Path) -> None:
    done = typed("doctor", f"vllm://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert done.returncode == 2
    assert "Cannot connect" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


async def test_the_doctor_command_shows_no_key(command: Command) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/models":
            await models(line)
        elif request.path == "/v1/chat/completions":
            assert request.headers["authorization"] == f"Bearer {KEY}"
            await line.reply(400, orjson.dumps({"error": {"message": f"key {KEY} may not"}}))
        else:
            await line.reply(404, b"")

    async with raw_server(answer) as server:
        code, said = await command("doctor", server.url.replace("http", "vllm"), VLLM_API_KEY=KEY)
    assert code == 1
    assert "FAILED" in said
    assert KEY not in said


@pytest.mark.slow
async def test_the_run_command_on_a_dead_server_says_how_to_resume_and_resumes(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"it": "n{n}"}}\n' for n in range(60)))
    alive = [30]

    async def chat(server: Listener, request: RawRequest, line: Line) -> None:
        if request.path == "/v1/chat/completions":
            if not alive[0]:
                server.stop_listening()
                await asyncio.sleep(0.15)  # what is under way is answered first
                line.hang_up()
                return
            alive[0] -= 1
        await say_it_back(server, request, line)

    async with listening(chat) as server:
        words = ("run", "--task", "{it}", "--inputs", "in.jsonl", "--backend", server.url, "--max-retries", "0")
        code, said = await command(*words, "--max-inflight", "4", OPENAI_API_KEY=KEY)
        rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
        assert code == 2, said
        assert "run the same command again" in said
        assert "Traceback" not in said
        assert KEY not in said
        assert sum(row["ok"] for row in rows) == 30
        alive[0] = 10**6
        await server.up()
        code, said = await command(*words, "--max-inflight", "4")
        assert code == 0, said
        assert sorted(server.answered) == sorted(f"n{n}" for n in range(60))
        assert set(server.answered.values()) == {1}


@pytest.mark.slow
async def test_a_second_interrupt_removes_no_rows_from_the_results_file(tmp_path: Path, command: Command) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"it": "n{n}"}}\n' for n in range(60)))
    mode = ["choosy"]

    async def chat(server: Listener, request: RawRequest, line: Line) -> None:
        if request.path != "/v1/chat/completions":
            await say_it_back(server, request, line)
        elif mode[0] == "choosy" and 5 <= int(prompt_of(request)[1:]) < 30:
            await line.reply(400, b"not now")
        elif mode[0] == "choosy":
            await line.say("fine")
        else:
            await line.reply(401, b"revoked")

    async with listening(chat) as server:
        words = ("run", "--task", "{it}", "--inputs", "in.jsonl", "--backend", server.url, "--max-inflight", "4")
        await command(*words)
        before = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
        assert sum(row["ok"] for row in before) == 35
        mode[0] = "revoked"
        code, said = await command(*words)
        assert code == 2, said
        after = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
        assert sum(row["ok"] for row in after) == 35


async def test_a_session_whose_close_was_cancelled_is_closed_at_the_end() -> None:
    said: list[str] = []

    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await line.gone()
        else:
            said.append(orjson.loads(request.body)["session_id"])
            await line.reply(200, b"")

    async with raw_server(answer) as server, aclosing(server_at(server.url)) as found:
        session_closer = SessionCloser(found.post_or_none, close_session(URL(server.url)))
        session_closer.register("a")
        leaving = asyncio.create_task(session_closer.close("a"))
        while not server.requests:
            await asyncio.sleep(0.005)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await session_closer.close_all()
    assert said == ["a"]


@pytest.mark.parametrize("where", ["probing", "held"])
async def test_ctrl_c_at_any_time_exits_with_130_and_no_traceback(
    where: str, tmp_path: Path, programs: Programs
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"it": "n{n}"}}\n' for n in range(200)))

    async def answer(request: RawRequest, line: Line) -> None:
        if where == "probing":
            await line.gone()
        elif request.path != "/v1/chat/completions":
            await serving(None)(request, line)
        elif len(server.requests) > 40:
            await line.reply(503, b"away")
        else:
            await line.say("fine")

    async with raw_server(answer) as server:
        words = ("run", "--task", "{it}", "--inputs", "in.jsonl", "--backend", server.url, "--max-inflight", "8")
        program = programs.start_command(*words, cwd=tmp_path)
        while len(server.requests) < (1 if where == "probing" else 45):
            await asyncio.sleep(0.01)
        program.send_signal(signal.SIGINT)
        status = await asyncio.to_thread(program.wait)
    said = program.stdout.read_text() + program.stderr.read_text()
    assert status == 130, said
    assert "Traceback" not in said
    rows = (tmp_path / "results.jsonl").read_text().splitlines()
    assert all(json.loads(row)["ok"] for row in rows)
    assert bool(rows) == (where == "held")
