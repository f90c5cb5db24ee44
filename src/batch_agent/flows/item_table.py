"""Table of the items of a flow: a column for each field of the inputs and of the answers of the stages."""

from collections.abc import Iterable
from typing import Any

from ..core.json import dumps
from ..data.columns import TableLayout, field_columns
from ..data.result_rows import jsonable
from .result import Item

_LEADING = ("index", "ok")
_TRAILING = ("error_stage", "error_kind", "error_message")


def _ordered(names: Iterable[str]) -> list[str]:
    own = [name for name in dict.fromkeys(names) if name not in _LEADING and name not in _TRAILING]
    return [*_LEADING, *own, *_TRAILING]


ITEM_TABLE = TableLayout(_ordered)


def item_rows(items: Iterable[Item]) -> list[dict[str, Any]]:
    """A row for each item: `NAME` for each field of its input, and `STAGE.FIELD` for each field of an answer (`STAGE`
    for an answer without fields, such as text)."""
    return [{**_own(index, item), **_fields(item)} for index, item in enumerate(items)]


def item_lines(items: Iterable[Item]) -> Iterable[bytes]:
    """Lines of a JSONL file, with the answers unflattened."""
    for index, item in enumerate(items):
        row = {**_own(index, item), "fields": dict(item.fields)}
        yield dumps({name: jsonable(value) for name, value in row.items()}) + b"\n"


def _own(index: int, item: Item) -> dict[str, Any]:
    error = item.error
    return {
        "index": index,
        "ok": item.ok,
        "error_stage": item.stage if error else None,
        "error_kind": str(error.kind) if error else None,
        "error_message": error.message if error else None,
    }


def _fields(item: Item) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in item.fields.items():
        found |= field_columns(f"fields.{name}" if name in (*_LEADING, *_TRAILING) else name, value)
    return found
