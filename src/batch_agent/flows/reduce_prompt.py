"""What an agent that reduces is shown of results.

Values as a model reads them.
"""

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
    """Its JSON. Raises ValueError for what has no end, and whatever an object raises that no text can be made of."""
    try:
        made = to_jsonable(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return replace_surrogates(dumps_any(made, to_jsonable))


_SHORT = 200
"""Characters of a field that says which item it is, rather than being what was worked on."""
_TOLD = 1_000
"""Characters of an error."""
_PARTIAL = (
    "[These are {count} of the results. Answer for these alone: the answers to all parts are merged afterwards.]\n\n"
)
_MERGED = "[Some entries stand for several results that were merged before; their field results says how many.]\n\n"


def entry_of(item: Item, answers: Sequence[str], hidden: Sequence[str] = ()) -> dict[str, Any]:
    """An item as it is shown by default: which one it is, and what came of it. `answers`: the fields that are this;
    none: all that it has. `hidden`: fields that say neither."""
    entry: dict[str, Any] = {"status": "ok" if item.ok else "error", "index": _number(item)}
    said = _others(item, answers, hidden)
    which = {name: item.fields[name] for name in said if not answers or _is_short(item.fields[name])}
    if which:
        entry["input"] = which
    outputs = {name: item.fields[name] for name in answers if name in item.fields}
    if outputs:
        entry["output"] = next(iter(outputs.values())) if len(answers) == 1 else outputs
    return entry if item.error is None else {**entry, "error": _told(item.error)}


def error_entries(item: Item, error: AgentError, answers: Sequence[str], hidden: Sequence[str] = ()) -> list[str]:
    """For an item that cannot be shown as it should be: texts that say why, each with less than the one before."""
    told = {"status": "error", "index": _number(item), "error": _told(item.error or error)}
    texts = [to_json_text(told)]
    with suppress(Exception):  # an object of the user's may raise anything
        which = {name: item.fields[name] for name in _others(item, answers, hidden) if _is_short(item.fields[name])}
        texts.insert(0, to_json_text({**told, "input": which}))
    return texts


def too_long(tokens: int) -> AgentError:
    """What is said of a result that no prompt has room for."""
    return AgentError(ErrorKind.CONTEXT_OVERFLOW, f"It is about {tokens:,} tokens long: too long to be shown here.")


def results_text(merge: Merge) -> str:
    """All that a merge is about."""
    notes = "" if merge.is_last else _PARTIAL.format(count=merge.leaves)
    if any(entry.is_merged for entry in merge.entries):
        notes += _MERGED
    return f"{notes}[\n" + ",\n".join([entry.value for entry in merge.entries]) + "\n]"


def merged_text(output: Any, leaves: int) -> str:
    return to_json_text({"status": "merged", "results": leaves, "output": output})


def _others(item: Item, answers: Sequence[str], hidden: Sequence[str]) -> list[str]:
    return [name for name in item.fields if name not in answers and name not in hidden]


def _number(item: Item) -> int | str:
    return item.position[0] if len(item.position) == 1 else item_position(item)


def _told(error: AgentError) -> Mapping[str, str]:
    message = error.message if len(error.message) <= _TOLD else f"{error.message[:_TOLD]} ..."
    return {"kind": error.kind.value, "message": message}


def _is_short(value: Any) -> bool:
    if value is None:
        return False
    return len(value if isinstance(value, str) else to_json_text(value)) <= _SHORT
