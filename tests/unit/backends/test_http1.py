"""HTTP answers from bytes: the same for any way to cut them, and an error for what is none."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.backends.http1 import AnswerReader, BadAnswer

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
DEFLATED = b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n" + zlib.compress(b"Hello")


def fed(*pieces: bytes, closed: bool = False) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    body = b"".join([reader.feed(piece) for piece in pieces])
    if closed:
        reader.end()
    return reader, body


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, CONTINUED, UNTIL_CLOSED, ZIPPED, DEFLATED])
@given(data=st.data())
def test_an_answer_is_the_same_however_its_bytes_come(answer: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=6)))
    pieces = [answer[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    reader, body = fed(*pieces, closed=answer in (UNTIL_CLOSED, DEFLATED))
    assert reader.head is not None
    assert (reader.head.status, body, reader.is_whole) == (200, b"Hello", True)


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, CONTINUED, UNTIL_CLOSED, ZIPPED, DEFLATED])
def test_an_answer_is_the_same_byte_by_byte(answer: bytes) -> None:
    one_by_one = [answer[at : at + 1] for at in range(len(answer))]
    assert fed(*one_by_one, closed=answer in (UNTIL_CLOSED, DEFLATED))[1] == b"Hello"


def test_headers_are_found_by_their_names_in_small_letters() -> None:
    reader, _ = fed(b"HTTP/1.1 429 Too Many\r\nRETRY-AFTER:  7 \r\nContent-Length: 0\r\n\r\n")
    assert reader.head is not None
    assert (reader.head.status, reader.head.headers["retry-after"], reader.is_whole) == (429, "7", True)


@pytest.mark.parametrize(("said", "read"), [("text/Event-Stream; charset=utf-8", "text/event-stream"), ("", "")])
def test_a_content_type_is_told_without_its_parameters(said: str, read: str) -> None:
    reader, _ = fed(f"HTTP/1.1 200 OK\r\nContent-Type: {said}\r\n\r\n".encode())
    assert reader.head is not None
    assert reader.head.content_type == read


@pytest.mark.parametrize(
    ("answer", "keeps_open"),
    [
        (SIZED, True),
        (CHUNKED, True),
        (SIZED.replace(b"Content-Type", b"Connection: close\r\nContent-Type"), False),
        (SIZED.replace(b"1.1", b"1.0"), False),
        (SIZED.replace(b"1.1", b"1.0").replace(b"Content-Type", b"Connection: Keep-Alive\r\nContent-Type"), True),
        (SIZED + b"HTTP", False),
        (CHUNKED + b"HTTP", False),
    ],
)
def test_whether_the_connection_may_be_used_again(answer: bytes, keeps_open: bool) -> None:
    reader, body = fed(answer)
    assert (body, reader.is_whole, reader.keeps_open) == (b"Hello", True, keeps_open)


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status: int) -> None:
    assert fed(b"HTTP/1.1 %d Nothing\r\n\r\n" % status)[0].is_whole


@pytest.mark.parametrize("answer", [SIZED[:-1], CHUNKED[:-2], CHUNKED[:60], SIZED[:20]])
def test_what_ends_too_early_is_not_whole(answer: bytes) -> None:
    with pytest.raises(BadAnswer):
        fed(answer, closed=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
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
    ],
)
def test_what_is_no_answer_is_said_to_be_none(answer: bytes) -> None:
    with pytest.raises(BadAnswer):
        fed(answer)
