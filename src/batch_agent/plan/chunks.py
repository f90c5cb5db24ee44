"""An input in parts: where its text is cut, what each part is asked, and how the answers become one."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson

from ..core.fast_dataclass import dataclass
from ..core.schema import is_model
from .field_paths import steps_of

_BEFORE = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^#[ \t]+\S",
        r"^##[ \t]+\S",
        r"^#{3,6}[ \t]+\S|^(?:@[^\n]*\n){0,9}(?:(?:export |public |pub )?(?:async )?(?:def|class|function|func|fn) \w)",
    )
)
_AFTER = tuple(
    re.compile(pattern)
    for pattern in (
        r"\n(?:[ \t]*\r?\n)+",
        r"\n",
        r"[.!?…][\"'”’)\]]*\s+|[。！？]",
        r"\s+",
    )
)
_FEWEST = 2
_SLACK = 4
"""A part may be so much of its length longer or shorter than the others, for a better place to cut."""
_GRAINS = 32
"""Units far smaller than a part are not looked at one by one: a text may have millions of lines."""


def split(text: str, most_chars: int) -> list[str]:
    """Cuts a text into parts of at most `most_chars`, about equal, that together are the text.

    A cut is made at the largest structure that leaves parts small enough: headings and top-level definitions, then
    paragraphs, lines, sentences, words, and only then anywhere. Raises ValueError below two characters."""
    if most_chars < _FEWEST:
        raise ValueError(f"most_chars must be at least {_FEWEST}; got {most_chars}.")
    if len(text) <= most_chars:
        return [text]
    pieces = list(_pieces(text, most_chars, 0, 0))
    ends = list(accumulate(length for length, _ in pieces))
    cuts = _even_cuts(ends, [level for _, level in pieces], most_chars)
    return [text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


def _pieces(text: str, most: int, level: int, after: int) -> Iterator[tuple[int, int]]:
    """The lengths of the largest units that are small enough, each cut no finer than it must be, and of which level
    the cut behind each is. `after`: that of the cut behind the text."""
    if len(text) <= most:
        yield len(text), after
        return
    if level == len(_BEFORE) + len(_AFTER):
        yield from _anywhere(text, most, after)
        return
    cuts = [*_cuts(text, level), len(text)]
    start = 0
    while start < len(text):
        near = bisect_right(cuts, start + most // _GRAINS) - 1
        end = cuts[near] if near >= 0 and cuts[near] > start else cuts[bisect_right(cuts, start)]
        yield from _pieces(text[start:end], most, level + 1, level if end < len(text) else after)
        start = end


def _cuts(text: str, level: int) -> list[int]:
    if level < len(_BEFORE):
        return [found.start() for found in _BEFORE[level].finditer(text)]
    return [found.end() for found in _AFTER[level - len(_BEFORE)].finditer(text)]


def _anywhere(text: str, most: int, after: int) -> Iterator[tuple[int, int]]:
    size = -(-len(text) // -(-len(text) // most))
    start = 0
    while start < len(text):
        end = min(start + size, len(text))
        if end < len(text) and "\ud800" <= text[end - 1] <= "\udbff" and "\udc00" <= text[end] <= "\udfff":
            end -= 1  # two halves of one character
        yield end - start, len(_BEFORE) + len(_AFTER) if end < len(text) else after
        start = end


def _even_cuts(ends: Sequence[int], levels: Sequence[int], most: int) -> list[int]:
    """Where parts end, given where pieces do: as few parts as there can be. Of the cuts about where equal parts would
    end the one at the largest structure is taken, or else the nearest."""
    earliest = _earliest_cuts(ends, most)
    cuts: list[int] = []
    at = 0
    for left, soonest in zip(range(len(earliest), 0, -1), earliest, strict=True):
        wanted = at + (ends[-1] - at) / left
        slack = (ends[-1] - at) / left / _SLACK
        first, last = bisect_left(ends, soonest), bisect_right(ends, at + most) - 1
        low = min(max(bisect_left(ends, wanted - slack) - 1, first), last)
        high = max(min(bisect_right(ends, wanted + slack), last), first)
        best = min(range(low, high + 1), key=lambda n: _badness(ends[n] - wanted, slack, levels[n]))
        at = ends[best]
        cuts.append(at)
    return cuts


def _badness(off: float, slack: float, level: int) -> tuple[bool, float, float]:
    is_far = abs(off) > slack
    return (is_far, abs(off), level) if is_far else (is_far, level, abs(off))


def _earliest_cuts(ends: Sequence[int], most: int) -> list[int]:
    """Where each part must end at the earliest, lest the parts after it become too long."""
    cuts = [ends[-1]]
    while cuts[-1] > most:
        cuts.append(ends[bisect_left(ends, cuts[-1] - most)])
    return cuts[::-1]


@dataclass(frozen=True, slots=True)
class TextField:
    """The text of an input that is cut, and the way to it; no steps: the input is the text."""

    text: str
    steps: tuple[str, ...] = ()


def longest_text(value: Any, fields: Sequence[str]) -> TextField | None:
    """The longest text among the fields that the task uses."""
    if isinstance(value, str):
        return TextField(value)
    found = [field for path in fields if (field := _at(value, path)) is not None]
    return max(found, key=lambda field: len(field.text), default=None)


def with_text(value: Any, steps: Sequence[str], text: str) -> Any:
    """The input with another text in that place."""
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
    """What stands in a task for the text that was cut."""
    return f"[given in {parts} parts]"


def part_task(task: str, number: int, parts: int) -> str:
    return (
        f"{task}\n\n[This is part {number} of {parts} of an input that is too long to be read at once. Answer for this "
        "part alone; the answers to all parts are merged afterwards.]"
    )


def merge_task(outline: str, parts: int, answers: Sequence[Any]) -> str:
    """`outline`: the task with a placeholder for the text. `answers`: in the order of the parts."""
    each = "one for each part" if len(answers) == parts else "each for one part, or for several that follow each other"
    from pydantic_core import to_jsonable_python  # rarely needed

    told = orjson.dumps(to_jsonable_python(list(answers), fallback=str), option=orjson.OPT_INDENT_2).decode()
    return (
        f"An input was too long to be read at once. It was split into {parts} parts, and each was answered on its own. "
        f"The task was:\n\n{outline}\n\nThese are the answers, {each}, in order:\n\n{told}\n\n"
        "Do the task for the whole of what these answers cover: give one answer that brings them together."
    )
