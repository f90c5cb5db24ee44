"""Column types inferred from values: the narrowest type that holds all values of a column."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from ..core.fast_dataclass import dataclass

_MAX_EXACT_INT = 2**53
"""Maximum absolute value up to which every integer is exact as a double."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """Scalar type, named as in DuckDB, with two additions: LONG is a BIGINT that no DOUBLE holds exactly, and NULL is
    the type of a column without values."""

    name: str


@dataclass(frozen=True, slots=True)
class ListOf:
    part: "ColumnType"


@dataclass(frozen=True, slots=True)
class Struct:
    """Objects with the same fields in all rows."""

    parts: Mapping[str, "ColumnType"]


ColumnType = Scalar | ListOf | Struct

NULL = Scalar("NULL")
MIXED = Scalar("JSON")
"""Values of several types, each written as JSON."""
_INTEGER = Scalar("BIGINT")
_KNOWN: Mapping[type, ColumnType] = {
    type(None): NULL,
    bool: Scalar("BOOLEAN"),
    float: Scalar("DOUBLE"),
    str: Scalar("VARCHAR"),
}
_WIDER = {frozenset({"BIGINT", "LONG"}): "LONG", frozenset({"BIGINT", "DOUBLE"}): "DOUBLE"}
_NAMES = {"NULL": "VARCHAR", "LONG": "BIGINT"}


def column_type(value: Any) -> ColumnType:
    """Type of one value."""
    if (known := _KNOWN.get(type(value))) is not None:
        return known
    match value:
        case int():
            return _integer_type(value)
        case datetime():
            return Scalar("VARCHAR" if value.tzinfo else "TIMESTAMP")
        case date():
            return Scalar("DATE")
        case list() | tuple():
            part: ColumnType = NULL
            for each in value:
                part = common_type(part, column_type(each))
            return MIXED if part == MIXED else ListOf(part)
        case dict():
            return _struct_type(value)
        case _:
            return Scalar("VARCHAR")


def common_type(one: ColumnType, other: ColumnType) -> ColumnType:
    """The narrowest type that holds the values of both."""
    if one is other or one == other:
        return one
    match one, other:
        case (Scalar("NULL"), some) | (some, Scalar("NULL")):
            return some
        case ListOf(part), ListOf(further):
            both = common_type(part, further)
            return MIXED if both == MIXED else ListOf(both)
        case Struct(parts), Struct(others) if parts.keys() == others.keys():
            return _struct_or_mixed({name: common_type(part, others[name]) for name, part in parts.items()})
        case Scalar(name), Scalar(further_name):
            return Scalar(_WIDER.get(frozenset({name, further_name}), "JSON"))
        case _:
            return MIXED


def duckdb_type(type_: ColumnType) -> str:
    """Name of the type in DuckDB."""
    match type_:
        case Scalar(name):
            return _NAMES.get(name, name)
        case ListOf(part):
            return f"{duckdb_type(part)}[]"
        case Struct(parts):
            return f"STRUCT({', '.join(f'{_quoted(name)} {duckdb_type(part)}' for name, part in parts.items())})"


def _integer_type(value: int) -> ColumnType:
    if abs(value) <= _MAX_EXACT_INT:
        return _INTEGER
    return Scalar("LONG") if -(2**63) <= value < 2**63 else MIXED


def _struct_type(value: Mapping[str, Any]) -> ColumnType:
    names = {name.lower() for name in value}
    if not names or "" in names or len(names) < len(value):  # DuckDB ignores the case of names
        return MIXED
    return _struct_or_mixed({name: column_type(part) for name, part in value.items()})


def _struct_or_mixed(parts: dict[str, ColumnType]) -> ColumnType:
    return MIXED if MIXED in parts.values() else Struct(parts)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
