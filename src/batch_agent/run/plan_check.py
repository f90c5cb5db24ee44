"""What changed between the run that made a checkpoint and the one that wants to go on from it."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from ..core.agent_config import ToolMode
from ..core.errors import PlanMismatch
from ..core.protocols import Store

_SHOWN = 60
_BEFORE = 20
"""Characters that are shown of what is the same, before the first that differs."""
_ROOM = ("tool mode", "max_turns", "sampling")


async def check_plan(store: Store, plan: Mapping[str, Any], *, rerun: bool, keeps: bool = True) -> None:
    """Keeps the plan beside the facts. Raises PlanMismatch if they are answers to another question and nobody said
    `rerun`. Where the server is, how it is asked and how much room there is may change. `keeps`: False for a worker
    of a run that others asked for, whose limits must be theirs."""
    before = await store.plan()
    if before == plan:
        return
    if before is not None and not rerun and not is_same_question(before, plan):
        changes = "; ".join(_changes(question_of(before), question_of(plan)))
        raise PlanMismatch(
            f"The checkpoint holds answers to another question. What changed: {changes}. Change it back to go on from "
            "there; or run with plan_changed='rerun' (--plan-changed rerun), which asks everything anew and keeps the "
            "old answers for when you change it back; or give this run another checkpoint_dir (--checkpoint).",
            changes,
        )
    if before is None or keeps:
        await store.keep_plan(plan)
    elif differing := "; ".join(_changes(_room(before), _room(plan))):
        raise PlanMismatch(
            f"The run that others have asked for has other limits than this worker: {differing}. Start it with theirs.",
            differing,
        )


def question_of(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was asked, of what a checkpoint keeps."""
    question: Mapping[str, Any] = plan.get("question", plan)
    return question


def is_same_question(before: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    return question_of(before) == question_of(plan)


def kept_tool_mode(before: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> ToolMode | None:
    """The tool mode of a checkpoint that holds answers to the same question, where it is another one now: its agents'
    replies can be read in no other."""
    if before is None or not is_same_question(before, plan) or before["tool mode"] == plan["tool mode"]:
        return None
    mode: ToolMode = before["tool mode"]
    return mode


def _room(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plan.get(name) for name in _ROOM}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in [*before, *(name for name in now if name not in before)]:
        where = f"{path}{name}"
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{where} ")
        elif name == "tools":
            yield f"tools (were {_names(old)}, are {_names(new)}{_in_what(old, new)})"
        else:
            same = _same_beginning(old, new)
            yield f"{where} (was {_short(old, same)}, is {_short(new, same)})"


def _names(tools: Any) -> str:
    return ", ".join(str(tool.get("name")) for tool in tools or ()) or "none"


def _in_what(old: Any, new: Any) -> str:
    """For tools of the same names: whose description or parameters differ."""
    if _names(old) != _names(new):
        return ""
    other = [each["name"] for each, now in zip(old or (), new or (), strict=True) if each != now]
    return f"; description or parameters of {', '.join(other)} differ"


def _same_beginning(old: Any, new: Any) -> int:
    """Characters of two long texts that need not be shown."""
    if not isinstance(old, str) or not isinstance(new, str) or max(len(old), len(new)) <= _SHOWN:
        return 0
    return max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))) - _BEFORE)


def _short(value: Any, start: int) -> str:
    if value is None:
        return "none"
    text = repr(value[start:] if start else value)
    cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"...{cut}" if start else cut
