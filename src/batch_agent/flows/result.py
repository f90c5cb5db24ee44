"""Items of a flow, and its result."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.fast_dataclass import dataclass
from ..core.json import dumps
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError, dollars
from ..data.columns import TableLayout, field_columns
from ..data.result_rows import jsonable
from ..data.results import StageReport
from ..lazy_imports import lazy_modules

with lazy_modules(globals()):
    from .. import atomic_file
    from ..data import table_export

if TYPE_CHECKING:
    from ..data.table_export import ExportTable

_MAX_SHOWN = 10
"""Number of items in the HTML of a notebook."""

OnFailure = Literal["keep", "skip", "stop"]
"""Treatment of an item whose agent failed. "keep": it skips the other stages up to a reduce, which gets its error;
"skip": it leaves the flow; "stop": the flow ends."""


@dataclass(frozen=True, slots=True)
class Item(Mapping[str, Any]):
    """Item of a flow: the fields of its input, and the answer of each stage under the name of the stage."""

    position: tuple[int, ...]
    """Index of its input, then its index within each expansion."""
    fields: Mapping[str, Any]
    error: AgentError | None = None
    stage: str = ""
    """The stage in which the item failed."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def with_fields(self, **fields: Any) -> "Item":
        return replace(self, fields={**self.fields, **fields})

    def failed(self, stage: str, error: AgentError) -> "Item":
        return replace(self, error=error, stage=stage)


@dataclass(frozen=True, slots=True)
class FlowResult:
    """Result of a flow: the items that reached its end, in order, and the report of each stage."""

    items: tuple[Item, ...] = ()
    stages: Mapping[str, StageReport] = field(default_factory=dict)
    callback_failures: tuple[Item, ...] = ()
    """Items for which a callback of the flow (filter, expand, group_by, shown) raised; `stage` names the callback.
    Includes items that a reduce has merged since."""

    @property
    def usage(self) -> Usage:
        """Usage of all stages together."""
        return sum((stage.usage for stage in self.stages.values()), NO_USAGE)

    @property
    def cost(self) -> float | None:
        """Cost of all stages together; None if the price of any stage is unknown."""
        costs = [stage.cost for stage in self.stages.values()]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per item: `index`, `ok`, the fields of its input, `STAGE.FIELD` for each
        field of an answer (`STAGE` for text), and the error of a failed item. For the results of one stage with their
        usage: `flow_result.stages["review"].results.to_pandas()`."""
        return self._table().to_pandas()

    def to_polars(self) -> Any:
        """Like `to_pandas`, as a polars DataFrame."""
        return self._table().to_polars()

    def to_csv(self, path: str | Path) -> None:
        """Writes the table of `to_pandas` as CSV, with lists and objects as JSON."""
        self._table().to_csv(path)

    def to_parquet(self, path: str | Path) -> None:
        """Writes the table of `to_pandas` as Parquet. Needs the extra `data`."""
        table_export.write_parquet_table(_item_rows(self.items), _ITEM_TABLE, path)

    def to_jsonl(self, path: str | Path) -> None:
        """Writes JSONL, one object per item, with unflattened answers in `fields`."""
        with atomic_file.atomic_write(Path(path).expanduser()) as file:
            file.writelines(_item_lines(self.items))

    def _repr_html_(self) -> str:
        failed = sum(not item.ok for item in self.items)
        summary = f"{len(self.items):,} items, {failed:,} failed; stages: {', '.join(self.stages)}"
        if self.cost is not None:
            summary += f"; {dollars(self.cost)}"
        return self._table(_MAX_SHOWN).to_html(summary, len(self.items))

    def _table(self, most: int | None = None) -> "ExportTable":
        return table_export.ExportTable(_item_rows(self.items[:most]), _ITEM_TABLE)


_LEADING = ("index", "ok")
_TRAILING = ("error_stage", "error_kind", "error_message")


def _ordered(names: Iterable[str]) -> list[str]:
    own = [name for name in dict.fromkeys(names) if name not in _LEADING and name not in _TRAILING]
    return [*_LEADING, *own, *_TRAILING]


_ITEM_TABLE = TableLayout(_ordered)


def _item_rows(items: Iterable[Item]) -> list[dict[str, Any]]:
    """One row per item: `NAME` for each field of its input, and `STAGE.FIELD` for each field of an answer (`STAGE` for
    an answer without fields, such as text)."""
    return [{**_own(index, item), **_fields(item)} for index, item in enumerate(items)]


def _item_lines(items: Iterable[Item]) -> Iterable[bytes]:
    """Lines of a JSONL file with unflattened answers."""
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
