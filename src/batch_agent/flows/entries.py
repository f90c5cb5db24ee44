"""What an agent that reduces is shown of results."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..core.errors import ErrorKind
from ..core.flow import Item
from ..core.results import AgentError
from ..plan.merging import Entry, Merge
from ..plan.template import sendable

_SHORT = 200
"""Characters of a field that says which item it is, rather than being what was worked on."""
_PARTIAL = (
    "[These are {count} of the results. Answer for these alone: the answers to all parts are merged afterwards.]\n\n"
)
_MERGED = "[Some entries stand for several results that were merged before; their field results says how many.]\n\n"


def entry_of(item: Item, stages: Sequence[str]) -> dict[str, Any]:
    """An item as it is shown by default: which one it is, and what came of it. `stages`: where it was, by name."""
    number = item.position[0] if len(item.position) == 1 else ".".join(map(str, item.position))
    entry: dict[str, Any] = {"status": "ok" if item.ok else "error", "index": number}
    which = {key: value for key, value in item.fields.items() if key not in stages and _is_short(value)}
    if which:
        entry["input"] = which
    outputs = {name: item.fields[name] for name in stages if name in item.fields}
    if outputs:
        entry["output"] = next(iter(outputs.values())) if len(stages) == 1 else outputs
    if item.error is not None:
        entry["error"] = {"kind": item.error.kind.value, "message": item.error.message}
    return entry


def too_long(entry: Mapping[str, Any], tokens: float) -> dict[str, Any]:
    """What is said of a result that no prompt has room for."""
    error = AgentError(ErrorKind.CONTEXT_OVERFLOW, f"It is about {tokens:,.0f} tokens long: too long to be shown here.")
    kept = {key: entry[key] for key in ("index", "input") if key in entry}
    return {"status": "error", **kept, "error": {"kind": error.kind.value, "message": error.message}}


def written(entry: Any) -> str:
    """An entry as the model sees it."""
    return sendable(orjson.dumps(to_jsonable_python(entry, fallback=str), option=orjson.OPT_NON_STR_KEYS).decode())


def results_text(merge: Merge) -> str:
    """All that a merge is about."""
    lines = [_line(entry) for entry in merge.entries]
    notes = "" if merge.is_last else _PARTIAL.format(count=merge.leaves)
    if any(entry.is_merged for entry in merge.entries):
        notes += _MERGED
    return f"{notes}[\n" + ",\n".join(lines) + "\n]"


def merged_text(output: Any, leaves: int) -> str:
    return written({"status": "merged", "results": leaves, "output": output})


def _line(entry: Entry) -> str:
    text: str = entry.value
    return text


def _is_short(value: Any) -> bool:
    if isinstance(value, BaseModel | Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return False
    return value is not None and len(str(value)) <= _SHORT
