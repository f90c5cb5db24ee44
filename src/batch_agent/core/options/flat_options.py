"""Flat options: every field of every option group under one name, as `BatchSpec(max_turns=4)` accepts them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from typing import Any

from ..errors import SpecError
from ..requests import Sampling
from ..validation import explain_unknown_name
from . import ContextLimits, Distributed, Limits, Prefix, Retry, Rows, SpendingLimits, Timeouts, ToolCaching
from .evaluation import Evaluation

OPTION_GROUPS: dict[str, type[Any]] = {
    "rows": Rows,
    "limits": Limits,
    "timeouts": Timeouts,
    "retry": Retry,
    "context": ContextLimits,
    "prefix": Prefix,
    "tool_caching": ToolCaching,
    "spending": SpendingLimits,
    "distribution": Distributed,
    "sampling": Sampling,
    "evaluation": Evaluation,
}


def flat_name(group: str, name: str) -> str:
    """Name of a group's field among the flat options."""
    return f"timeout_per_{name}" if group == "timeouts" else name


FLAT: dict[str, tuple[str, str]] = {
    flat_name(group, f.name): (group, f.name) for group, kind in OPTION_GROUPS.items() for f in fields(kind)
}
FORMER_SPELLINGS = {"max_concurrent": "max_inflight", "max_dispatched": "max_agents"}
"""Option names of batch-agent 0.2, which still work."""
FLAT |= {former: FLAT[name] for former, name in FORMER_SPELLINGS.items()}


def group_options(options: Mapping[str, Any], own_fields: Set[str], known: Sequence[str]) -> dict[str, Any]:
    """The fields of a spec from flat options. `own_fields`: those of a spec that are not in a group, and the groups;
    `known`: names of all options. Raises SpecError for an unknown option."""
    own: dict[str, Any] = {}
    grouped: dict[str, dict[str, str]] = {}
    for name, value in options.items():
        if name in own_fields:
            own[name] = value
        elif name in FLAT:
            group, member = FLAT[name]
            given = grouped.setdefault(group, {})
            if member in given:
                raise SpecError(f"{given[member]}= and {name}= set the same option; keep {_current_name(name)}=.")
            given[member] = name
        else:
            raise SpecError(f"Unknown option {name!r}.{explain_unknown_name('option', name, known)}")
    for group, given in grouped.items():
        if group in own:
            raise SpecError(f"{group}= and {', '.join(given.values())}= set the same options; keep one of them.")
        own[group] = _build_group(
            group, {member: options[name] for member, name in given.items()}, list(given.values())
        )
    return own


def _build_group(group: str, members: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Builds an option group. An error about an option that was given by a former name mentions both names."""
    try:
        return OPTION_GROUPS[group](**members)
    except SpecError as error:
        for former in FORMER_SPELLINGS.keys() & set(names):
            if str(error).startswith(FORMER_SPELLINGS[former]):
                raise SpecError(f"{former}= is {FORMER_SPELLINGS[former]}=: {error}") from None
        raise


def _current_name(name: str) -> str:
    return FORMER_SPELLINGS.get(name, name)
