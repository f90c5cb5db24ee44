"""What can be wrong with the steps of a flow, whatever its inputs are."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

from ..core.errors import SpecError
from ..core.task_fields import Fields
from .steps import Expand, Filter, FlowStep, Map, ModelStep, Reduce

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset({"n", "group", "results", "index"})
_OF_THE_FLOW = frozenset(
    {
        "inputs",
        "checkpoint_dir",
        "max_inflight",
        "max_concurrent",
        "backpressure_ceiling",
        "calibrate_backend",
        "max_total_tokens",
        "max_usd",
        "deadline",
        "prices",
        "spend",
        "limits",
    }
)
"""What all stages share cannot be said of one."""
_POLICIES = ("keep", "skip", "stop")


def check_steps(steps: Sequence[FlowStep]) -> None:
    """Raises SpecError."""
    if not any(isinstance(step, Map | Reduce) for step in steps):
        raise SpecError("A flow needs a stage that asks a model: add .map(...) or .reduce(...).")
    seen: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Filter):
            _check_function("filter(...)", step.keep, "says whether an item stays: lambda item: item['review'].ok")
            continue
        _check_name(step.name)
        if step.name.lower() in seen:  # some file systems do not tell A from a, and a stage has a folder
            other = seen[step.name.lower()]
            raise SpecError(f"Two steps are called {other!r} and {step.name!r}: give one another name.")
        seen[step.name.lower()] = step.name
        if isinstance(step, Expand):
            _check_function(f"expand({step.name!r}, ...)", step.into, "gives a list for an item")
        else:
            _check_stage(step)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"A step's name is made of letters, digits and _, and begins with a letter; got {name!r}.")
    if name in _RESERVED:
        raise SpecError(f"{name!r} has a meaning of its own in a flow: give the step another name.")


def _check_stage(step: ModelStep) -> None:
    if not isinstance(step.task, str | Fields) or (isinstance(step.task, str) and not step.task.strip()):
        raise SpecError(f"Stage {step.name!r}: its task must be a text that says what each agent should do.")
    if step.on_failure not in _POLICIES:
        raise SpecError(f"Stage {step.name!r}: on_failure must be 'keep', 'skip' or 'stop'; got {step.on_failure!r}.")
    if misplaced := sorted(_OF_THE_FLOW.intersection(step.options)):
        raise SpecError(f"Stage {step.name!r}: {misplaced[0]}= is the same for all stages: give it to Flow(...).")
    if isinstance(step, Reduce):
        _check_reduce(step)


def _check_reduce(step: Reduce) -> None:
    where = f"Stage {step.name!r}"
    if not isinstance(step.task, str):
        raise SpecError(f"{where}: the task of a reduce is a text.")
    if step.group_by is not None and not isinstance(step.group_by, str):
        _check_function(f"{where}: group_by=", step.group_by, "gives the key of a group, or the name of a field")
    if step.group_by in ("n", "results", step.name):
        raise SpecError(f"{where}: {step.group_by!r} has a meaning of its own there: group by lambda item: item[...].")
    if step.shown is not None:
        _check_function(f"{where}: shown=", step.shown, "gives what is shown of an item")


def _check_function(where: str, function: Any, purpose: str) -> None:
    if not callable(function):
        raise SpecError(f"{where} takes a function that {purpose}; got {function!r}.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise SpecError(f"{where} takes a function that is not async: what takes time belongs into a stage or a tool.")
