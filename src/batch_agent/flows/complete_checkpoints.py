"""Flows whose results are all in their checkpoints. Nobody can tell that of a later stage without the stages before it
and the user's functions between them, so such a flow is first run from its checkpoints alone, unseen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.errors import StoreError
from ..core.events import Event
from ..core.options import Spend
from ..core.spec import BatchSpec
from ..run.complete_checkpoint import is_marked
from ..store.reader import CheckpointReader
from .item_order import Position
from .nodes import MOST_EXPANDED, listed
from .result import Item
from .steps import Expand, Filter, FlowStep, Map, Reduce


class NoEvents:
    """Nobody hears of a run that is only tried."""

    def emit(self, event: Event) -> None:
        pass


class Once:
    """A function of the user's that is called once for each item, in however many runs."""

    def __init__(self, function: Callable[[Item], Any]) -> None:
        self._function = function
        self._given: dict[Position, Any] = {}
        self._raised: dict[Position, Exception] = {}

    def __call__(self, item: Item) -> Any:
        at = item.position
        if at in self._raised:
            raise self._raised[at]
        if at not in self._given:
            try:
                self._given[at] = self._function(item)
            except Exception as error:
                self._raised[at] = error
                raise
        return self._given[at]


def called_once(step: FlowStep) -> FlowStep:
    """The step, for several runs of its flow."""
    match step:
        case Filter(keep):
            return Filter(Once(keep))
        case Expand(name, into):
            return Expand(name, Once(lambda item: list(islice(listed(into(item)), MOST_EXPANDED + 1))))
        case Reduce():
            by = step.group_by
            shown = None if step.shown is None else Once(step.shown)
            return replace(step, group_by=Once(by) if callable(by) else by, shown=shown)
        case Map():
            return step


def unseen(spec: BatchSpec) -> BatchSpec:
    """The spec of a stage that is only tried: nobody hears of results, and nothing is paid."""
    return replace(spec, on_result=None, out=None, spend=Spend())


def marked_plans(steps: Sequence[FlowStep], options: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """What the checkpoints of all stages keep of a flow that came to its end; None if it did not, or there are none."""
    if (folder := options.get("checkpoint_dir")) is None:
        return None
    stages = [step for step in steps if isinstance(step, Map | Reduce)]
    try:
        plans = [_plan(Path(folder) / stage.name) for stage in stages]
    except StoreError:
        return None
    return plans if all(map(is_marked, plans)) else None


def _plan(folder: Path) -> Mapping[str, Any]:
    with CheckpointReader(folder) as reader:
        return reader.plan()
