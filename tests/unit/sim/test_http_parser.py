import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.sim.http_parser import MAX_HEAD_BYTES, BadRequest, HttpRequest, RequestReader

PLAIN = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"


@given(st.lists(st.integers(1, 40), max_size=30))
def test_requests_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    data = PLAIN + CHUNKED + GET
    reader = RequestReader()
    requests = []
    for size in [*cuts, len(data)]:
        reader.feed(data[:size])
        data = data[size:]
        while request := reader.next():
            requests.append(request)
    assert requests == [
        HttpRequest(b"POST", b"/v1/x", b"hello", True, b"y=1", b"\r\nHost: a\r\nContent-Length: 5"),
        HttpRequest(b"POST", b"/c", b"abcde", True, b"", b"\r\nTransfer-Encoding: chunked"),
        HttpRequest(b"GET", b"/health", b"", False, b"", b"\r\nConnection: close"),
    ]
    assert not reader.has_bytes


def test_a_piece_that_is_one_request_needs_no_buffer() -> None:
    reader = RequestReader()
    request = reader.parse_single(PLAIN)
    assert request is not None
    assert request[:5] == (b"POST", b"/v1/x", b"hello", True, b"y=1")
    assert reader.parse_single(PLAIN[:-1]) is None
    assert reader.parse_single(PLAIN + b"P") is None
    assert reader.parse_single(CHUNKED) is None
    reader.feed(PLAIN[:3])
    assert reader.parse_single(PLAIN) is None


def test_a_header_keeps_its_case_and_is_found_in_any() -> None:
    request = RequestReader().parse_single(b"GET / HTTP/1.1\r\nCONTENT-Type: x; boundary=AbC\r\nHost: a:1\r\n\r\n")
    assert request is not None
    assert (request.header(b"content-type"), request.header(b"host")) == (b"x; boundary=AbC", b"a:1")
    assert request.header(b"type") == b""


def test_an_old_client_closes_unless_it_says_otherwise() -> None:
    reader = RequestReader()
    reader.feed(b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n")
    first, second = reader.next(), reader.next()
    assert first is not None
    assert second is not None
    assert (first.keep_alive, second.keep_alive) == (False, True)


def test_a_client_that_waits_for_100_is_noticed() -> None:
    reader = RequestReader()
    reader.feed(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.next() is None
    assert reader.wants_continue()
    reader.feed(b"ok")
    assert reader.next() is not None
    assert not reader.wants_continue()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / SPDY/3\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"x" * (MAX_HEAD_BYTES + 1),
    ],
    ids=range(7),
)
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    reader = RequestReader()
    reader.feed(data)
    with pytest.raises(BadRequest):
        reader.next()
