"""Columns that a map adds to a dataset: the answer, and how its agent ended.

Their types follow from the schema of the answers alone, so all blocks of the dataset have the same types."""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from ..core.errors import SpecError
from ..core.json import dumps
from ..core.results import AgentResult
from ..core.schema import JsonSchema
from ..data.result_rows import jsonable, replace_lone_surrogates

_JSON = pa.string()
"""Type of values without a type of their own, which are written as JSON."""
_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_INT64 = range(-(2**63), 2**63)
_MAX_FLOAT = 1.7e308
_STATISTICS = {
    "ok": pa.bool_(),
    "error_kind": pa.string(),
    "error_message": pa.string(),
    "turns": pa.int64(),
    "input_tokens": pa.int64(),
    "cached_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "cost": pa.float64(),
    "seconds": pa.float64(),
}


class ResultColumns(Protocol):
    """Columns that a map adds to a dataset."""

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Types of the columns by name, in their order."""
        ...

    def values(self, result: AgentResult) -> tuple[Any, ...]:
        """Values of one row, in the order of the columns."""
        ...


def add_columns(columns: ResultColumns, rows: pa.Table, answers: Sequence[tuple[Any, ...]]) -> pa.Table:
    """The rows with added columns. `answers`: values of the columns for each row."""
    for at, (name, type_) in enumerate(columns.types.items()):
        rows = rows.append_column(name, pa.array([values[at] for values in answers], type_))
    return rows


def check_names(columns: ResultColumns, names: Iterable[str]) -> None:
    """Raises SpecError if the dataset already has columns with these names."""
    if taken := [name for name in names if name in columns.types]:
        raise SpecError(
            f"The dataset has a column {taken[0]!r}, which the results need: pass column_prefix='answer_' "
            "(any text) to BatchAgent.map, or rename the column."
        )


class WholeResult:
    """Column with unchanged results, for a caller that needs them. Their outputs are JSON data."""

    name = "__batch_agent_result__"
    types = {name: pa.large_binary()}  # noqa: RUF012 - of a Protocol

    def values(self, result: AgentResult) -> tuple[Any, ...]:
        return (pickle.dumps(replace(result, input=None, output=jsonable(result.output))),)


class AnswerColumns:
    """Columns for answers of one schema: `output`, which is text or a struct, and statistics of the agent."""

    def __init__(self, schema: JsonSchema | None, prefix: str = "") -> None:
        """`schema`: schema of the answers; None for text. `prefix`: prepended to every name."""
        output = pa.string() if schema is None else arrow_type(schema, schema.get("$defs", {}))
        self.types = {prefix + name: type_ for name, type_ in {"output": output, **_STATISTICS}.items()}
        """Types of the columns by name, in their order."""
        self._output = output
        self._is_text = schema is None

    def values(self, result: AgentResult) -> tuple[Any, ...]:
        """Values of one row, in the order of the columns."""
        output = None
        if result.ok:
            output = _text(result.output) if self._is_text else conform(jsonable(result.output), self._output)
        error, usage = result.error, result.usage
        return (
            output,
            result.ok,
            str(error.kind) if error else None,
            _text(error.message) if error else None,
            result.turns,
            usage.input,
            usage.cached,
            usage.output,
            result.cost,
            round(result.timing.total, 3),
        )


def arrow_type(schema: Any, definitions: Mapping[str, Any], seen: tuple[str, ...] = ()) -> pa.DataType:
    """Arrow type for values of a JSON schema: structs for objects with known fields, lists, and scalars. Values that
    may have several types or any depth become JSON text. `seen`: names of the enclosing definitions."""
    if not isinstance(schema, Mapping):
        return _JSON
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix("#/$defs/")
        return _JSON if name in seen else arrow_type(definitions.get(name), definitions, (*seen, name))
    options = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) == 1:
        return arrow_type(options[0], definitions, seen)
    kind, fields = schema.get("type"), schema.get("properties")
    if kind == "array" and "items" in schema:
        return pa.list_(arrow_type(schema["items"], definitions, seen))
    if kind == "object" and fields and not schema.get("additionalProperties"):
        return pa.struct([(name, arrow_type(part, definitions, seen)) for name, part in fields.items()])
    return _SCALARS.get(kind, _JSON) if isinstance(kind, str) else _JSON


def conform(value: Any, type_: pa.DataType) -> Any:
    """Converts JSON data to this type. None if the data does not fit, for example an integer of more than 64 bits."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        if not isinstance(value, Mapping):
            return None
        return {field.name: conform(value.get(field.name), field.type) for field in type_}
    if pa.types.is_list(type_):
        return [conform(each, type_.value_type) for each in value] if isinstance(value, list) else None
    if pa.types.is_boolean(type_):
        return value if isinstance(value, bool) else None
    if pa.types.is_integer(type_):
        return value if _is_number(value, int) and value in _INT64 else None
    if pa.types.is_floating(type_):
        return float(value) if _is_number(value, int | float) and abs(value) < _MAX_FLOAT else None
    return _text(value) if isinstance(value, str) else dumps(value).decode()


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return replace_lone_surrogates(str(value))
