"""Cutting a text loses nothing, keeps the limit, and is the same every time."""

from hypothesis import example, given
from hypothesis import strategies as st

from batch_agent.plan.chunks import split

PIECES = st.sampled_from(
    [
        "\n\n",
        "\n",
        " ",
        "\r\n",
        "# Title\n",
        "## Sub\n",
        "def f():\n",
        "@x\n",
        "word",
        "x" * 40,
        "A sentence. ",
        "。",
        "\t",
    ]
)
TEXTS = st.text() | st.lists(PIECES | st.text(max_size=5), max_size=60).map("".join)


@given(TEXTS, st.integers(2, 60))
@example("\ud83d\ude00" * 5, 3)
@example("x" * 7, 2)
def test_chunks_add_up_to_the_text_and_none_exceeds_the_limit(text: str, most: int) -> None:
    parts = split(text, most)
    assert "".join(parts) == text
    assert all(0 < len(part) <= most for part in parts) or parts == [""]
    assert split(text, most) == parts


@given(
    st.lists(st.sampled_from(["\ud83d\ude00", "a", "\ude00", "\ud83d", " "]), max_size=40).map("".join),
    st.integers(2, 9),
)
def test_no_surrogate_pair_is_split(text: str, most: int) -> None:
    cuts = zip(split(text, most), split(text, most)[1:], strict=False)
    assert not any("\ud800" <= before[-1] <= "\udbff" and "\udc00" <= after[0] <= "\udfff" for before, after in cuts)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 200))
def test_paragraphs_that_fit_are_never_split_and_chunks_are_as_few_as_possible(sizes: list[int], most: int) -> None:
    paragraphs = ["x" * size + "\n\n" for size in sizes]
    parts = split("".join(paragraphs), most + 2)
    grain = (most + 2) // 32  # smaller ones may be taken together
    if grain < min(map(len, paragraphs)):
        assert len(parts) == _fewest(paragraphs, most + 2)
    assert all(part.endswith("\n\n") for part in parts)


def _fewest(paragraphs: list[str], most: int) -> int:
    parts, size = 1, 0
    for paragraph in paragraphs:
        if size + len(paragraph) > most:
            parts, size = parts + 1, 0
        size += len(paragraph)
    return parts
