"""Server-sent events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.backends.http import sse
from batch_agent.backends.http.sse import SseEvent, SseParser
from batch_agent.core.errors import BackendError


def events(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_any_of_three_ways(end: bytes) -> None:
    assert events(b"data: a" + end + end + b"data: b" + end + end + b":") == [(b"a", b""), (b"b", b"")]


def test_a_line_end_that_is_split_between_chunks_ends_one_line() -> None:
    assert events(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [(b"a\nb", b"")]


def test_an_event_has_a_name_only_with_an_event_field() -> None:
    assert events(b"event: error\ndata: a\n\ndata: b\n\n") == [(b"a", b"error"), (b"b", b"")]


def test_comments_and_unknown_fields_are_ignored() -> None:
    assert events(b": keep-alive\n\nid: 7\nretry: 10\nodd\ndata: a\n: more\n\n") == [(b"a", b"")]


def test_only_one_space_after_the_colon_belongs_to_the_format() -> None:
    assert events(b"data:a\n\ndata:  b\n\n") == [(b"a", b""), (b" b", b"")]


def test_an_event_without_data_is_dropped() -> None:
    assert events(b"event: ping\n\n\n\n") == []


def test_an_event_without_a_final_blank_line_is_not_delivered() -> None:
    assert events(b"data: a\n") == []


def test_a_long_line_in_many_chunks_is_one_line() -> None:
    body = b"x" * 300_000
    pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
    assert events(b"data: ", *pieces, b"\n\n") == [(body, b"")]


def test_single_line_events_are_the_same_whatever_is_between_them() -> None:
    plain = b"data: a\n\ndata: b\n\ndata: c\n\n"
    expected = [(b"a", b""), (b"b", b""), (b"c", b"")]
    assert events(plain) == expected
    for odd in (b": ping\n\n", b": ping\n", b"\n", b"id: 1\n", b"event: none\n\n"):
        assert events(plain.replace(b"data: b", odd + b"data: b")) == expected
        assert events(odd + plain) == expected
        assert events(plain + odd, b"data: d\n\n") == [*expected, (b"d", b"")]


def test_a_line_split_between_chunks_belongs_to_its_event() -> None:
    assert events(b"data: a\n\ndata: b\n", b"data: c\n\n") == [(b"a", b""), (b"b\nc", b"")]
    assert events(b"data: a\n\ndata", b": b\n\n") == [(b"a", b""), (b"b", b"")]
    assert events(b"event: x\n", b"data: a\n\ndata: b\n\n") == [(b"a", b"x"), (b"b", b"")]
    assert events(b"data: a\n", b"data: b\n\ndata: c\n\n") == [(b"a\nb", b""), (b"c", b"")]


def test_an_event_of_many_lines_in_many_chunks_is_one_event() -> None:
    lines = [b"data: %d\n" % number for number in range(5000)]
    assert events(*lines, b"\n") == [(b"\n".join(b"%d" % number for number in range(5000)), b"")]


@pytest.mark.parametrize("cut", range(5))
def test_a_byte_order_mark_before_the_first_event_is_ignored(cut: int) -> None:
    stream = b"\xef\xbb\xbfdata: a\n\ndata: b\n\n"
    assert events(stream[:cut], stream[cut:]) == [(b"a", b""), (b"b", b"")]


def test_only_the_first_bytes_can_be_a_byte_order_mark() -> None:
    assert events(b"data: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n") == [(b"a", b""), (b"c", b"")]
    assert events(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n") == [(b"b", b"")]
    assert events(b"\xef\xbb", b"data: a\n\ndata: b\n\n") == [(b"b", b"")]


def test_a_line_that_ends_in_cr_ends_at_once() -> None:
    assert events(b"data: a\r\r") == [(b"a", b"")]
    assert events(b"data: a\r", b"\r") == [(b"a", b"")]
    assert events(b"data: a\r\n\r", b"\ndata: b\n\n") == [(b"a", b""), (b"b", b"")]


def test_data_is_delivered_byte_for_byte() -> None:
    assert events(b"data: \0 \xff\xfe\n\n") == [(b"\0 \xff\xfe", b"")]


@pytest.mark.parametrize("line", [b"x" * 1000, b"data: x\n"])
def test_an_endless_event_is_rejected(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10_000)
    parser = SseParser()
    assert parser.feed(b"data: whole\n\n" * 5000) == [(b"whole", b"")] * 5000
    with pytest.raises(BackendError, match="an event larger than 9"):
        list(map(parser.feed, [line] * 5000))


LINES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:b", b"data", b"data:  c", b"event: e", b": comment", b"id: 7", b"odd", b"", b""]
    )
)


@given(LINES, st.data())
def test_events_are_the_same_for_any_chunking(lines: list[bytes], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=len(lines), max_size=len(lines)))
    following = [*lines[1:], b":"][: len(lines)]
    ends = [b"\r\n" if end == b"\r" and not after else end for end, after in zip(ends, following, strict=True)]
    stream = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert events(*pieces) == events(stream) == _by_the_standard(lines)


def _by_the_standard(lines: list[bytes]) -> list[SseEvent]:
    found: list[SseEvent] = []
    values: list[bytes] = []
    name = b""
    for line in lines:
        if not line:
            if values:
                found.append((b"\n".join(values), name))
            values, name = [], b""
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        values += [value] if field == b"data" else []
        name = value if field == b"event" else name
    return found
