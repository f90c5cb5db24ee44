"""Lint rules for input fields that prevent prompts from being shared."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any

import orjson

from ...core.fast_dataclass import dataclass
from ...core.run_reports import Finding
from ...core.schema import is_model
from ..field_paths import find
from .volatile_text import DATE_OR_TIME, MAX_CHECKED_CHARS, compile_pattern, is_epoch, is_random, quote

_NEARLY_ALL = 0.9
_REPEATING = 0.75
_LONG = 500
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"\d{1,30}", re.ASCII)
_TIMESTAMP = re.compile(r"\d{9,10}(?:\.\d{1,9})?|\d{12,13}", re.ASCII)
_COUNTER = re.compile(r"[A-Za-z]{0,16}[-_#:/.]{0,2}\d[\d/_-]{0,30}")
_ID_NAME = re.compile(r"(?i:(?:.*[_\W])?(?:id|key|no|nr|num|number|index|idx|uuid|guid|hash|sha|row))|.*[a-z](?:Id|ID)")
_PROMPT_NAME = re.compile(r"(?:.*_)?(?:(?:system|role|agent|persona)_?(?:prompt|message|instructions?))", re.IGNORECASE)
_PERSONA_NAME = re.compile(r"system|(?:.*_)?persona", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Column:
    """Values of a field in the sampled rows."""

    name: str
    values: list[Any]
    texts: list[str]

    @property
    def distinct(self) -> int:
        return len(set(self.texts))


def _column(name: str, rows: list[Mapping[str, Any]]) -> _Column:
    values = [_value(row, name) for row in rows]
    return _Column(name, values, [_text(value) for value in values])


def _value(row: Mapping[str, Any], name: str) -> Any:
    """Value of a field; None if it is missing."""
    try:
        return find(row, name)
    except Exception:  # noqa: BLE001 - a property of a user's object may raise anything; the job reports it
        return None


def lint_fields(names: Iterable[str], rows: list[Mapping[str, Any]]) -> Iterator[Finding]:
    """Findings in the fields. `names`: in the order of the prompt."""
    columns = [_column(name, rows) for name in names]
    if columns:
        yield from _leading_id(columns[0], columns[1:])
    for position, column in enumerate(columns):
        yield from _system_prompt(column, is_first=position == 0)
        yield from _unordered(column)
    yield from _near_duplicates(columns)


def _leading_id(first: _Column, others: list[_Column]) -> Iterator[Finding]:
    name, rows = first.name, len(first.texts)
    behind = [column.name for column in others if 1 < column.distinct <= _REPEATING * rows]
    if behind and first.distinct >= max(_NEARLY_ALL * rows, 3) and _are_ids(name, first.texts):
        yield Finding(
            "leading_id",
            f"The field {quote(name)} comes first and is a different ID or timestamp for nearly every input, so "
            f"nothing after it can be shared, although {quote(behind[0])} repeats.",
            f"Move {{{name}}} to the end of the task, or declare the task as Fields(...).",
        )


def _are_ids(name: str, texts: list[str]) -> bool:
    enough = _NEARLY_ALL * len(texts)
    if sum(map(_is_id, texts)) >= enough:
        return True
    shapes = Counter(_DIGITS.sub("0", text) for text in texts if _COUNTER.fullmatch(text))
    shape, count = max(shapes.items(), key=lambda item: item[1], default=("", 0))
    if count < enough:
        return False
    return shape != "0" or bool(_ID_NAME.fullmatch(name)) or _is_rising(texts)


def _is_id(text: str) -> bool:
    if len(text) > 100:
        return False
    if _TIMESTAMP.fullmatch(text):
        return is_epoch(text)
    return bool(compile_pattern(DATE_OR_TIME).fullmatch(text)) or is_random(text)


def _is_rising(texts: list[str]) -> bool:
    """Whether the numbers only rise or only fall."""
    numbers = [int(text) for text in texts if _NUMBER.fullmatch(text)]
    signs = {(one < other) - (one > other) for one, other in pairwise(numbers)}
    return len(numbers) == len(texts) and len(signs) == 1


def _system_prompt(column: _Column, *, is_first: bool) -> Iterator[Finding]:
    distinct = column.distinct
    if distinct < 2 or (
        is_first and distinct <= len(column.texts) / 2
    ):  # many agents share a few prompts that come first
        return
    name = column.name.rpartition(".")[2]
    is_prose = any(isinstance(value, str) and " " in value.strip() for value in column.values)
    if is_prose and (_PROMPT_NAME.fullmatch(name) or _PERSONA_NAME.fullmatch(name)):
        problem = "is a separate system prompt for each agent"
    elif is_first and _is_one_text(column.values):
        problem = "comes first and is a long text with small variations"
    else:
        return
    yield Finding(
        "system_prompt",
        f"The field {quote(column.name)} {problem}: nothing after the first difference can be shared.",
        "Move the common part to system_prompt=..., and the rest to the end of the task.",
    )


def _is_one_text(values: list[Any]) -> bool:
    """Whether the values are one long text that differs in a small span, followed by much text."""
    texts = [value for value in values if isinstance(value, str)]
    shortest = min(map(len, texts), default=0)
    if len(texts) < len(values) or shortest <= _LONG:
        return False
    begin = _in_common(text[:MAX_CHECKED_CHARS] for text in texts)
    end = _in_common(text[: -MAX_CHECKED_CHARS - 1 : -1] for text in texts)
    length = min(max(map(len, texts)), 2 * MAX_CHECKED_CHARS)
    return begin + end >= 0.7 * length and end >= 0.3 * min(length, MAX_CHECKED_CHARS)


def _in_common(texts: Iterable[str]) -> int:
    """Length of the common prefix. Compares only the first and the last in sorted order, which differ most."""
    ordered = sorted(texts)
    pairs = zip(ordered[0], ordered[-1], strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(map(len, ordered)))


def _unordered(column: _Column) -> Iterator[Finding]:
    shown: dict[bytes, bytes] = {}
    for value in column.values:
        if value is None or isinstance(value, str | int | float):
            continue
        content, in_order = _json(value, orjson.OPT_SORT_KEYS), _json(value, 0)
        if content and in_order and shown.setdefault(content, in_order) != in_order:
            yield Finding(
                "unordered",
                f"The field {quote(column.name)} has the same content in several rows, but with its keys in a "
                "different order.",
                "Sort the keys.",
            )
            return


def _near_duplicates(columns: list[_Column]) -> Iterator[Finding]:
    """Findings for rows that agree in all earlier fields, so that sharing would have continued."""
    alike = [0] * len(columns[0].texts) if columns else []
    for column in columns:
        sizes = Counter(alike)
        if max(sizes.values(), default=0) < 2:
            return
        seen: dict[tuple[int, str], str] = {}
        for group, text in zip(alike, column.texts, strict=True):
            if sizes[group] > 1 and seen.setdefault((group, _trimmed(text)), text) != text:
                yield Finding(
                    "near_duplicate",
                    f"The field {quote(column.name)} differs in some rows only in surrounding whitespace or in the "
                    f"case of its first letter: {quote(text)}.",
                    "Strip the values and write them the same way.",
                )
                return
        known: dict[tuple[int, str], int] = {}
        alike = [known.setdefault(key, len(known)) for key in zip(alike, column.texts, strict=True)]


def _trimmed(text: str) -> str:
    bare = text.strip()
    return bare[:1].lower() + bare[1:]


def _text(value: Any) -> str:
    """Approximate text of a value in the task; empty if it cannot be rendered."""
    if isinstance(value, str):
        return value[:MAX_CHECKED_CHARS]
    if isinstance(value, Enum):
        return _text(value.value)
    if (is_model(value) or isinstance(value, Mapping | list | tuple | set | frozenset)) and (shown := _json(value, 0)):
        return shown[:MAX_CHECKED_CHARS].decode(errors="replace")
    try:
        return str(value)[:MAX_CHECKED_CHARS]
    except Exception:  # noqa: BLE001 - a user's object may raise anything; the job reports it
        return ""


def _json(value: Any, option: int) -> bytes | None:
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS | option)
    except TypeError:  # also for a value that contains itself, or whose __str__ fails
        return None


def _plain(value: Any) -> Any:
    if is_model(value) or isinstance(value, Mapping):
        return dict(value)
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else str(value)
