"""Detection of flows whose results are all in their checkpoints.

The inputs of a later stage depend on the stages and user functions before it, so such a flow is first run from its
checkpoints alone, without events or output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.errors import StoreError
from ..core.events import Event
from ..core.options import SpendingLimits
from ..core.spec import BatchSpec
from ..run.complete_checkpoint import is_marked
from ..store.reader import CheckpointReader
from .item_order import Position
from .nodes import MAX_EXPANDED, expanded_values
from .result import Item
from .steps import CascadeFilter, Dedupe, Escalate, Expand, Filter, FlowStep, Join, Map, ModelStep, Pairing, Reduce


class NoEvents:
    """Event sink of a trial run: discards all events."""

    def emit(self, event: Event) -> None:
        pass


class CalledOnce:
    """A user function that is called only once per item, over any number of runs."""

    def __init__(self, function: Callable[[Item], Any]) -> None:
        self._function = function
        self._returned: dict[Position, Any] = {}
        self._raised: dict[Position, Exception] = {}

    def __call__(self, item: Item) -> Any:
        at = item.position
        if at in self._raised:
            raise self._raised[at]
        if at not in self._returned:
            try:
                self._returned[at] = self._function(item)
            except Exception as error:
                self._raised[at] = error
                raise
        return self._returned[at]


def with_cached_function(step: FlowStep) -> FlowStep:
    """The step with its user function wrapped for several runs of the flow."""
    match step:
        case Filter(keep):
            return Filter(CalledOnce(keep))
        case Escalate():
            return replace(step, when=CalledOnce(step.when))
        case CascadeFilter():
            proxy = step.cascade.proxy
            cached = CalledOnce(proxy) if callable(proxy) else proxy
            return replace(step, cascade=replace(step.cascade, proxy=cached))
        case Expand(name, into):
            return Expand(name, CalledOnce(lambda item: list(islice(expanded_values(into(item)), MAX_EXPANDED + 1))))
        case Dedupe():
            return replace(step, pairing=_with_cached_pairing(step.pairing))
        case Join():
            others_on = CalledOnce(step.others_on) if callable(step.others_on) else step.others_on
            return replace(step, pairing=_with_cached_pairing(step.pairing), others_on=others_on)
        case Reduce():
            by = step.group_by
            shown = None if step.shown is None else CalledOnce(step.shown)
            return replace(step, group_by=CalledOnce(by) if callable(by) else by, shown=shown)
        case Map():
            return step


def _with_cached_pairing(pairing: Pairing) -> Pairing:
    on, block = pairing.on, pairing.block
    return replace(
        pairing,
        on=CalledOnce(on) if callable(on) else on,
        block=None if block is None else CalledOnce(block),
    )


def trial_spec(spec: BatchSpec) -> BatchSpec:
    """The spec of a stage in a trial run: no callbacks, no output file, no budget."""
    return replace(spec, on_result=None, out=None, spending=SpendingLimits())


def marked_plans(steps: Sequence[FlowStep], options: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The plans in the checkpoints of all stages, if the flow was completed; otherwise None."""
    if (folder := options.get("checkpoint_dir")) is None:
        return None
    stages = [step for step in steps if isinstance(step, ModelStep)]
    try:
        plans = [_plan(Path(folder) / stage.name) for stage in stages]
    except StoreError:
        return None
    return plans if all(map(is_marked, plans)) else None


def _plan(folder: Path) -> Mapping[str, Any]:
    with CheckpointReader(folder) as reader:
        return reader.plan()
