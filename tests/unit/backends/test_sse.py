"""Server-sent events."""

import pytest

from batch_agent.backends.sse import SseEvent, SseParser


def events(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_any_of_three_ways(end: bytes) -> None:
    assert events(b"data: a" + end + end + b"data: b" + end + end + b":") == [SseEvent(b"a"), SseEvent(b"b")]


def test_a_line_end_that_is_split_between_chunks_ends_one_line() -> None:
    assert events(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [SseEvent(b"a\nb")]


def test_an_event_has_a_name_only_where_it_says_so() -> None:
    assert events(b"event: error\ndata: a\n\ndata: b\n\n") == [SseEvent(b"a", b"error"), SseEvent(b"b")]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert events(b": keep-alive\n\nid: 7\nretry: 10\nodd\ndata: a\n: more\n\n") == [SseEvent(b"a")]


def test_only_one_space_after_the_colon_belongs_to_the_format() -> None:
    assert events(b"data:a\n\ndata:  b\n\n") == [SseEvent(b"a"), SseEvent(b" b")]


def test_an_event_without_data_is_none() -> None:
    assert events(b"event: ping\n\n\n\n") == []


def test_an_event_that_is_not_closed_is_not_given_out() -> None:
    assert events(b"data: a\n") == []


def test_a_long_line_in_many_pieces_is_read_in_one() -> None:
    body = b"x" * 300_000
    pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
    assert events(b"data: ", *pieces, b"\n\n") == [SseEvent(body)]
