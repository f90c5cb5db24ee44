"""What changed between the run that made a checkpoint and the one that wants to go on from it."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.errors import PlanMismatch
from ..core.interfaces import Store

_SHOWN = 60


async def check_plan(store: Store, plan: Mapping[str, Any], *, rerun: bool) -> None:
    """Keeps the plan beside the facts. Raises PlanMismatch if they were made by another one and nobody said `rerun`."""
    before = await store.plan()
    if before == plan:
        return
    if before is not None and not rerun:
        changes = "; ".join(_changes(before, plan))
        raise PlanMismatch(
            f"The checkpoint holds answers to another question. What changed: {changes}. Change it back to go on from "
            "there; or run with plan_changed='rerun', which asks everything anew and keeps the old answers for when "
            "you change it back; or give this run another checkpoint_dir.",
            changes,
        )
    await store.keep_plan(plan)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in [*before, *(name for name in now if name not in before)]:
        where = f"{path}{name}"
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{where} ")
        elif name == "tools":
            yield f"tools (were {_names(old)}, are {_names(new)}, or their descriptions or parameters differ)"
        else:
            yield f"{where} (was {_short(old)}, is {_short(new)})"


def _names(tools: Any) -> str:
    return ", ".join(str(tool.get("name")) for tool in tools or ()) or "none"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
