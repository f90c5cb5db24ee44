"""Plan check: what changed between the run that made a checkpoint and the run that resumes it."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from ..core.agent_config import ToolMode
from ..core.errors import PlanMismatch
from ..core.protocols.store import Store

_MAX_SHOWN = 60
_SHOWN_BEFORE = 20
"""Number of unchanged characters shown before the first difference."""
_LIMIT_KEYS = ("tool mode", "max_turns", "sampling")


async def check_plan(store: Store, plan: Mapping[str, Any], *, rerun: bool, keeps: bool = True) -> None:
    """Stores the plan in the checkpoint. Raises PlanMismatch if its facts belong to another question, unless `rerun` is
    set. The server, its options and the limits may change. `keeps`: False for a worker of a run that another process
    submitted, whose limits must be those of the run."""
    before = await store.plan()
    if before == plan:
        return
    if before is not None and not rerun and not is_same_question(before, plan):
        changes = "; ".join(_changes(question_of(before), question_of(plan)))
        raise PlanMismatch(
            f"The checkpoint belongs to a run with a different definition. What changed: {changes}. Undo the "
            "change to resume; or run with plan_changed='rerun' (--plan-changed rerun), which runs all "
            "agents again and keeps the old answers in case you undo the change; or use another checkpoint_dir "
            "(--checkpoint).",
            changes,
        )
    if before is None or keeps:
        await store.save_plan(plan)
    elif differing := "; ".join(_changes(_limits_of(before), _limits_of(plan))):
        raise PlanMismatch(
            f"The limits of this worker differ from those of the run: {differing}. Start it with the same limits.",
            differing,
        )


def question_of(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a stored plan that determines the answers."""
    question: Mapping[str, Any] = plan.get("question", plan)
    return question


def is_same_question(before: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    return question_of(before) == question_of(plan)


def kept_tool_mode(before: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> ToolMode | None:
    """The tool mode of a checkpoint for the same question, if it differs from the current one: its replies can only be
    parsed in that mode."""
    if before is None or not is_same_question(before, plan) or before["tool mode"] == plan["tool mode"]:
        return None
    mode: ToolMode = before["tool mode"]
    return mode


def _limits_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plan.get(name) for name in _LIMIT_KEYS}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in [*before, *(name for name in now if name not in before)]:
        where = f"{path}{name}"
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{where} ")
        elif name == "tools":
            yield f"tools (were {_names(old)}, are {_names(new)}{_differing_tools(old, new)})"
        else:
            same = _same_beginning(old, new)
            yield f"{where} (was {_short(old, same)}, is {_short(new, same)})"


def _names(tools: Any) -> str:
    return ", ".join(str(tool.get("name")) for tool in tools or ()) or "none"


def _differing_tools(old: Any, new: Any) -> str:
    """Which tools of the same name differ in their description or parameters."""
    if _names(old) != _names(new):
        return ""
    other = [each["name"] for each, now in zip(old or (), new or (), strict=True) if each != now]
    return f"; description or parameters of {', '.join(other)} differ"


def _same_beginning(old: Any, new: Any) -> int:
    """Characters at the beginning of two long texts that need not be shown."""
    if not isinstance(old, str) or not isinstance(new, str) or max(len(old), len(new)) <= _MAX_SHOWN:
        return 0
    return max(
        0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))) - _SHOWN_BEFORE
    )


def _short(value: Any, start: int) -> str:
    if value is None:
        return "none"
    text = repr(value[start:] if start else value)
    cut = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    return f"...{cut}" if start else cut
