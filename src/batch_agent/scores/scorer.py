"""Scorers: rate an answer, given the input that it belongs to."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.schema import is_model
from .judge import judge

Score = float | bool | None
"""A number, or whether the answer is right; None if unknown."""


class Scorer(Protocol):
    """A function of the answer and the input, with a name for tables. Any function with these parameters is a
    scorer."""

    @property
    def name(self) -> str: ...

    def __call__(self, output: Any, row: Any, /) -> Score: ...


class NoSuchField(LookupError):
    """Raised if an input lacks the field, so that the scorer cannot tell."""


@dataclass(frozen=True, slots=True)
class FieldScorer:
    """Scorer that compares a part of the answer with a field of the input."""

    name: str
    compare: Callable[[Any, Any], Score]
    expected: str
    """Field of the input. Dots separate nested names."""
    of: str | None = None
    """Field of the answer. None: the field with the same name as `expected`, or the whole answer without such a
    field."""

    def __call__(self, output: Any, row: Any, /) -> Score:
        return self.compare(_answer(output, self.expected, self.of), field_of(row, self.expected))


@dataclass(frozen=True, slots=True)
class OutputScorer:
    """Scorer that needs only the answer."""

    name: str
    check: Callable[[Any], Score]
    of: str | None = None

    def __call__(self, output: Any, row: Any, /) -> Score:
        return self.check(output if self.of is None else field_of(output, self.of))


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """A user's function with a name."""

    name: str
    function: Callable[[Any, Any], Score]

    def __call__(self, output: Any, row: Any, /) -> Score:
        return self.function(output, row)


def exact(expected: str, of: str | None = None, *, name: str = "exact") -> FieldScorer:
    """Whether the answer equals a field of the input. Texts are compared without case and surrounding space; numbers
    also match their text.

    `expected`: field of the input. `of`: field of the answer; None: the field of the same name, or the whole answer if
    it has no such field."""
    return FieldScorer(name, _is_equal, expected, of)


def contains(expected: str, of: str | None = None, *, name: str = "contains") -> FieldScorer:
    """Whether the answer contains a field of the input, ignoring case; every element, if the field is a list.
    Parameters as for `exact`."""
    return FieldScorer(name, _contains, expected, of)


def numeric(
    expected: str, of: str | None = None, *, tolerance: float = 0.0, relative: float = 1e-6, name: str = "numeric"
) -> FieldScorer:
    """Whether the last number in the answer equals the one in a field of the input, within `tolerance` or a share
    `relative` of it. Other parameters as for `exact`."""

    def is_close(answer: Any, wanted: Any) -> bool | None:
        target, found = _number(wanted), _number(answer)
        if target is None:
            return None
        return found is not None and math.isclose(found, target, rel_tol=relative, abs_tol=tolerance)

    return FieldScorer(name, is_close, expected, of)


def regex(pattern: str, of: str | None = None, *, name: str = "regex") -> OutputScorer:
    """Whether the pattern matches anywhere in the answer, or in its field `of`. Raises SpecError for an invalid
    pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SpecError(f"score: {pattern!r} is not a regular expression: {error}.") from None
    return OutputScorer(name, lambda answer: compiled.search(text_of(answer)) is not None, of)


def json_fields(expected: str, *names: str, of: str | None = None, name: str = "json_fields") -> FieldScorer:
    """The share of fields in which the answer equals an object in a field of the input.

    `names`: the fields to compare; by default, those of the expected object. A text answer is parsed as JSON."""

    def share(answer: Any, wanted: Any) -> float | None:
        target = _object(wanted)
        counted = names or tuple(target or ())
        if target is None or not counted:
            return None
        found = _object(answer) or {}
        return sum(each in found and _is_equal(found[each], target.get(each)) for each in counted) / len(counted)

    return FieldScorer(name, share, expected, of)


BUILTIN: Mapping[str, Callable[..., Scorer]] = {
    "exact": exact,
    "contains": contains,
    "numeric": numeric,
    "regex": regex,
    "json_fields": json_fields,
}


def scorers_of(score: Sequence[Any]) -> tuple[Scorer, ...]:
    """Scorers of the option `score`: parses names, and keeps the names of functions. Raises SpecError."""
    found: list[Scorer] = []
    for each in score:
        scorer = parse_scorer(each) if isinstance(each, str) else _named(each)
        if any(scorer.name == other.name for other in found):
            raise SpecError(f"score has two scorers with the name {scorer.name!r}: give one of them another name=.")
        found.append(scorer)
    return tuple(found)


def parse_scorer(text: str) -> Scorer:
    """Parses a scorer with its arguments, as on the command line: `exact:label`, `numeric:total:answer`, `regex:^yes`,
    `judge:RUBRIC`, or `NAME=exact:label` with a name of its own. Raises SpecError."""
    named = re.match(r"([A-Za-z_][\w-]*)=", text)
    kind, _, rest = (text[named.end() :] if named else text).partition(":")
    if kind == "judge":
        return judge(rest, name=named[1] if named else "judge")
    if kind not in BUILTIN or not rest:
        known = ", ".join(f"{each}:{'PATTERN' if each == 'regex' else 'FIELD'}" for each in BUILTIN)
        raise SpecError(f"score {text!r} is not known. Scorers: {known}, judge:RUBRIC, or your own as module:function.")
    arguments = [rest] if kind == "regex" else rest.split(":")
    try:
        return BUILTIN[kind](*arguments, **({"name": named[1]} if named else {}))
    except TypeError:
        raise SpecError(f"score {text!r} has too many parts: {kind}:FIELD or {kind}:FIELD:FIELD_OF_ANSWER.") from None


def _named(function: Any) -> Scorer:
    if isinstance(getattr(function, "name", None), str):
        scorer: Scorer = function
        return scorer
    return FunctionScorer(str(getattr(function, "__name__", "score")).strip("<>"), function)


def as_number(score: Any) -> float | None:
    """A score as a number; None if it is not a finite number."""
    if isinstance(score, bool | int | float) and math.isfinite(score):
        return float(score)
    return None


def field_of(value: Any, path: str) -> Any:
    """Field of an input or an answer. Raises NoSuchField."""
    parts = fields_in(value)
    if path in parts:
        return parts[path]
    head, dot, rest = path.partition(".")
    if dot and head in parts:
        return field_of(parts[head], rest)
    raise NoSuchField(path)


def fields_in(value: Any) -> Mapping[Any, Any]:
    """Fields of a mapping, a model or a dataclass; empty for other values."""
    if isinstance(value, Mapping):
        return value
    if is_model(value):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return {}


def text_of(value: Any) -> str:
    """An answer as text, which is JSON if the answer has fields."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return dict(fields_in(value)) or str(value)


def _answer(output: Any, expected: str, of: str | None) -> Any:
    if of is not None:
        return field_of(output, of)
    try:
        return field_of(output, expected)
    except NoSuchField:
        return output


def _is_equal(answer: Any, wanted: Any) -> bool:
    return bool(answer == wanted) or bool(_normal(answer) == _normal(wanted))


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        text = " ".join(value.split()).casefold()
        return text if (number := _plain_number(text)) is None else number
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return text_of(value).casefold() if isinstance(value, bool) or value is None else value


def _plain_number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _contains(answer: Any, wanted: Any) -> bool:
    parts = wanted if isinstance(wanted, list | tuple | set) else [wanted]
    text = text_of(answer).casefold()
    return all(text_of(part).casefold() in text for part in parts)


_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBER_IN_TEXT = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def _number(value: Any) -> float | None:
    """A number, or the last number in a text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _NUMBER_IN_TEXT.findall(text_of(value))
    return float(found[-1].replace(",", "")) if found else None


def _object(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return fields_in(value) or None
