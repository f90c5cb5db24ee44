"""However the bytes come, the lines are the same."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.supervisor import ProgramLimits, TooMuchOutput
from batch_agent.supervisor.output_stream import HeadTailBuffer, LineSplitter

TEXT = st.lists(st.sampled_from([b"\n", b"a", b"\xff", b"long", b"\r"]), max_size=12).map(b"".join)


def lines(chunks: list[bytes], limits: ProgramLimits) -> tuple[list[bytes], str]:
    """With the error that they end in."""
    splitter = LineSplitter("program", limits)
    found: list[bytes] = []
    try:
        for chunk in chunks:
            splitter.feed(chunk)
            while (line := splitter.next()) is not None:
                found.append(line)
        splitter.finish()
        while (line := splitter.next()) is not None:
            found.append(line)
    except TooMuchOutput as error:
        return found, str(error)
    return found, ""


@given(TEXT, st.lists(st.integers(0, 40)), st.integers(1, 12), st.integers(1, 40))
def test_lines_and_errors_are_the_same_for_any_chunking(text: bytes, cuts: list[int], line: int, total: int) -> None:
    limits = ProgramLimits(max_bytes=total, max_line_bytes=line)
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    chunks = [text[start:end] for start, end in pairwise(edges)]
    assert lines(chunks, limits) == lines([text], limits)


@given(TEXT)
def test_within_the_limits_no_byte_is_lost(text: bytes) -> None:
    found, error = lines([text], ProgramLimits())
    assert not error
    assert b"\n".join(found) == text.removesuffix(b"\n")


@given(st.lists(st.binary(max_size=5000), max_size=5))
def test_an_excerpt_is_all_of_a_short_text_and_both_ends_of_a_long_one(chunks: list[bytes]) -> None:
    excerpt, text = HeadTailBuffer(), b"".join(chunks)
    for chunk in chunks:
        excerpt.add(chunk)
    if len(text) <= 8000:
        assert bytes(excerpt) == text
    else:
        assert bytes(excerpt) == text[:4000] + b"\n[... %d bytes left out ...]\n" % (len(text) - 8000) + text[-4000:]
