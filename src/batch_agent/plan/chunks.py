"""Chunks of a long input: where its text is split, the task of each chunk, and the task that merges the answers."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson

from ..core.fast_dataclass import dataclass
from ..core.schema import is_model
from .field_paths import steps_of

_CUT_BEFORE = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^#[ \t]+\S",
        r"^##[ \t]+\S",
        r"^#{3,6}[ \t]+\S|^(?:@[^\n]*\n){0,9}(?:(?:export |public |pub )?(?:async )?(?:def|class|function|func|fn) \w)",
    )
)
_CUT_AFTER = tuple(
    re.compile(pattern)
    for pattern in (
        r"\n(?:[ \t]*\r?\n)+",
        r"\n",
        r"[.!?…][\"'”’)\]]*\s+|[。！？]",
        r"\s+",
    )
)
_MIN_CHARS = 2
_SLACK_DIVISOR = 4
"""A chunk may deviate from the average length by one part in this many, for the sake of a cut at a larger structure."""
_UNITS_PER_CHUNK = 32
"""Units smaller than a chunk by this factor are combined: a text may have millions of lines."""


def split(text: str, max_chars: int) -> list[str]:
    """Splits a text into consecutive chunks of about equal length, at most `max_chars`.

    Cuts are made at the largest structure that leaves chunks small enough: headings and top-level definitions, then
    paragraphs, lines, sentences, spaces, and only then anywhere. Raises ValueError below two characters."""
    if max_chars < _MIN_CHARS:
        raise ValueError(f"max_chars must be at least {_MIN_CHARS}; got {max_chars}.")
    if len(text) <= max_chars:
        return [text]
    pieces = list(_pieces(text, max_chars, 0, 0))
    ends = list(accumulate(length for length, _ in pieces))
    cuts = _even_cuts(ends, [level for _, level in pieces], max_chars)
    return [text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


def _pieces(text: str, max_chars: int, level: int, after: int) -> Iterator[tuple[int, int]]:
    """Lengths of the largest units that are small enough, with the level of the cut after each. `after`: level of the
    cut after the text."""
    if len(text) <= max_chars:
        yield len(text), after
        return
    if level == len(_CUT_BEFORE) + len(_CUT_AFTER):
        yield from _split_anywhere(text, max_chars, after)
        return
    cuts = [*_cuts(text, level), len(text)]
    start = 0
    while start < len(text):
        near = bisect_right(cuts, start + max_chars // _UNITS_PER_CHUNK) - 1
        end = cuts[near] if near >= 0 and cuts[near] > start else cuts[bisect_right(cuts, start)]
        yield from _pieces(text[start:end], max_chars, level + 1, level if end < len(text) else after)
        start = end


def _cuts(text: str, level: int) -> list[int]:
    if level < len(_CUT_BEFORE):
        return [found.start() for found in _CUT_BEFORE[level].finditer(text)]
    return [found.end() for found in _CUT_AFTER[level - len(_CUT_BEFORE)].finditer(text)]


def _split_anywhere(text: str, max_chars: int, after: int) -> Iterator[tuple[int, int]]:
    size = -(-len(text) // -(-len(text) // max_chars))
    start = 0
    while start < len(text):
        end = min(start + size, len(text))
        if end < len(text) and "\ud800" <= text[end - 1] <= "\udbff" and "\udc00" <= text[end] <= "\udfff":
            end -= 1  # do not split a surrogate pair
        yield end - start, len(_CUT_BEFORE) + len(_CUT_AFTER) if end < len(text) else after
        start = end


def _even_cuts(ends: Sequence[int], levels: Sequence[int], max_chars: int) -> list[int]:
    """Ends of the fewest possible chunks, chosen from the ends of pieces. Of the cuts near the end of an equal chunk,
    takes the one at the largest structure, otherwise the nearest."""
    earliest = _earliest_cuts(ends, max_chars)
    cuts: list[int] = []
    at = 0
    for left, soonest in zip(range(len(earliest), 0, -1), earliest, strict=True):
        wanted = at + (ends[-1] - at) / left
        slack = (ends[-1] - at) / left / _SLACK_DIVISOR
        first, last = bisect_left(ends, soonest), bisect_right(ends, at + max_chars) - 1
        low = min(max(bisect_left(ends, wanted - slack) - 1, first), last)
        high = max(min(bisect_right(ends, wanted + slack), last), first)
        best = min(range(low, high + 1), key=lambda n: _cut_cost(ends[n] - wanted, slack, levels[n]))
        at = ends[best]
        cuts.append(at)
    return cuts


def _cut_cost(off: float, slack: float, level: int) -> tuple[bool, float, float]:
    is_far = abs(off) > slack
    return (is_far, abs(off), level) if is_far else (is_far, level, abs(off))


def _earliest_cuts(ends: Sequence[int], max_chars: int) -> list[int]:
    """Earliest end of each chunk that leaves the following chunks short enough."""
    cuts = [ends[-1]]
    while cuts[-1] > max_chars:
        cuts.append(ends[bisect_left(ends, cuts[-1] - max_chars)])
    return cuts[::-1]


@dataclass(frozen=True, slots=True)
class TextField:
    """Text of an input that is split, and its path in the input. An empty path means that the input itself is the
    text."""

    text: str
    steps: tuple[str, ...] = ()


def longest_text(value: Any, fields: Sequence[str]) -> TextField | None:
    """Longest text among the fields that the task uses; None if no field is text."""
    if isinstance(value, str):
        return TextField(value)
    found = [field for path in fields if (field := _at(value, path)) is not None]
    return max(found, key=lambda field: len(field.text), default=None)


def with_text(value: Any, steps: Sequence[str], text: str) -> Any:
    """Copy of the input with the text at the path `steps` replaced."""
    if not steps:
        return text
    first, *others = steps
    changed = {first: with_text(_members(value)[first], others, text)}
    return value.model_copy(update=changed) if is_model(value) else {**value, **changed}


def _at(value: Any, path: str) -> TextField | None:
    steps = (path,) if path in _members(value) else tuple(step.name for step in steps_of(path))
    for step in steps:
        members = _members(value)
        if step not in members:
            return None
        value = members[step]
    return TextField(value, steps) if isinstance(value, str) else None


def _members(value: Any) -> Mapping[Any, Any]:
    if is_model(value):
        return dict(value)
    return value if isinstance(value, Mapping) else {}


def placeholder(parts: int) -> str:
    """Placeholder for the split text in a task."""
    return f"[given in {parts} parts]"


def part_task(task: str, number: int, parts: int) -> str:
    """Task of one chunk."""
    return (
        f"{task}\n\n[This is part {number} of {parts} of an input that is too long to be read at once. Answer for this "
        "part alone; the answers to all parts are merged afterwards.]"
    )


def merge_task(outline: str, parts: int, answers: Sequence[Any]) -> str:
    """Task that merges the answers of chunks. `outline`: the task with a placeholder for the text. `answers`: in the
    order of the chunks."""
    each = "one for each part" if len(answers) == parts else "each for one part, or for several that follow each other"
    from pydantic_core import to_jsonable_python  # rarely needed

    listed = orjson.dumps(to_jsonable_python(list(answers), fallback=str), option=orjson.OPT_INDENT_2).decode()
    return (
        f"An input was too long to be read at once. It was split into {parts} parts, and each was answered on its own. "
        f"The task was:\n\n{outline}\n\nThese are the answers, {each}, in order:\n\n{listed}\n\n"
        "Do the task for the whole of what these answers cover: give one answer that brings them together."
    )
