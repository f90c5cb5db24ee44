"""http_get reads the web, and nothing that is private."""

import asyncio
import gzip
import ipaddress
import socket
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from batch_agent import Tool
from batch_agent.core.messages import ToolCall
from batch_agent.tools import ToolExecutor
from batch_agent.tools.builtin.html_text import plain
from batch_agent.tools.builtin.http_session import RequestFailed, RequestMayPass
from batch_agent.tools.builtin.ssrf_guard import Guard, is_public
from batch_agent.tools.builtin.web import http_get_tool

ARTICLE = (
    "<html><head><title>T</title><script>var x;</script></head><body><nav><a href='/'>Home</a></nav>{}</body></html>"
)
TEXT = "A sentence that says something, and says it at length. "


class Site:
    """A real server that answers what the test has put there, and remembers who came."""

    def __init__(self) -> None:
        self.pages: dict[str, Callable[[], web.Response]] = {}
        self.seen: list[web.Request] = []
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    def put(
        self, path: str, body: bytes | str = b"", status: int = 200, kind: str = "text/plain", **headers: str
    ) -> str:
        data = body.encode() if isinstance(body, str) else body
        named = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.pages[path] = lambda: web.Response(body=data, status=status, headers=named)
        return self.url(path)

    def url(self, path: str) -> str:
        return str(self.server.make_url(path))

    async def _answer(self, request: web.Request) -> web.Response:
        self.seen.append(request)
        return self.pages[request.path]()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    await found.server.start_server()
    yield found
    await found.server.close()


class Names(AbstractResolver):
    """A name server that gives one answer after the other, and the last for ever."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        pass


open_get = http_get_tool(allow_private=True)


async def test_text_and_json_are_given_as_they_are(site: Site) -> None:
    assert await open_get(url=site.put("/a", "plain  text\n")) == "plain  text\n"
    assert await open_get(url=site.put("/b", '{"a": [1]}', kind="application/json")) == '{"a": [1]}'
    assert await open_get(url=site.put("/c", "<a/>", kind="application/rss+xml")) == "<a/>"
    assert await open_get(url=site.put("/d", "a,b", kind="application/octet-stream")) == "a,b"


async def test_of_a_page_only_what_it_says_is_given(site: Site) -> None:
    page = ARTICLE.format(f"<article><h1>Head</h1><p>{TEXT * 5}</p></article>")
    text = await open_get(url=site.put("/", page, kind="text/html"))
    assert text.startswith("# Head")
    assert TEXT.strip() in text
    assert "var x" not in text
    assert "Home" not in text


async def test_without_trafilatura_tags_and_scripts_are_left_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    page = ARTICLE.format("<p>One &amp; <b>t</b>wo<br>1 < 2<!-- <p>no --></p><style>p {}</style><p>three\nfour</p>")
    assert await open_get(url=site.put("/", page, kind="text/html")) == "T\nHome\nOne & two\n1 < 2\nthree four"


async def test_a_page_of_nothing_but_lists_is_not_worked_on_for_long(site: Site) -> None:
    text = await open_get(url=site.put("/", "<html><body>" + "<li>a" * 2_000, kind="text/html"))
    assert text.split("\n") == ["a"] * 2_000  # the thorough way, which takes long, gives one line


async def test_a_page_of_very_many_tags_is_given_with_what_surrounds_it(site: Site) -> None:
    page = ARTICLE.format(f"<article><p>{TEXT * 5}</p>{'<b></b>' * 10_000}</article>")
    assert "Home" in await open_get(url=site.put("/", page, kind="text/html"))


async def test_a_page_with_a_tag_of_very_many_attributes_is_not_worked_on_for_long(site: Site) -> None:
    attributes = " ".join(f"a{number}=1" for number in range(100_000))
    page = ARTICLE.format(f"<p {attributes}>{TEXT * 5}</p>")
    assert TEXT.strip() in await open_get(url=site.put("/", page, kind="text/html"))


async def test_a_character_without_end_is_left_as_it_is(site: Site) -> None:
    page = f"<li>&#{'1' * 5_000};<li>a &amp; b"
    assert await open_get(url=site.put("/", page, kind="text/html")) == f"&#{'1' * 5_000};\na &amp; b"


@given(
    st.lists(st.sampled_from(["<", ">", "<!--", "-->", "<p", "</p>", "<script>", "</script>", "&", "a", "\n", "<!["]))
)
def test_broken_pages_are_read_somehow(pieces: list[str]) -> None:
    assert isinstance(plain("".join(pieces)), str)


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        ("text/html; charset=iso-8859-2", "iso-8859-2"),
        ("text/html", "utf-8"),
        *[(f"text/html; charset={name}", "utf-8") for name in ("nonsense", "base64", "punycode", "idna", "undefined")],
    ],
)
async def test_letters_are_read_in_the_encoding_that_is_said(site: Site, kind: str, encoding: str) -> None:
    page = "<p>Zażółć gęślą jaźń</p>".encode(encoding)
    assert "Zażółć gęślą jaźń" in await open_get(url=site.put("/", page, kind=kind))


async def test_the_encoding_may_be_said_in_the_page(site: Site) -> None:
    page = '<meta charset="iso-8859-2"><p>Zażółć gęślą jaźń</p>'.encode("iso-8859-2")
    assert "Zażółć gęślą jaźń" in await open_get(url=site.put("/", page, kind="text/html"))


async def test_a_response_that_is_not_text_is_described(site: Site) -> None:
    assert await open_get(url=site.put("/a", b"1234", kind="image/png")) == "[image/png, 4 bytes: not a text]"
    assert await open_get(url=site.put("/b", b"a\0b", kind="text/plain")) == "[text/plain, 3 bytes: not a text]"
    assert await open_get(url=site.put("/c", b"")) == "[nothing to read: 200 with no text]"


async def test_a_long_text_is_cut_and_says_so(site: Site) -> None:
    text = await open_get(url=site.put("/", b"x" * 2_000_001))
    assert text == "x" * 2_000_000 + "\n[cut here: only the first 2000000 bytes were read]"
    assert await open_get(url=site.put("/", b"x" * 2_000_000)) == "x" * 2_000_000


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_packed_text_is_unpacked_only_so_far(site: Site, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    assert await open_get(url=site.put("/", pack(b"text"), Content_Encoding=encoding)) == "text"
    bomb = site.put("/", pack(b"x" * 50_000_000), Content_Encoding=encoding)
    tracemalloc.start()
    try:
        text = await open_get(url=bomb)
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
    assert text == "x" * 2_000_000 + "\n[cut here: only the first 2000000 bytes were read]"


@pytest.mark.parametrize(("encoding", "reason"), [("gzip", "is not valid gzip"), ("br", "Content-Encoding is 'br'")])
async def test_a_response_that_cannot_be_decompressed_is_reported(site: Site, encoding: str, reason: str) -> None:
    with pytest.raises(RequestFailed, match=reason):
        await open_get(url=site.put("/", b"nonsense", Content_Encoding=encoding))


async def test_packed_text_that_breaks_off_is_said_to_do_so(site: Site) -> None:
    packed = gzip.compress(bytes(range(256)) * 100)
    with pytest.raises(RequestFailed, match="broke off"):
        await open_get(url=site.put("/", packed[:-8], Content_Encoding="gzip"))


async def test_an_error_says_what_the_server_said(site: Site) -> None:
    url = site.put("/gone", "<h1>Nothing\nhere</h1>", status=404, kind="text/html")
    with pytest.raises(RequestFailed, match=f"^404 Not Found from {url}: Nothing here$") as caught:
        await open_get(url=url)
    assert not isinstance(caught.value, RequestMayPass)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_trouble_that_may_pass_is_tried_again(site: Site, status: int) -> None:
    def answer() -> web.Response:
        return web.Response(text="at last") if len(site.seen) == 3 else web.Response(status=status)

    site.pages["/"] = answer
    soon = replace(open_get, limits=replace(open_get.limits, backoff=0.001))
    assert await asked(soon, site.url("/")) == ("at last", False)
    assert len(site.seen) == 3


@pytest.mark.parametrize("said", ["0", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "²"])
async def test_however_long_a_server_asks_to_wait_it_is_understood(site: Site, said: str) -> None:
    site.pages["/"] = lambda: web.Response(status=503, headers={"Retry-After": said})
    with pytest.raises(RequestMayPass, match="503 Service Unavailable"):
        await open_get(url=site.url("/"))


async def test_a_server_that_asks_for_a_little_time_is_given_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(RequestMayPass, match="429 Too Many Requests"):
        await open_get(url=site.put("/", status=429, Retry_After="3"))
    assert slept == [3.0]


async def test_a_server_that_asks_for_a_long_time_is_not_asked_again(site: Site) -> None:
    url = site.put("/", status=429, Retry_After="3600")
    text, is_error = await asked(open_get, url)
    assert is_error
    assert "it asks to wait for 3600 s" in text
    assert len(site.seen) == 1


async def test_a_server_that_is_not_there_is_trouble_that_may_pass() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(RequestMayPass, match="cannot be fetched"):
            await open_get(url=f"http://127.0.0.1:{held.getsockname()[1]}/")


async def test_a_server_that_never_answers_is_given_up() -> None:
    get = http_get_tool(allow_private=True, timeout=0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError, match=r"longer than 0\.05 s"):
        await get(url=f"http://127.0.0.1:{silent.getsockname()[1]}/")


async def test_a_host_that_does_not_exist_is_said_to_be_none() -> None:
    class Nowhere(Names):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(RequestFailed, match=r"there is no host 'nowhere\.example'") as caught:
        await http_get_tool(resolver=Nowhere(""))(url="http://nowhere.example/")
    assert not isinstance(caught.value, RequestMayPass)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "0.0.0.0",
        "0",
        "127.0.0.2",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "①②⑦.⓪.⓪.①",
    ],
)
async def test_however_it_is_written_this_machine_is_not_reached(site: Site, host: str) -> None:
    port = site.server.port
    site.put("/", "secret")
    with pytest.raises((PermissionError, ValueError, RequestFailed)) as caught:
        await Tool.http_get(url=f"http://{host}:{port}/")
    assert "secret" not in str(caught.value)
    assert site.seen == []


async def test_private_addresses_are_reached_if_the_user_says_so(site: Site) -> None:
    url = site.put("/", "intranet")
    with pytest.raises(PermissionError, match=r"private or reserved address \(127\.0\.0\.1\)"):
        await http_get_tool()(url=url)
    with pytest.raises(PermissionError):
        await http_get_tool(["10.0.0.0/8", "::1/128"])(url=url)
    assert await http_get_tool(["127.0.0.0/8"])(url=url) == "intranet"
    assert await http_get_tool(allow_private=True)(url=url) == "intranet"


async def test_a_name_of_a_private_address_is_refused(site: Site) -> None:
    site.put("/", "secret")
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "localhost"):
        with pytest.raises(PermissionError):
            await http_get_tool(resolver=Names(address))(url=f"http://rebound.example:{site.server.port}/")
    assert site.seen == []


@pytest.mark.parametrize("place", ["http://127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http://localhost:{port}/"])
async def test_a_redirect_to_a_private_address_is_refused(site: Site, place: str) -> None:
    """The network that is allowed stands for the public one."""
    async with TestServer(_redirecting(place.format(port=site.server.port)), host="127.0.0.2") as outside:
        site.put("/", "secret")
        with pytest.raises(PermissionError):
            await http_get_tool(["127.0.0.2/32"])(url=str(outside.make_url("/")))
    assert site.seen == []


async def test_a_name_that_becomes_private_between_two_requests_is_refused(site: Site) -> None:
    async with TestServer(_redirecting("http://rebound.example:{port}/again"), host="127.0.0.2") as outside:
        site.put("/again", "secret")
        names = Names("127.0.0.2", "127.0.0.1")
        get = http_get_tool(["127.0.0.2/32"], resolver=names)
        with pytest.raises(PermissionError):
            await get(url=f"http://rebound.example:{outside.port}/?{site.server.port}")
    assert names.answers == ["127.0.0.1"]
    assert site.seen == []


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://example.com/", "http://user:word@example.com/"])
async def test_a_redirect_to_what_is_not_fetched_is_refused(site: Site, place: str) -> None:
    with pytest.raises(RequestFailed, match="redirects to an address that is not fetched"):
        await open_get(url=site.put("/", status=302, Location=place))


async def test_redirects_are_followed_but_not_for_ever(site: Site) -> None:
    for number in range(7):
        site.put(f"/{number}", status=301, Location=f"{number + 1}")
    site.put("/5", "there")
    assert await open_get(url=site.url("/0")) == "there"
    site.put("/5", status=308, Location="/6")
    with pytest.raises(RequestFailed, match="more than 5 redirects"):
        await open_get(url=site.url("/0"))


async def test_a_redirect_to_nowhere_is_read_as_a_page(site: Site) -> None:
    assert await open_get(url=site.put("/", "Moved.", status=302)) == "Moved."


async def test_a_proxy_of_the_environment_is_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    url = site.put("/", "secret")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, url)
    with pytest.raises(PermissionError):
        await http_get_tool(["127.0.0.1/32"], resolver=Names("10.0.0.1"))(url="http://example.com/")
    assert site.seen == []


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "example.com", "/path", "", "http://", "http://a:99999/", "gopher://x/", "http://[::1/"],
)
async def test_an_invalid_web_address_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        await Tool.http_get(url=url)


async def test_names_and_passwords_in_addresses_are_refused_and_not_repeated() -> None:
    with pytest.raises(PermissionError, match="user name or a password") as caught:
        await Tool.http_get(url="http://someone:hunter2@example.com/")
    assert "hunter2" not in str(caught.value)


async def test_the_server_learns_who_asks_and_keeps_no_cookies_there(site: Site) -> None:
    site.put("/", status=302, Location="/there", Set_Cookie="id=1; Path=/")
    site.put("/there", "hello")
    get = http_get_tool(allow_private=True, resolver=Names("127.0.0.1"))
    assert await get(url=f"http://site.example:{site.server.port}/") == "hello"
    assert [request.headers["User-Agent"].partition("/")[0] for request in site.seen] == ["batch-agent"] * 2
    assert [request.cookies for request in site.seen] == [{}, {}]


async def test_calls_that_overlap_share_a_session_and_leave_none_open(site: Site) -> None:
    gate = asyncio.Event()
    url = site.put("/", "hello")

    async def wait_for_gate(request: web.Request) -> web.Response:
        site.seen.append(request)
        await gate.wait()
        return web.Response(text="late")

    async with TestServer(_app(wait_for_gate), host="127.0.0.1") as slow:
        async with asyncio.TaskGroup() as group:
            late = group.create_task(open_get(url=str(slow.make_url("/"))))
            first, second = await open_get(url=url), await open_get(url=url)
            gate.set()
        assert (first, second, late.result()) == ("hello", "hello", "late")
    peers = [request.transport for request in site.seen if request.path == "/" and request.host in url]
    assert peers.count(peers[0]) == 2


def test_http_get_is_rate_limited_per_host() -> None:
    rate_key = Tool.http_get.limits.rate_key
    assert rate_key is not None
    assert rate_key({"url": "https://Example.com:8080/a"}) == rate_key({"url": "http://example.com/b"}) == "example.com"
    assert rate_key({"url": "http://[broken"}) == ""


IPV4 = st.ip_addresses(v=4)
IPV4_PRIVATE = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
IPV6_PRIVATE = (
    "::/96 ::1/128 64:ff9b:1::/48 100::/64 2001::/32 2001:db8::/32 2002::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8"
)
PRIVATE = st.sampled_from([*IPV4_PRIVATE.split(), *IPV6_PRIVATE.split()])


@given(PRIVATE.flatmap(lambda network: st.ip_addresses(network=network)))
def test_no_private_or_reserved_address_is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert not is_public(address)
    assert not Guard().allows(str(address))


@given(IPV4)
def test_an_address_in_a_wrapping_is_what_it_is_without(address: ipaddress.IPv4Address) -> None:
    assert is_public(ipaddress.IPv6Address(f"::ffff:{address}")) == is_public(address)
    assert is_public(ipaddress.IPv6Address(f"64:ff9b::{address}")) == is_public(address)
    for wrapped in (f"::{address}", f"64:ff9b:1::{address}"):
        assert not is_public(ipaddress.IPv6Address(wrapped))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_public_addresses_are_public(address: str) -> None:
    assert Guard().allows(address)


@pytest.mark.parametrize("address", ["localhost", "example.com", "127.1", "0x7f000001", "fe80::1%eth0", ""])
def test_an_address_that_would_be_resolved_again_is_refused(address: str) -> None:
    assert not Guard().allows(address)


async def asked(tool: Tool, url: str) -> tuple[str, bool]:
    executor = ToolExecutor([tool], timeout=10.0, max_tokens=8000)
    try:
        [result] = await executor.session("agent").results([ToolCall("c1", tool.name, f'{{"url": "{url}"}}')])
    finally:
        await executor.aclose()
    return result.content, result.is_error


def _app(answer: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return app


def _redirecting(place: str) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": place.replace("{port}", request.query_string)})

    return _app(answer)
