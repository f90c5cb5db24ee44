"""HTTP answers from bytes: the same for any way to cut them, and an error for what is none."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.backends.http.h1_parser import ProtocolError, ResponseParser, ResponseTooLarge

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 5\r\n\r\nHello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;name=value\r\nHe\r\n3 \r\nllo\r\n0\r\nTrailer: x\r\n\r\n"
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nHello"
ZIPPED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (
    len(gzip.compress(b"Hello", mtime=0)),
    gzip.compress(b"Hello", mtime=0),
)
FOLDED = b"HTTP/1.1 200 OK\r\nX-Long: a\r\n  b\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nHello"
DEFLATED = b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n" + zlib.compress(b"Hello")

ALL = [SIZED, CHUNKED, CONTINUED, UNTIL_CLOSED, ZIPPED, DEFLATED, FOLDED]


def chunked(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


def with_head(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode("latin-1") + body


def fed(*pieces: bytes, closed: bool = False) -> tuple[ResponseParser, bytes]:
    reader = ResponseParser()
    body = b"".join([reader.feed(piece) for piece in pieces])
    if closed:
        reader.end()
    return reader, body


@pytest.mark.parametrize("answer", ALL, ids=range(len(ALL)))
@given(data=st.data())
def test_a_response_is_parsed_the_same_for_any_chunking(answer: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=6)))
    pieces = [answer[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    reader, body = fed(*pieces, closed=answer in (UNTIL_CLOSED, DEFLATED))
    assert reader.head is not None
    assert (reader.head.status, body, reader.is_complete) == (200, b"Hello", True)


@pytest.mark.parametrize("answer", ALL, ids=range(len(ALL)))
def test_a_response_is_parsed_the_same_byte_by_byte(answer: bytes) -> None:
    one_by_one = [answer[at : at + 1] for at in range(len(answer))]
    assert fed(*one_by_one, closed=answer in (UNTIL_CLOSED, DEFLATED))[1] == b"Hello"


def test_headers_are_found_by_lowercase_names() -> None:
    reader, _ = fed(b"HTTP/1.1 429 Too Many\r\nRETRY-AFTER:  7 \r\nContent-Length: 0\r\n\r\n")
    assert reader.head is not None
    assert (reader.head.status, reader.head.headers["retry-after"], reader.is_complete) == (429, "7", True)


@pytest.mark.parametrize(("said", "read"), [("text/Event-Stream; charset=utf-8", "text/event-stream"), ("", "")])
def test_the_content_type_is_returned_without_parameters(said: str, read: str) -> None:
    reader, _ = fed(f"HTTP/1.1 200 OK\r\nContent-Type: {said}\r\n\r\n".encode())
    assert reader.head is not None
    assert reader.head.content_type == read


@pytest.mark.parametrize(
    ("answer", "keep_alive"),
    [
        (SIZED, True),
        (CHUNKED, True),
        (SIZED.replace(b"Content-Type", b"Connection: close\r\nContent-Type"), False),
        (SIZED.replace(b"1.1", b"1.0"), False),
        (SIZED.replace(b"1.1", b"1.0").replace(b"Content-Type", b"Connection: Keep-Alive\r\nContent-Type"), True),
        (SIZED + b"HTTP", False),
        (CHUNKED + b"HTTP", False),
        (SIZED + b"\r\n", False),
        (CHUNKED + b"\r\n", False),
        (SIZED + b"\n", False),
        (CHUNKED + b"\r", False),
    ],
)
def test_keep_alive_follows_version_and_connection_header(answer: bytes, keep_alive: bool) -> None:
    reader, body = fed(answer)
    assert (body, reader.is_complete, reader.keep_alive) == (b"Hello", True, keep_alive)


@pytest.mark.parametrize("status", [204, 304])
def test_responses_of_some_statuses_have_no_body(status: int) -> None:
    assert fed(b"HTTP/1.1 %d Nothing\r\n\r\n" % status)[0].is_complete


@pytest.mark.parametrize("answer", [SIZED[:-1], CHUNKED[:-2], CHUNKED[:60], SIZED[:20]])
def test_a_response_that_ends_early_is_incomplete(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        fed(answer, closed=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\r\n" + SIZED,
        b"\r\n\r\n" + SIZED,
        b"HTTP/1.1 100 Continue\r\n\r\n\r\n" + SIZED,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nHello",
        b"a" * 100_000,
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nHello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\n\r\nHello\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 100 Continue\r\n\nHTTP/1.1 100 Continue\r\n\r\n" + SIZED,
        b"HTTP/1.1 200 " + b"a" * 500 + b"\n" + b"\r\n\r\n",
        with_head(" X-Folded: before all others"),
        with_head("Content-Length : 5"),
        with_head("Con tent: 5"),
        with_head(": 5"),
        with_head("X-Odd: a\0b"),
        with_head("X-Odd: a\rb"),
        with_head("Content-Length: 5", "Content-Length: 6"),
        with_head("Content-Length: 5, 6"),
        with_head("Content-Length: +5"),
        with_head("Content-Length: 1_0"),
        with_head("Content-Length: 0x5"),
        with_head("Content-Length: \u00b2"),
        with_head("Content-Length:"),
        with_head("Content-Length: " + "9" * 5000),
        with_head("Transfer-Encoding: gzip, chunked"),
        with_head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        with_head("Transfer-Encoding: identity"),
        with_head("Content-Encoding: br"),
        with_head("Content-Encoding: gzip, gzip"),
        with_head("X: " + "a" * 70_000),
        with_head(*[f"X-{number}: a" for number in range(300)]),
        chunked(b"5\r\nHelloXY0\r\n\r\n"),
        chunked(b"5\r\nHello\n\n"),
        chunked(b"5\nHello"),
        chunked(b"0x5\r\nHello"),
        chunked(b"1_0\r\nHello"),
        chunked(b"+5\r\nHello"),
        chunked(b" 5\r\nHello"),
        chunked(b"5 5\r\nHello"),
        chunked(b"f" * 16 + b"\r\n"),
        chunked(b"5;a=\n\r\nHello"),
        chunked(b"5;" + b"a" * 2000 + b"\r\nHello\r\n0\r\n\r\n"),
        chunked(b"0\r\n" + b"X: a\r\n" * 30_000),
        chunked(b"0\r\nX: a\nY: b\r\n\r\n"),
        chunked(b"0\r\nX: " + b"a" * 2000 + b"\r\n\r\n"),
        with_head("Content-Encoding: gzip", "Content-Length: 25", body=gzip.compress(b"Hello", mtime=0)[:-1] + b"x"),
        with_head("Content-Encoding: gzip", "Content-Length: 10", body=gzip.compress(b"Hello", mtime=0)[:10]),
        with_head("Content-Encoding: gzip", "Content-Length: 26", body=gzip.compress(b"Hello", mtime=0) + b"x"),
    ],
    ids=lambda answer: answer[:80].decode("latin-1"),
)
def test_an_invalid_response_is_a_protocol_error(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        fed(answer)


def test_a_chunked_response_with_a_length_ends_with_its_chunks_and_closes() -> None:
    answer = CHUNKED.replace(b"\r\n\r\n2;", b"\r\nContent-Length: 3\r\n\r\n2;")
    reader, body = fed(answer)
    assert (body, reader.is_complete, reader.keep_alive) == (b"Hello", True, False)


def test_repeated_headers_are_joined() -> None:
    reader, _ = fed(with_head("X-A: 1", "x-a: 2", "Content-Length: 0"))
    assert reader.head is not None
    assert reader.head.headers["x-a"] == "1, 2"
    assert fed(FOLDED)[0].head.headers["x-long"] == "a b"  # type: ignore[union-attr]


def test_a_compressed_response_without_a_body_is_complete() -> None:
    assert fed(with_head("Content-Encoding: gzip", "Content-Length: 0"))[0].is_complete
    assert fed(b"HTTP/1.1 204 No Content\r\nContent-Encoding: br\r\nTransfer-Encoding: odd\r\n\r\n")[0].is_complete


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, UNTIL_CLOSED, ZIPPED, DEFLATED])
def test_a_body_beyond_the_limit_is_rejected(answer: bytes) -> None:
    assert ResponseParser(5).feed(answer) == b"Hello"
    with pytest.raises(ResponseTooLarge, match="larger than 4 bytes"):
        ResponseParser(4).feed(answer)


def test_a_body_limit_may_be_set_after_the_headers() -> None:
    reader = ResponseParser()
    reader.feed(SIZED[:-3])
    reader.set_limit(5)
    with pytest.raises(ResponseTooLarge):
        reader.set_limit(4)
    reader = ResponseParser()
    reader.feed(UNTIL_CLOSED)
    with pytest.raises(ResponseTooLarge):
        reader.set_limit(4)


@pytest.mark.slow
def test_a_compressed_body_is_decompressed_up_to_its_limit() -> None:
    bomb = gzip.compress(b"\0" * 100_000_000)
    reader = ResponseParser(1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ResponseTooLarge):
            reader.feed(with_head("Content-Encoding: gzip", body=bomb))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def outcome(pieces: list[bytes]) -> tuple[object, ...]:
    """What an answer comes to, of which all bytes are there and the connection is closed."""
    reader, body = ResponseParser(1000), b""
    try:
        for piece in pieces:
            if not reader.is_complete:
                body += reader.feed(piece)
        if not reader.is_complete:
            reader.end()
    except ProtocolError:
        return ("bad",)
    assert len(body) <= 1000
    return (reader.head, body)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ALL, ids=range(len(ALL)))
@given(data=st.data())
def test_a_damaged_response_is_parsed_or_rejected_the_same_for_any_chunking(answer: bytes, data: st.DataObject) -> None:
    damaged = bytearray(answer)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\n", b"\r", b":", b"0", b"f", b" ", b";", b"9" * 30])
        )
    whole = bytes(damaged)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert outcome(pieces) == outcome([whole]) == outcome([whole[at : at + 1] for at in range(len(whole))])
