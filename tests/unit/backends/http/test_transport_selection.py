"""Proxies that the environment names: which server goes through one, and how, with a real one on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.support.loopback_servers import Line, RawRequest, raw_server
from yarl import URL

from batch_agent import BackendError, BatchAgent, ErrorKind
from batch_agent.backends.http.connection_pool import ConnectionPool
from batch_agent.backends.http.transport_selection import open_transport, proxy_of

PROXY = "http://proxy:3128"


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def via(url: str, **environ: str) -> str | None:
    found = proxy_of(URL(url), environ)
    return None if found is None else str(found)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_proxy_variables_may_be_upper_or_lower_case_for_one_or_all_schemes(name: str) -> None:
    assert via("http://gpu1.org:8000/v1", **{name: PROXY}) == PROXY
    assert via("http://gpu1.org:8000/v1", **{name: "proxy:3128"}) == PROXY
    assert via("https://gpu1.org/v1", **{name: PROXY}) == (PROXY if "all" in name.lower() else None)
    assert via("https://gpu1.org/v1", **{name.replace("HTTP", "HTTPS").replace("http", "https"): PROXY}) == PROXY


def test_scheme_specific_and_lower_case_proxy_variables_take_precedence() -> None:
    assert via("http://gpu1.org", HTTP_PROXY="a:1", ALL_PROXY="b:1") == "http://a:1"
    assert via("http://gpu1.org", HTTP_PROXY="a:1", http_proxy="b:1") == "http://b:1"
    assert via("http://gpu1.org", HTTP_PROXY="a:1", http_proxy="") is None
    assert via("http://gpu1.org") is None


def test_the_proxy_header_of_a_cgi_request_is_ignored() -> None:
    assert via("http://gpu1.org", HTTP_PROXY="a:1", REQUEST_METHOD="GET") is None
    assert via("http://gpu1.org", http_proxy="a:1", REQUEST_METHOD="GET") == "http://a:1"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "a.localhost", "LOCALHOST", "0.0.0.0", "gpu1", "x4117c0s0b"],
)
def test_localhost_and_names_without_a_dot_bypass_the_proxy(host: str) -> None:
    assert via(f"http://{host}:8000", HTTP_PROXY=PROXY) is None


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_direct"),
    [
        ("*", "http://gpu1.org:8000", True),
        ("gpu1.org", "http://gpu1.org:8000", True),
        ("GPU1.ORG.", "http://gpu1.org:8000", True),
        ("gpu1.org", "http://gpu11.org:8000", False),
        ("gpu1.org", "http://mygpu1.org:8000", False),
        ("other, gpu1.org ,", "http://gpu1.org:8000", True),
        ("cluster.org", "http://gpu1.cluster.org", True),
        (".cluster.org", "http://gpu1.cluster.org", True),
        ("*.cluster.org", "http://gpu1.cluster.org", True),
        ("cluster.org", "http://cluster.org", True),
        ("cluster.org", "http://gpu1.org.mycluster.org", False),
        ("gpu1.org:8000", "http://gpu1.org:8000", True),
        ("gpu1.org:8001", "http://gpu1.org:8000", False),
        ("10.1.2.3", "http://10.1.2.3:8000", True),
        ("10.0.0.0/8", "http://10.1.2.3:8000", True),
        ("10.0.0.0/8", "http://11.1.2.3:8000", False),
        ("fd00::/8", "http://[fd00::1]:8000", True),
        ("[fd00::1]:8000", "http://[fd00::1]:8000", True),
        ("[fd00::1]:8001", "http://[fd00::1]:8000", False),
        ("", "http://gpu1.org:8000", False),
        (".", "http://gpu1.org:8000", False),
    ],
)
def test_hosts_in_no_proxy_bypass_the_proxy(no_proxy: str, url: str, is_direct: bool) -> None:
    assert via(url, HTTP_PROXY=PROXY, NO_PROXY=no_proxy) == (None if is_direct else PROXY)
    assert via(url, HTTP_PROXY=PROXY, no_proxy=no_proxy) == (None if is_direct else PROXY)


@pytest.mark.parametrize("said", ["socks5://proxy:1080", "http://", "http://a:b:c"])
def test_an_unsupported_proxy_is_rejected_with_advice(said: str) -> None:
    with pytest.raises(BackendError, match=r"ALL_PROXY.*NO_PROXY") as raised:
        via("http://gpu1.org:8000", ALL_PROXY=said)
    assert raised.value.kind is ErrorKind.BAD_REQUEST


async def test_plain_http_without_a_proxy_uses_the_connection_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    for url, is_own in (("http://127.0.0.1:8000", True), ("http://gpu1.org:8000", False)):
        wire = open_transport(URL(url), {})
        assert isinstance(wire, ConnectionPool) is is_own
        await wire.aclose()


@dataclass
class Proxy:
    """Sends what it is asked for on to one server, whatever the name in the request."""

    url: str
    asked: list[str] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)


@asynccontextmanager
async def proxy_to(server: str) -> AsyncIterator[Proxy]:
    target = URL(server)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                method, place, _ = first.split(" ")
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                proxy.asked.append(place)
                proxy.credentials.append(fields.get("proxy-authorization", ""))
                inner, outer = await asyncio.open_connection(target.host, target.port)
                kept = [line for line in lines if line and not line.lower().startswith(("proxy-", "connection:"))]
                ask = "\r\n".join([f"{method} {URL(place).raw_path} HTTP/1.1", *kept, "Connection: close", "", ""])
                outer.write(ask.encode() + body)
                outer.write_eof()
                writer.write(await inner.read())
                outer.close()
                writer.close()
                break
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        proxy = Proxy(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        yield proxy


async def answer(request: RawRequest, line: Line) -> None:
    if request.method == "GET":
        await line.reply(200, b'{"data": [{"id": "m"}]}', "connection: close\r\n")
    else:
        body = b'{"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}'
        await line.reply(200, body, "content-type: application/json\r\nconnection: close\r\n")
    line.hang_up()


async def test_a_run_on_an_http_server_uses_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(answer) as server, proxy_to(server.url) as proxy, asyncio.timeout(30):
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("http://", "http://me:secret@"))
        [result] = await BatchAgent.run(
            task="{it}", inputs=["Hi"], backend="http://far.invalid:8000/v1", model="m", progress=False
        )
    assert result.output == "Hello"
    assert "http://far.invalid:8000/v1/chat/completions" in proxy.asked
    assert set(proxy.credentials) == {"Basic bWU6c2VjcmV0"}
    assert all("proxy-authorization" not in request.headers for request in server.requests)


async def test_a_run_on_localhost_bypasses_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(answer) as server, proxy_to(server.url) as proxy, asyncio.timeout(30):
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        [result] = await BatchAgent.run(task="{it}", inputs=["Hi"], backend=f"{server.url}/v1", progress=False)
    assert result.output == "Hello"
    assert proxy.asked == []


async def test_an_unreachable_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(answer) as server:
        pass
    monkeypatch.setenv("HTTP_PROXY", server.url.replace("http://", "http://me:very-secret-word@"))
    with pytest.raises(BackendError, match=r"proxy 127\.0\.0\.1:\d+ is unreachable.*NO_PROXY") as raised:
        await BatchAgent.run(task="{it}", inputs=["Hi"], backend="http://far.invalid:8000/v1", progress=False)
    assert "very-secret-word" not in str(raised.value)


async def test_a_proxy_that_requires_a_password_is_an_authentication_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: RawRequest, line: Line) -> None:
        await line.reply(407, b"Who are you?")

    async with raw_server(refuse) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises(BackendError, match="Who are you") as raised:
            await BatchAgent.run(task="{it}", inputs=["Hi"], backend="http://far.invalid:8000/v1", progress=False)
    assert raised.value.kind is ErrorKind.AUTH
