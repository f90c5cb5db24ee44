"""Conditions on the fields of an input, as text: `stars <= 2 and lang = 'en'`. They are parsed, never evaluated as
code."""

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..plan.field_paths import FieldMissing, find


@dataclass(frozen=True, slots=True)
class Condition:
    """Parsed condition: its matcher, and the fields that it names."""

    matches: Callable[[Mapping[str, Any]], bool]
    fields: tuple[str, ...]


def parse_condition(text: str) -> Condition:
    """Parses `field = value` (=, !=, <, <=, >, >=, in (...), contains, is null, is not null), combined by and, or, not
    and parentheses. Raises SpecError."""
    return _Parser(text).parse()


def has_field(fields: Mapping[str, Any], name: str) -> bool:
    """Whether there is a value at a path such as `stars` or `user.name`."""
    try:
        find(fields, name)
    except FieldMissing:
        return False
    return True


Predicate = Callable[[Mapping[str, Any]], bool]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "contains"]


@dataclass(frozen=True, slots=True)
class _Literal:
    """Value in a condition. If unquoted, it may be a number, true, false or null."""

    text: str
    is_quoted: bool = True

    @property
    def is_null(self) -> bool:
        return not self.is_quoted and self.text.lower() in ("null", "none")

    @property
    def number(self) -> int | float | None:
        return None if self.is_quoted else _number(self.text)


_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]+`)|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,)"""
    r"""|(?P<word>[^\s()<>=!,'"`]+))"""
)
_COMPARISONS: dict[str, Operator] = {
    "=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_ACCEPTED = (
    "A condition is FIELD OPERATOR VALUE with = != < <= > >= contains, FIELD in (A, B), or FIELD is null, combined by "
    "and, or, not and parentheses: \"stars <= 2 and lang = 'en'\"."
)
_WORDS = frozenset({"and", "or", "not", "in", "is", "contains", "null"})


class _Parser:
    """Recursive-descent parser over the tokens of a condition: (kind, text)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize(text)
        self._at = 0
        self._fields: dict[str, None] = {}

    def parse(self) -> Condition:
        condition = self._either()
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at][1]!r} is unexpected: put text with spaces in quotes")
        return Condition(condition, tuple(self._fields))

    def _tokenize(self, text: str) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise self._error(f"{text[at:end].strip()!r} cannot be read")
            tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return tokens

    def _either(self) -> Predicate:
        parts = [self._both()]
        while self._take_word("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def _both(self) -> Predicate:
        parts = [self._negated()]
        while self._take_word("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def _negated(self) -> Predicate:
        if self._take_word("not"):
            inner = self._negated()
            return lambda row: not inner(row)
        if self._take_sign("("):
            inner = self._either()
            self._expect(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Predicate:
        name = self._field()
        if self._take_word("is"):
            is_negated = self._take_word("not")
            if not self._take_word("null"):
                raise self._error("after 'is' comes null, or not null")
            return self._compare(name, "!=" if is_negated else "=", [_Literal("null", is_quoted=False)])
        if self._take_word("not"):
            operator = self._word_operator(name)
            inner = self._compare(name, operator, self._values(operator))
            return lambda row: not inner(row)
        kind, token = self._peek()
        operator = _COMPARISONS[token] if kind == "sign" and token in _COMPARISONS else self._word_operator(name)
        if token in _COMPARISONS:
            self._at += 1
        return self._compare(name, operator, self._values(operator))

    def _word_operator(self, name: str) -> Operator:
        if self._take_word("in"):
            return "in"
        if self._take_word("contains"):
            return "contains"
        raise self._error(f"an operator is missing after the field {name!r}")

    def _field(self) -> str:
        kind, token = self._peek()
        if kind == "quoted" or (kind == "word" and token.lower() not in _WORDS):
            self._at += 1
            name = _unquoted(token) if kind == "quoted" else token
            self._fields[name] = None
            return name
        raise self._error(
            "the name of a field is missing" if kind == "end" else f"{token!r} is not the name of a field"
        )

    def _values(self, operator: Operator) -> list[_Literal]:
        if operator != "in":
            return [self._value()]
        self._expect("(")
        values = [self._value()]
        while self._take_sign(","):
            values.append(self._value())
        self._expect(")")
        return values

    def _value(self) -> _Literal:
        kind, token = self._peek()
        if kind not in ("quoted", "word"):
            raise self._error("a value is missing" if kind == "end" else f"{token!r} is not a value")
        self._at += 1
        return _Literal(_unquoted(token)) if kind == "quoted" else _Literal(token, is_quoted=False)

    def _compare(self, name: str, operator: Operator, values: list[_Literal]) -> Predicate:
        def matches(fields: Mapping[str, Any]) -> bool:
            cell = _value(fields, name)
            if operator == "in":
                return any(_is_match(cell, "=", value) for value in values)
            return _is_match(cell, operator, values[0])

        return matches

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take_word(self, word: str) -> bool:
        kind, token = self._peek()
        is_there = kind == "word" and token.lower() == word
        self._at += is_there
        return is_there

    def _take_sign(self, sign: str) -> bool:
        is_there = self._peek() == ("sign", sign)
        self._at += is_there
        return is_there

    def _expect(self, sign: str) -> None:
        if not self._take_sign(sign):
            raise self._error(f"{sign!r} is missing")

    def _error(self, problem: str) -> SpecError:
        return SpecError(f"where={self._text!r}: {problem}. {_ACCEPTED}")


def _unquoted(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


_NUMBER = re.compile(r"[-+]?(?:\d+(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<exponent>[eE][-+]?\d+)?")


def _number(text: str) -> int | float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    return float(text) if match["fraction"] or match["point"] or match["exponent"] else int(text)


def _is_match(cell: Any, operator: Operator, value: _Literal) -> bool:
    """Compares a cell with a value. Numbers are compared as numbers, even if the cell is text, as in CSV; everything
    else as text. A missing value equals only null."""
    if value.is_null or cell is None:
        is_equal = value.is_null and cell is None
        return is_equal if operator == "=" else not is_equal if operator == "!=" else False
    if operator == "contains":
        return value.text in (list(map(_text, cell)) if isinstance(cell, list | tuple) else _text(cell))
    number, of_cell = value.number, _cell_number(cell)
    if number is not None and of_cell is not None:
        return _holds(of_cell, operator, number)
    if number is not None and operator not in ("=", "!="):
        return False
    is_flag = isinstance(cell, bool) or (not value.is_quoted and value.text.lower() in ("true", "false"))
    text, other = _text(cell), value.text
    return _holds(text.lower() if is_flag else text, operator, other.lower() if is_flag else other)


def _holds(one: Any, operator: Operator, other: Any) -> bool:
    match operator:
        case "=":
            return bool(one == other)
        case "!=":
            return bool(one != other)
        case "<":
            return bool(one < other)
        case "<=":
            return bool(one <= other)
        case ">":
            return bool(one > other)
        case _:
            return bool(one >= other)


def _cell_number(cell: Any) -> int | float | Decimal | None:
    if isinstance(cell, str):
        return _number(cell)
    return cell if isinstance(cell, int | float | Decimal) and not isinstance(cell, bool) else None


def _text(cell: Any) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return cell.isoformat() if isinstance(cell, date) else str(cell)


def _value(fields: Mapping[str, Any], name: str) -> Any:
    try:
        return find(fields, name)
    except FieldMissing:
        return None
