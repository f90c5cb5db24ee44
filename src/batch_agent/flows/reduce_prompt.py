"""Text of the results in the prompt of a reducing agent."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..core.errors import ErrorKind
from ..core.json import dumps_any, replace_surrogates
from ..core.results import AgentError
from ..plan.jsonable import to_jsonable
from ..plan.merge_tree import Merge
from .callbacks import item_position
from .result import Item


def to_json_text(value: Any) -> str:
    """A value as JSON. Raises ValueError for a recursive value, and any exception of an object's own conversion."""
    try:
        plain = to_jsonable(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return replace_surrogates(dumps_any(plain, to_jsonable))


_SHORT = 200
"""Characters of a field that identifies an item rather than being its content."""
_MAX_ERROR_CHARS = 1_000
_PARTIAL = (
    "[These are {count} of the results. Answer for these alone: the answers to all parts are merged afterwards.]\n\n"
)
_MERGED = "[Some entries stand for several results that were merged before; their field results says how many.]\n\n"


def entry_of(item: Item, answers: Sequence[str], hidden: Sequence[str] = ()) -> dict[str, Any]:
    """The default entry of an item: what identifies it, and its answers. `answers`: names of the answer fields; if
    empty, all fields are shown. `hidden`: fields to leave out."""
    entry: dict[str, Any] = {"status": "ok" if item.ok else "error", "index": _number(item)}
    others = _other_fields(item, answers, hidden)
    which = {name: item.fields[name] for name in others if not answers or _is_short(item.fields[name])}
    if which:
        entry["input"] = which
    outputs = {name: item.fields[name] for name in answers if name in item.fields}
    if outputs:
        entry["output"] = next(iter(outputs.values())) if len(answers) == 1 else outputs
    return entry if item.error is None else {**entry, "error": _error_fields(item.error)}


def error_entries(item: Item, error: AgentError, answers: Sequence[str], hidden: Sequence[str] = ()) -> list[str]:
    """Entries with an error for an item that cannot be shown, each shorter than the one before."""
    entry = {"status": "error", "index": _number(item), "error": _error_fields(item.error or error)}
    texts = [to_json_text(entry)]
    with suppress(Exception):  # a user's object may raise anything
        which = {
            name: item.fields[name] for name in _other_fields(item, answers, hidden) if _is_short(item.fields[name])
        }
        texts.insert(0, to_json_text({**entry, "input": which}))
    return texts


def too_long(tokens: int) -> AgentError:
    """The error of a result that is too long for any prompt."""
    return AgentError(ErrorKind.CONTEXT_OVERFLOW, f"It is about {tokens:,} tokens long: too long to be shown here.")


def results_text(merge: Merge) -> str:
    """The entries of a merge, as the prompt shows them."""
    notes = "" if merge.is_last else _PARTIAL.format(count=merge.leaves)
    if any(entry.is_merged for entry in merge.entries):
        notes += _MERGED
    return f"{notes}[\n" + ",\n".join([entry.value for entry in merge.entries]) + "\n]"


def merged_text(output: Any, leaves: int) -> str:
    return to_json_text({"status": "merged", "results": leaves, "output": output})


def _other_fields(item: Item, answers: Sequence[str], hidden: Sequence[str]) -> list[str]:
    return [name for name in item.fields if name not in answers and name not in hidden]


def _number(item: Item) -> int | str:
    return item.position[0] if len(item.position) == 1 else item_position(item)


def _error_fields(error: AgentError) -> Mapping[str, str]:
    message = error.message if len(error.message) <= _MAX_ERROR_CHARS else f"{error.message[:_MAX_ERROR_CHARS]} ..."
    return {"kind": error.kind.value, "message": message}


def _is_short(value: Any) -> bool:
    if value is None:
        return False
    return len(value if isinstance(value, str) else to_json_text(value)) <= _SHORT
