"""The types of columns, found while their values come: what all values of a column have in common."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from ..core.fast_dataclass import dataclass

_EXACT = 2**53
"""Up to there a number is the same with and without a fraction."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """By its type in DuckDB; but LONG is a BIGINT that is no DOUBLE, and NULL what nothing is known of."""

    name: str


@dataclass(frozen=True, slots=True)
class ListOf:
    part: "Shape"


@dataclass(frozen=True, slots=True)
class Struct:
    """Objects that have the same fields in all rows."""

    parts: Mapping[str, "Shape"]


Shape = Scalar | ListOf | Struct

NOTHING = Scalar("NULL")
MIXED = Scalar("JSON")
"""Values of several kinds, written as JSON each."""
_WHOLE = Scalar("BIGINT")
_KNOWN: Mapping[type, Shape] = {
    type(None): NOTHING,
    bool: Scalar("BOOLEAN"),
    float: Scalar("DOUBLE"),
    str: Scalar("VARCHAR"),
}
_WIDER = {frozenset({"BIGINT", "LONG"}): "LONG", frozenset({"BIGINT", "DOUBLE"}): "DOUBLE"}
_NAMES = {"NULL": "VARCHAR", "LONG": "BIGINT"}


def shape_of(value: Any) -> Shape:
    """Of a cell."""
    if (known := _KNOWN.get(type(value))) is not None:
        return known
    match value:
        case int():
            return _whole(value)
        case datetime():
            return Scalar("VARCHAR" if value.tzinfo else "TIMESTAMP")
        case date():
            return Scalar("DATE")
        case list() | tuple():
            part: Shape = NOTHING
            for each in value:
                part = joined(part, shape_of(each))
            return MIXED if part == MIXED else ListOf(part)
        case dict():
            return _struct(value)
        case _:
            return Scalar("VARCHAR")


def joined(one: Shape, other: Shape) -> Shape:
    """The type that holds the values of both."""
    if one is other or one == other:
        return one
    match one, other:
        case (Scalar("NULL"), some) | (some, Scalar("NULL")):
            return some
        case ListOf(part), ListOf(further):
            both = joined(part, further)
            return MIXED if both == MIXED else ListOf(both)
        case Struct(parts), Struct(others) if parts.keys() == others.keys():
            return _checked({name: joined(part, others[name]) for name, part in parts.items()})
        case Scalar(name), Scalar(further_name):
            return Scalar(_WIDER.get(frozenset({name, further_name}), "JSON"))
        case _:
            return MIXED


def in_duckdb(shape: Shape) -> str:
    """The name of the type."""
    match shape:
        case Scalar(name):
            return _NAMES.get(name, name)
        case ListOf(part):
            return f"{in_duckdb(part)}[]"
        case Struct(parts):
            return f"STRUCT({', '.join(f'{_quoted(name)} {in_duckdb(part)}' for name, part in parts.items())})"


def _whole(value: int) -> Shape:
    if abs(value) <= _EXACT:
        return _WHOLE
    return Scalar("LONG") if -(2**63) <= value < 2**63 else MIXED


def _struct(value: Mapping[str, Any]) -> Shape:
    names = {name.lower() for name in value}
    if not names or "" in names or len(names) < len(value):  # DuckDB does not tell A from a
        return MIXED
    return _checked({name: shape_of(part) for name, part in value.items()})


def _checked(parts: dict[str, Shape]) -> Shape:
    return MIXED if MIXED in parts.values() else Struct(parts)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
