"""Connection pool on real sockets."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from tests.support.loopback_servers import Line as ServerLine
from tests.support.loopback_servers import RawRequest, RawServer, raw_server
from yarl import URL

from batch_agent.backends.http import connection_pool as connections
from batch_agent.backends.http.connection_pool import ConnectionPool
from batch_agent.backends.http.transport import ConnectError, ConnectionDropped, TransportError


@asynccontextmanager
async def lines_to(server: RawServer, **headers: str) -> AsyncIterator[ConnectionPool]:
    lines = ConnectionPool(URL(server.url), headers)
    try:
        yield lines
    finally:
        await lines.aclose()


async def hello(request: RawRequest, line: ServerLine) -> None:
    await line.reply(200, b"Hello")


async def ask(lines: ConnectionPool, server: RawServer, body: bytes = b"Hi") -> bytes:
    async with asyncio.timeout(10):
        line = await lines.send("POST", URL(server.url) / "v1", body, None)
        try:
            return await line.read()
        finally:
            line.close()


async def test_a_request_is_sent_byte_for_byte() -> None:
    async with raw_server(hello) as server, lines_to(server, Authorization="Bearer k") as lines:
        line = await lines.send("POST", URL(f"{server.url}/v1/ä?x=1"), b"{}", {"x-session": "a"})
        line.close()
        [asked] = server.requests
    assert (asked.method, asked.path, asked.body) == ("POST", "/v1/%C3%A4?x=1", b"{}")
    assert asked.headers["host"] == server.url.removeprefix("http://")
    assert (asked.headers["authorization"], asked.headers["x-session"]) == ("Bearer k", "a")


async def test_a_host_name_is_resolved() -> None:
    async with raw_server(hello) as server:
        lines = ConnectionPool(URL(server.url.replace("127.0.0.1", "localhost")), {})
        assert await ask(lines, server) == b"Hello"
        await lines.aclose()


async def test_an_unknown_host_name_is_a_connect_error() -> None:
    lines = ConnectionPool(URL("http://nobody.invalid:1"), {})
    with pytest.raises(ConnectError):
        await lines.send("POST", URL("http://nobody.invalid:1/"), b"", None)


async def test_a_connection_with_unexpected_bytes_is_not_reused() -> None:
    spoke = asyncio.Event()

    async def answer(request: RawRequest, line: ServerLine) -> None:
        await line.reply(200, b"Hello")
        if len(server.requests) == 1:
            await asyncio.sleep(0.01)
            await line.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            await line.gone()
            spoke.set()

    async with raw_server(answer) as server, lines_to(server) as lines:
        assert await ask(lines, server) == b"Hello"
        async with asyncio.timeout(5):
            await spoke.wait()
        assert await ask(lines, server) == b"Hello"
        assert server.connections == 2


@pytest.mark.parametrize("says", ["an answer", "that it goes"])
async def test_input_on_an_idle_connection_is_detected_before_the_loop_reads_it(says: str) -> None:
    """Nobody can tell an answer that was not asked for from the answer to the next request."""

    def answer_all() -> None:
        for at in range(2):
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello")
            if not at:
                asked_again.wait(10)
                if says == "an answer":
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nStray")
                else:
                    connection.close()
                spoken.set()
            kept.append(connection)

    asked_again, spoken = threading.Event(), threading.Event()
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer_all)
        lines = ConnectionPool(url := URL(f"http://127.0.0.1:{listener.getsockname()[1]}/"), {})
        async with asyncio.timeout(10):
            line = await lines.send("POST", url, b"", None)
            assert await line.read() == b"Hello"
            line.close()
            asked_again.set()
            spoken.wait(10)  # the loop stands still, and hears of nothing
            again = await lines.send("POST", url, b"", None)
            assert again is not line
            assert await again.read() == b"Hello"
            again.close()
            await lines.aclose()
        answering.result(10)
        for connection in kept:
            connection.close()


async def test_a_connection_that_was_idle_for_too_long_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(hello) as server, lines_to(server) as lines:
        await ask(lines, server)
        await ask(lines, server)
        assert server.connections == 1
        monkeypatch.setattr(connections, "_MAX_IDLE", -1.0)
        await ask(lines, server)
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_is_not_reused() -> None:
    async def answer(request: RawRequest, line: ServerLine) -> None:
        await line.reply(200, b"Hello", "connection: close\r\n")
        line.hang_up()

    async with raw_server(answer) as server, lines_to(server) as lines:
        assert [await ask(lines, server) for _ in range(3)] == [b"Hello"] * 3
        assert server.connections == 3


async def test_a_response_that_is_not_read_to_its_end_closes_its_connection() -> None:
    async def answer(request: RawRequest, line: ServerLine) -> None:
        await line.open_stream()
        await line.event(b"one")
        await line.gone()

    async with raw_server(answer) as server, lines_to(server) as lines:
        for _ in range(2):
            line = await lines.send("POST", URL(server.url), b"", None)
            assert await line.chunk() == b"data: one\n\n"
            line.close()
        assert server.connections == 2


async def test_a_long_response_that_is_read_slowly_is_complete() -> None:
    sent = [bytes([number % 251]) * 70_000 for number in range(60)]

    async def answer(request: RawRequest, line: ServerLine) -> None:
        await line.open_stream()
        for part in sent:
            await line.send(b"%x\r\n%b\r\n" % (len(part), part))
        await line.end_stream()

    async with raw_server(answer) as server, lines_to(server) as lines, asyncio.timeout(20):
        line = await lines.send("POST", URL(server.url), b"", None)
        got = bytearray()
        while chunk := await line.chunk():
            got += chunk
            await asyncio.sleep(0.001)
        assert bytes(got) == b"".join(sent)
        assert line.is_complete
        line.close()


async def test_a_connection_released_to_a_closed_pool_is_closed() -> None:
    async with raw_server(hello) as server, lines_to(server) as lines:
        line = await lines.send("POST", URL(server.url), b"", None)
        await line.read()
        await lines.aclose()
        line.close()
        assert not line.is_usable


async def test_a_header_with_a_line_break_is_rejected() -> None:
    async with raw_server(hello) as server, lines_to(server) as lines:
        with pytest.raises(ValueError, match="line break"):
            await lines.send("POST", URL(server.url), b"", {"x-session": "a\r\nHost: b"})
        assert await ask(lines, server) == b"Hello"


async def test_a_dropped_connection_is_distinguished_from_a_truncated_response() -> None:
    async def answer(request: RawRequest, line: ServerLine) -> None:
        if len(server.requests) > 1:
            await line.reply(200, b"He", length=5)
        line.hang_up()

    async with raw_server(answer) as server, lines_to(server) as lines:
        with pytest.raises(ConnectionDropped):
            await ask(lines, server)
        with pytest.raises(TransportError):
            await ask(lines, server)
