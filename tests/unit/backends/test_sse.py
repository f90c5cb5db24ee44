"""Server-sent events."""

import pytest

from batch_agent.backends.sse import SseEvent, SseParser


def events(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_any_of_three_ways(end: bytes) -> None:
    assert events(b"data: a" + end + end + b"data: b" + end + end + b":") == [(b"a", b""), (b"b", b"")]


def test_a_line_end_that_is_split_between_chunks_ends_one_line() -> None:
    assert events(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [(b"a\nb", b"")]


def test_an_event_has_a_name_only_where_it_says_so() -> None:
    assert events(b"event: error\ndata: a\n\ndata: b\n\n") == [(b"a", b"error"), (b"b", b"")]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert events(b": keep-alive\n\nid: 7\nretry: 10\nodd\ndata: a\n: more\n\n") == [(b"a", b"")]


def test_only_one_space_after_the_colon_belongs_to_the_format() -> None:
    assert events(b"data:a\n\ndata:  b\n\n") == [(b"a", b""), (b" b", b"")]


def test_an_event_without_data_is_none() -> None:
    assert events(b"event: ping\n\n\n\n") == []


def test_an_event_that_is_not_closed_is_not_given_out() -> None:
    assert events(b"data: a\n") == []


def test_a_long_line_in_many_pieces_is_read_in_one() -> None:
    body = b"x" * 300_000
    pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
    assert events(b"data: ", *pieces, b"\n\n") == [(body, b"")]


def test_events_of_one_line_are_the_same_whatever_is_between_them() -> None:
    plain = b"data: a\n\ndata: b\n\ndata: c\n\n"
    expected = [(b"a", b""), (b"b", b""), (b"c", b"")]
    assert events(plain) == expected
    for odd in (b": ping\n\n", b": ping\n", b"\n", b"id: 1\n", b"event: none\n\n"):
        assert events(plain.replace(b"data: b", odd + b"data: b")) == expected
        assert events(odd + plain) == expected
        assert events(plain + odd, b"data: d\n\n") == [*expected, (b"d", b"")]


def test_a_line_that_goes_on_in_the_next_chunk_belongs_to_its_event() -> None:
    assert events(b"data: a\n\ndata: b\n", b"data: c\n\n") == [(b"a", b""), (b"b\nc", b"")]
    assert events(b"data: a\n\ndata", b": b\n\n") == [(b"a", b""), (b"b", b"")]
    assert events(b"event: x\n", b"data: a\n\ndata: b\n\n") == [(b"a", b"x"), (b"b", b"")]
    assert events(b"data: a\n", b"data: b\n\ndata: c\n\n") == [(b"a\nb", b""), (b"c", b"")]


def test_an_event_of_many_lines_in_many_pieces_is_one() -> None:
    lines = [b"data: %d\n" % number for number in range(5000)]
    assert events(*lines, b"\n") == [(b"\n".join(b"%d" % number for number in range(5000)), b"")]
