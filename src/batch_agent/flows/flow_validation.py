"""Validation of the steps of a flow, independent of its inputs."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

from ..core.errors import SpecError
from ..core.task_fields import Fields
from ..core.validation import at_least, is_number
from .cascade_filter import cascade_problem
from .steps import Cascade, CascadeFilter, Dedupe, Escalate, Expand, Filter, FlowStep, Join, ModelStep, Reduce

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset({"n", "group", "results", "index"})
_FLOW_OPTIONS = frozenset(
    {
        "inputs",
        "limit",
        "sample",
        "sample_seed",
        "where",
        "input_format",
        "key",
        "rows",
        "checkpoint_dir",
        "store",
        "run_id",
        "lease",
        "cluster",
        "workers",
        "distribution",
        "max_inflight",
        "max_concurrent",
        "backpressure_ceiling",
        "rpm",
        "tpm",
        "calibrate_backend",
        "max_total_tokens",
        "max_usd",
        "deadline",
        "prices",
        "spending",
        "limits",
    }
)
"""Options that all stages share and that no single stage can have."""
_KEEP = "returns whether to keep an item (lambda item: item['review'].ok), or a name and a task"
_POLICIES = ("keep", "skip", "stop")


def check_steps(steps: Sequence[FlowStep]) -> None:
    """Raises SpecError."""
    if not any(isinstance(step, ModelStep) for step in steps):
        raise SpecError("A flow needs a stage that calls a model: add .map(...) or .reduce(...).")
    seen: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Filter):
            _check_function("filter(...)", step.keep, _KEEP)
            continue
        _check_name(step.name)
        if step.name.lower() in seen:  # each stage has a folder, and some file systems ignore case
            other = seen[step.name.lower()]
            names = repr(other) if other == step.name else f"{other!r} and {step.name!r}"
            raise SpecError(f"Two steps are called {names}: rename one of them.")
        seen[step.name.lower()] = step.name
        if isinstance(step, Expand):
            _check_function(f"expand({step.name!r}, ...)", step.into, "returns a list for an item")
        else:
            _check_stage(step)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"A step's name must consist of letters, digits and _, and begin with a letter; got {name!r}.")
    if name in _RESERVED:
        raise SpecError(f"{name!r} is a reserved name in a flow: rename the step.")


def _check_stage(step: ModelStep) -> None:
    if not isinstance(step.task, str | Fields) or (isinstance(step.task, str) and not step.task.strip()):
        raise SpecError(f"Stage {step.name!r}: task must be a non-empty string.")
    if not isinstance(step, Dedupe | Join) and step.on_failure not in _POLICIES:
        raise SpecError(f"Stage {step.name!r}: on_failure must be 'keep', 'skip' or 'stop'; got {step.on_failure!r}.")
    if misplaced := sorted(_FLOW_OPTIONS.intersection(step.options)):
        raise SpecError(f"Stage {step.name!r}: {misplaced[0]}= applies to all stages: pass it to Flow(...).")
    match step:
        case Reduce():
            _check_reduce(step)
        case Escalate():
            purpose = "returns whether an item is run again: lambda item: item['review'].confidence < 0.8"
            _check_function(f"escalate(): when= of {step.of!r}", step.when, purpose)
        case CascadeFilter():
            _check_cascade(step)
        case Dedupe() | Join():
            _check_pairing(f"Stage {step.name!r}", step)


def _check_reduce(step: Reduce) -> None:
    where = f"Stage {step.name!r}"
    if not isinstance(step.task, str):
        raise SpecError(f"{where}: the task of a reduce must be a string.")
    if step.group_by is not None and not isinstance(step.group_by, str):
        _check_function(f"{where}: group_by=", step.group_by, "returns the key of a group, or the name of a field")
    if step.group_by in ("n", "results", step.name):
        raise SpecError(f"{where}: {step.group_by!r} is a reserved name: use group_by=lambda item: item[...].")
    if step.shown is not None:
        _check_function(f"{where}: shown=", step.shown, "returns what is shown of an item")


def _check_pairing(where: str, step: Dedupe | Join) -> None:
    pairing = step.pairing
    texts = [("on=", pairing.on), *([("others_on=", step.others_on)] if isinstance(step, Join) else [])]
    for option, text in texts:
        if not isinstance(text, str):
            _check_function(f"{where}: {option}", text, "returns the text of an item, or the name of a field")
    if pairing.block is not None:
        _check_function(f"{where}: block=", pairing.block, "returns the key of an item, or a list of keys")
    if not (is_number(pairing.similarity) and 0 < pairing.similarity <= 1):
        raise SpecError(f"{where}: similarity must be more than 0 and at most 1; got {pairing.similarity!r}.")
    at_least(f"{where}: max_pairs", pairing.max_pairs, 1)
    if isinstance(step, Join) and (isinstance(step.others, str) or not isinstance(step.others, Sequence)):
        raise SpecError(f"{where}: the rows to join must be a list; got {type(step.others).__name__}.")
    if step.options["output_schema"] is not bool:
        raise SpecError(f"{where}: the answer is yes or no; omit output_schema=.")


def _check_cascade(step: CascadeFilter) -> None:
    where = f"filter({step.name!r}, ...)"
    if not isinstance(step.cascade, Cascade):
        raise SpecError(f"{where}: cascade= must be a Cascade(proxy=...); got {step.cascade!r}.")
    if (problem := cascade_problem(step.cascade)) is not None:
        raise SpecError(f"{where}: {problem}.")


def _check_function(where: str, function: Any, purpose: str) -> None:
    if not callable(function):
        raise SpecError(f"{where} must be a function that {purpose}; got {function!r}.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise SpecError(f"{where} must not be an async function: do slow work in a stage or a tool.")
