"""From the steps of a flow to a spec for each of its stages; what cannot work is refused before anything is sent."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..core.errors import SpecError
from ..core.fields import Fields
from ..core.spec import BatchSpec
from ..plan.template import parse_template, template_of
from .steps import Expand, Filter, Map, Reduce, Stage, Step

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
_RESULTS = "\n\nResults:\n{results}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A stage with what it needs to know of the others."""

    step: Stage
    options: Mapping[str, Any]
    """As a spec takes them, but for the inputs."""
    before: tuple[str, ...]
    """The stages whose answers its items hold."""
    expansions: int
    """How often its items were expanded."""

    def spec(self, inputs: Any) -> BatchSpec:
        try:
            return BatchSpec.of(**{**self.options, "task": self.step.task, "inputs": inputs})
        except SpecError as error:
            raise SpecError(f"Stage {self.step.name!r}: {error}") from error


def compile_flow(steps: Sequence[Step], options: Mapping[str, Any], first: Sequence[Any]) -> list[Compiled]:
    """`options`: for all stages; `first`: the first input, or none. Raises SpecError."""
    if not any(isinstance(step, Map | Reduce) for step in steps):
        raise SpecError("A flow needs a stage that asks a model: add .map(...) or .reduce(...).")
    _check_names(steps)
    known = _input_names(steps, first)
    before: tuple[str, ...] = ()
    expansions = 0
    compiled: list[Compiled] = []
    for step in steps:
        match step:
            case Filter():
                continue
            case Expand(name):
                known = _added(known, step.name, "index")
                expansions += 1
            case Map(name):
                step = replace(step, task=_named(step.task, known))
                _check_fields(name, template_of(step.task).fields, known)
                compiled.append(Compiled(step, _options(step, options), before, expansions))
                known, before = _added(known, name), (*before, name)
            case Reduce(name):
                by = [step.group_by] if isinstance(step.group_by, str) else []
                _check_fields(name, by, known)
                step = replace(step, task=_with_results(step.task))
                _check_fields(name, parse_template(step.task).fields, frozenset({"n", "group", "results", *by}))
                compiled.append(Compiled(step, _options(step, options), before, expansions))
                known, before, expansions = frozenset({name, "n", "group", *by}), (name,), 0
    return compiled


def text_name(steps: Sequence[Step]) -> str:
    """What an input that is a plain text is called: as the first task calls it."""
    first = next((step for step in steps if isinstance(step, Map | Reduce)), None)
    fields = template_of(first.task).fields if isinstance(first, Map) else ()
    return fields[0] if len(fields) == 1 else "input"


def _input_names(steps: Sequence[Step], first: Sequence[Any]) -> frozenset[str] | None:
    """None where nobody knows them."""
    if not first:
        return None
    [value] = first
    if isinstance(value, BaseModel):
        names: Iterable[str] = type(value).model_fields
    elif isinstance(value, Mapping):
        names = map(str, value)
    else:
        names = [text_name(steps)]
    known = frozenset(names)
    for step in steps:
        if not isinstance(step, Filter) and step.name in known:
            raise SpecError(f"{step.name!r} is a field of the inputs: give the step another name.")
    return known


def _check_names(steps: Sequence[Step]) -> None:
    seen: set[str] = set()
    for step in steps:
        if isinstance(step, Filter):
            if not callable(step.keep):
                raise SpecError("filter(...) takes a function of an item, such as lambda item: item['review'].ok.")
            continue
        name = step.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError(f"A step's name is made of letters, digits and _, and begins with a letter; got {name!r}.")
        if name in _RESERVED:
            raise SpecError(f"{name!r} has a meaning of its own in a flow: give the step another name.")
        if name in seen:
            raise SpecError(f"Two steps are called {name!r}: give one another name.")
        seen.add(name)
        if isinstance(step, Expand):
            if not callable(step.into):
                raise SpecError(f"expand({name!r}, ...) takes a function that gives a list for an item.")
        else:
            _check_stage(step)


def _check_stage(step: Stage) -> None:
    if not isinstance(step.task, str | Fields) or (isinstance(step.task, str) and not step.task.strip()):
        raise SpecError(f"Stage {step.name!r}: its task must be a text that says what each agent should do.")
    if step.on_failure not in _POLICIES:
        raise SpecError(f"Stage {step.name!r}: on_failure must be 'keep', 'skip' or 'stop'; got {step.on_failure!r}.")
    if misplaced := sorted(_OF_THE_FLOW.intersection(step.options)):
        raise SpecError(f"Stage {step.name!r}: {misplaced[0]}= is the same for all stages: give it to Flow(...).")
    if isinstance(step, Reduce) and not isinstance(step.task, str):
        raise SpecError(f"Stage {step.name!r}: the task of a reduce is a text.")


def _options(step: Stage, options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**options, **step.options}
    folder = options.get("checkpoint_dir")
    return merged if folder is None else {**merged, "checkpoint_dir": Path(folder) / step.name}


def _added(known: frozenset[str] | None, *names: str) -> frozenset[str] | None:
    return None if known is None else known.union(names)


def _named(task: str | Fields, known: frozenset[str] | None) -> str | Fields:
    return task if isinstance(task, str) or known is None else task.named(sorted(known))


def _check_fields(stage: str, fields: Iterable[str], known: frozenset[str] | None) -> None:
    if known is None:
        return
    for path in fields:
        if path not in known and path.split(".")[0] not in known and re.fullmatch(r"[^\W\d][\w.]*", path):
            have = ", ".join(sorted(known)) or "none"
            raise SpecError(
                f"Stage {stage!r} names the field {{{path}}}, which items do not have there (they have: {have}). Write "
                f"{{{{{path}}}}} if the braces are meant as text."
            )


def _with_results(task: str) -> str:
    return task if "results" in parse_template(task).fields else task + _RESULTS
