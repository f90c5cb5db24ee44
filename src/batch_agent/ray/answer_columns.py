"""Columns that a map over a dataset adds: the answer, its fields, and what it took.

Their types follow from the schema of the answers alone, so that all blocks of the dataset have the same."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps
from ..core.results import AgentResult
from ..core.schema import JsonSchema
from ..data.result_rows import jsonable, replace_lone_surrogates

ColumnKind = Literal["text", "integer", "number", "boolean"]
_KINDS: dict[str, ColumnKind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class _Column:
    kind: ColumnKind
    value: Callable[[AgentResult], Any]


_STATISTICS = {
    "ok": _Column("boolean", lambda result: result.ok),
    "error_kind": _Column("text", lambda result: str(result.error.kind) if result.error else None),
    "error_message": _Column("text", lambda result: _text(result.error.message) if result.error else None),
    "turns": _Column("integer", lambda result: result.turns),
    "input_tokens": _Column("integer", lambda result: result.usage.input),
    "cached_tokens": _Column("integer", lambda result: result.usage.cached),
    "output_tokens": _Column("integer", lambda result: result.usage.output),
    "cost": _Column("number", lambda result: result.cost),
    "seconds": _Column("number", lambda result: round(result.timing.total, 3)),
}


class AnswerColumns:
    """Columns for answers of one schema: `output`, text or JSON; `output.NAME` for each field of an object; and how
    each agent ended."""

    def __init__(self, schema: JsonSchema | None, prefix: str = "") -> None:
        """`schema`: of the answers; None: they are text. `prefix`: put before every name."""
        self._fields = {name: _kind(part, schema) for name, part in _properties(schema).items()}
        self._is_text = schema is None
        self._prefix = prefix

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Kinds of the columns by name, in their order."""
        fields: dict[str, ColumnKind] = {f"output.{name}": kind or "text" for name, kind in self._fields.items()}
        statistics = {name: column.kind for name, column in _STATISTICS.items()}
        return {self._prefix + name: kind for name, kind in {"output": "text", **fields, **statistics}.items()}

    def values(self, result: AgentResult) -> tuple[Any, ...]:
        """Values of one row, in the order of the columns."""
        plain = jsonable(result.output) if result.ok else None
        whole = None if not result.ok else _text(plain) if self._is_text else dumps(plain).decode()
        fields = plain if isinstance(plain, Mapping) else {}
        parts = [_cell(fields.get(name), kind) for name, kind in self._fields.items()]
        return (whole, *parts, *(column.value(result) for column in _STATISTICS.values()))

    def check_names(self, names: list[str]) -> None:
        """Raises SpecError if the dataset has columns of these names already."""
        if taken := [name for name in names if name in self.kinds]:
            raise SpecError(
                f"The dataset has a column {taken[0]!r}, which the results need: pass prefix='answer_' (any text) to "
                "BatchAgent.map, or rename the column."
            )


def _properties(schema: JsonSchema | None) -> Mapping[str, Any]:
    properties = _resolved(schema, schema).get("properties") if schema is not None else None
    return properties if isinstance(properties, Mapping) else {}


def _kind(part: Any, schema: JsonSchema | None) -> ColumnKind | None:
    """Kind of a field; None for one whose value is written as JSON, such as a list."""
    part = _resolved(part, schema)
    options = [each for each in part.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) == 1:
        return _kind(options[0], schema)
    name = part.get("type")
    return _KINDS.get(name) if isinstance(name, str) else None


def _resolved(part: Any, schema: JsonSchema | None) -> Mapping[str, Any]:
    """A part of a schema, or the definition that it names."""
    if not isinstance(part, Mapping):
        return {}
    reference = part.get("$ref")
    if not isinstance(reference, str) or schema is None:
        return part
    found = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
    return found if isinstance(found, Mapping) and "$ref" not in found else {}


def _cell(value: Any, kind: ColumnKind | None) -> Any:
    """A value of this kind. None if it does not fit, as an integer of more than 64 bits: `output` has it."""
    if value is None:
        return None
    match kind:
        case None:
            return dumps(value).decode()
        case "text":
            return _text(value) if isinstance(value, str) else dumps(value).decode()
        case "boolean":
            return value if isinstance(value, bool) else None
        case "integer":
            return value if isinstance(value, int) and value in _INT64 else None
        case "number":
            return float(value) if isinstance(value, int | float) else None


def _text(value: Any) -> str:
    return replace_lone_surrogates(str(value))
