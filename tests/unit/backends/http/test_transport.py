"""Contract of all transports."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable

import pytest
from tests.support.loopback_servers import Line, RawRequest, raw_server, server_at
from yarl import URL

from batch_agent.backends.http.aiohttp_transport import AiohttpTransport
from batch_agent.backends.http.connection_pool import ConnectionPool
from batch_agent.backends.http.transport import (
    BodyTooLarge,
    ConnectError,
    ConnectionDropped,
    StaleConnection,
    Transport,
    TransportError,
    TransportResponse,
)

Make = Callable[..., Transport]
NOWHERE = URL("http://127.0.0.1:9")


def lines(headers: dict[str, str], *, keep_alive: bool = True, root: URL = NOWHERE) -> Transport:
    return ConnectionPool(root, headers, keep_alive=keep_alive)


def session(headers: dict[str, str], *, keep_alive: bool = True, root: URL = NOWHERE) -> Transport:
    return AiohttpTransport(headers, keep_alive=keep_alive)


@pytest.fixture(params=[lines, session])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[Transport] = []

    def opened(url: str, headers: dict[str, str] | None = None, *, keep_alive: bool = True) -> Transport:
        made.append(request.param(headers or {}, keep_alive=keep_alive, root=URL(url)))
        return made[-1]

    yield opened
    for wire in made:
        await wire.aclose()
        assert wire.is_closed


async def hello(request: RawRequest, line: Line) -> None:
    await line.reply(200, b"Hello", "content-type: text/plain; charset=utf-8\r\nx-mark: 1\r\n")


async def read(wire: Transport, url: str, method: str = "POST", body: bytes = b"Hi") -> bytes:
    async with asyncio.timeout(20):
        answer = await wire.send(method, URL(url), body, None)
        try:
            return await answer.read()
        finally:
            answer.close()


async def test_a_response_has_its_status_headers_and_body(make: Make) -> None:
    async with raw_server(hello) as server:
        answer: TransportResponse = await make(server.url).send("POST", URL(server.url), b"Hi", None)
        assert (answer.status, answer.content_type, answer.headers["X-Mark"]) == (200, "text/plain", "1")
        assert await answer.read() == b"Hello"
        assert answer.is_complete
        answer.close()


async def test_a_connection_is_reused_unless_keep_alive_is_off(make: Make) -> None:
    async with raw_server(hello) as server:
        kept, closed = make(server.url), make(server.url, keep_alive=False)
        assert [await read(kept, server.url) for _ in range(3)] == [b"Hello"] * 3
        assert server.connections == 1
        assert [await read(closed, server.url) for _ in range(3)] == [b"Hello"] * 3
        assert server.connections == 4


async def test_a_get_request_has_no_body(make: Make) -> None:
    async with raw_server(hello) as server:
        assert await read(make(server.url), f"{server.url}/page?x=1", "GET", b"") == b"Hello"
    [asked] = server.requests
    assert (asked.method, asked.path, asked.body) == ("GET", "/page?x=1", b"")
    assert "content-length" not in asked.headers


async def test_the_headers_of_a_request_override_the_shared_ones(make: Make) -> None:
    async with raw_server(hello) as server:
        wire = make(server.url, {"Content-Type": "a/b", "Authorization": "Bearer k"})
        answer = await wire.send("POST", URL(server.url), b"", {"content-type": "c/d", "x-own": "1"})
        await answer.read()
        sent = {name.lower(): value for name, value in answer.sent_headers.items()}
        answer.close()
    [asked] = server.requests
    assert {name: asked.headers[name] for name in ("content-type", "authorization", "x-own")} == {
        "content-type": "c/d",
        "authorization": "Bearer k",
        "x-own": "1",
    }
    assert (sent["authorization"], sent["content-type"]) == ("Bearer k", "c/d")


async def test_a_redirect_is_not_followed(make: Make) -> None:
    async def elsewhere(request: RawRequest, line: Line) -> None:
        await line.reply(302, b"", "location: /other\r\n")

    async with raw_server(elsewhere) as server:
        answer = await make(server.url).send("POST", URL(server.url), b"", None)
        assert answer.status == 302
        answer.close()
    assert len(server.requests) == 1


async def test_a_dropped_connection_is_distinguished_from_a_truncated_response(make: Make) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) > 1:
            await line.reply(200, b"He", length=5)
        line.hang_up()

    async with raw_server(answer) as server:
        with pytest.raises(ConnectionDropped):
            await read(make(server.url), server.url)
        with pytest.raises(TransportError) as broken:
            await read(make(server.url), server.url)
    assert not isinstance(broken.value, ConnectionDropped)


async def test_a_connection_that_is_reset_was_dropped(make: Make) -> None:
    async def reset(request: RawRequest, line: Line) -> None:
        line.reset()

    async with raw_server(reset) as server:
        with pytest.raises(ConnectionDropped) as dropped:
            await read(make(server.url), server.url)
    assert not isinstance(dropped.value, StaleConnection)


@pytest.mark.parametrize("how", ["hang_up", "reset"])
async def test_a_used_connection_that_is_dropped_without_a_byte_is_stale(make: Make, how: str) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await hello(request, line)
        else:
            line.reset() if how == "reset" else line.hang_up()

    async with raw_server(answer) as server:
        wire = make(server.url)
        await read(wire, server.url)
        with pytest.raises(StaleConnection):
            await read(wire, server.url)
        with pytest.raises(ConnectionDropped) as fresh:
            await read(wire, server.url)
    assert not isinstance(fresh.value, StaleConnection)


async def test_a_used_connection_that_answers_in_part_is_not_stale(make: Make) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await hello(request, line)
        else:
            await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n")
            line.hang_up()

    async with raw_server(answer) as server:
        wire = make(server.url)
        await read(wire, server.url)
        with pytest.raises(TransportError) as broken:
            await read(wire, server.url)
    assert not isinstance(broken.value, StaleConnection)


async def test_a_closed_port_is_a_connect_error(make: Make) -> None:
    async with raw_server(hello) as server:
        pass
    with pytest.raises(ConnectError):
        await read(make(server.url), server.url)


async def test_closing_a_response_early_closes_its_connection(make: Make) -> None:
    left = asyncio.Event()

    async def endless(request: RawRequest, line: Line) -> None:
        await line.open_stream()
        await line.event(b"one")
        await line.gone()
        left.set()

    async with raw_server(endless) as server:
        answer = await make(server.url).send("POST", URL(server.url), b"", None)
        assert b"one" in await answer.chunk()
        assert not answer.is_complete
        answer.close()
        async with asyncio.timeout(20):
            await left.wait()


@pytest.mark.parametrize("packs", [gzip.compress, zlib.compress])
async def test_a_compressed_response_is_decompressed_although_none_was_requested(
    make: Make, packs: Callable[[bytes], bytes]
) -> None:
    said = b"".join(b"%d " % number for number in range(100_000))
    name = "gzip" if packs is gzip.compress else "deflate"

    async def packed(request: RawRequest, line: Line) -> None:
        await line.reply(200, packs(said), f"content-encoding: {name}\r\n")

    async with raw_server(packed) as server:
        wire = make(server.url)
        assert await read(wire, server.url) == said
        answer = await wire.send("POST", URL(server.url), b"", None)
        got = bytearray()
        while chunk := await answer.chunk():
            got += chunk
        answer.close()
        assert bytes(got) == said
        assert server.connections == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("content-encoding: gzip\r\n", gzip.compress(b"Hello", mtime=0)[:-5]),
        ("content-encoding: gzip\r\n", b"Hello"),
        ("content-encoding: br\r\n", b"Hello"),
    ],
)
async def test_an_invalid_compressed_response_is_an_error(make: Make, headers: str, body: bytes) -> None:
    async def packed(request: RawRequest, line: Line) -> None:
        await line.reply(200, body, headers)

    async with raw_server(packed) as server:
        with pytest.raises(TransportError):
            await read(make(server.url), server.url)


async def test_a_body_is_read_to_its_limit_and_its_connection_closed(make: Make) -> None:
    gone = asyncio.Event()

    async def endless(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            await line.reply(200, b"x" * 1000)
            return
        await line.open_stream()
        try:
            while True:
                await line.event(b"x" * 1000)
        finally:
            gone.set()

    async with raw_server(endless) as server, asyncio.timeout(20):
        wire = make(server.url)
        answer = await wire.send("POST", URL(server.url), b"", None)
        assert await answer.read(1000) == b"x" * 1000
        answer.close()
        answer = await wire.send("POST", URL(server.url), b"", None)
        with pytest.raises(BodyTooLarge, match="larger than 97"):
            await answer.read(100_000)
        await gone.wait()
        answer.close()


async def test_a_body_that_is_announced_to_be_too_large_is_not_read(make: Make) -> None:
    async def large(request: RawRequest, line: Line) -> None:
        await line.reply(200, b"x" * 2000, length=10**15)

    async with raw_server(large) as server, asyncio.timeout(20):
        answer = await make(server.url).send("POST", URL(server.url), b"", None)
        with pytest.raises(BodyTooLarge):
            await answer.read(1000)
        answer.close()


async def test_a_compressed_body_is_decompressed_up_to_its_limit(make: Make) -> None:
    async def bomb(request: RawRequest, line: Line) -> None:
        await line.reply(200, gzip.compress(b"x" * 10_000_000), "content-encoding: gzip\r\n")

    async with raw_server(bomb) as server, asyncio.timeout(20):
        answer = await make(server.url).send("POST", URL(server.url), b"", None)
        with pytest.raises(BodyTooLarge):
            await answer.read(100_000)
        answer.close()


async def test_a_large_body_is_complete_after_a_wait(make: Make) -> None:
    async def large(request: RawRequest, line: Line) -> None:
        await line.reply(200, b"x" * 5_000_000)

    async with raw_server(large) as server, asyncio.timeout(20):
        answer = await make(server.url).send("POST", URL(server.url), b"", None)
        await asyncio.sleep(0.2)  # what comes meanwhile fills the buffers
        assert await answer.read() == b"x" * 5_000_000
        answer.close()


async def test_a_get_request_is_repeated_if_the_server_had_closed_the_connection() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if len(server.requests) == 1:
            line.hang_up()
        else:
            await hello(request, line)

    async with raw_server(answer) as server:
        found = server_at(server.url)
        assert await found.get(URL(server.url), 20.0) == b"Hello"
        await found.aclose()
    assert len(server.requests) == 2
