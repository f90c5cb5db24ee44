"""Compiler from the steps of a flow to a spec for each stage. Rejects invalid flows before anything is sent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.spec import BatchSpec
from ..core.task_fields import Fields
from ..plan.field_checks import check_names
from ..plan.field_paths import nearest, root_of, steps_of
from ..plan.template import Template, parse_template, template_of
from .steps import CascadeFilter, Dedupe, Escalate, Expand, Filter, FlowStep, Join, Map, ModelStep, Reduce

_RESULTS = "\n\nResults:\n{results}"

Known = Mapping[str, Any]
"""The fields of items at a step, each with the schema of its answer or _ANYTHING."""
_ANYTHING = object()
_PAIR: Known = {"left": str, "right": str}
"""The fields of a task on two items."""


@dataclass(frozen=True, slots=True)
class CompiledStage:
    """A stage with what it needs to know of the preceding steps."""

    step: ModelStep
    options: Mapping[str, Any]
    """Options of its spec, without inputs."""
    answers: tuple[str, ...]
    """Names of the fields with its items' answers: the stages since the last expansion, or the expansion."""
    hidden: tuple[str, ...]
    """Stages before the last expansion, whose answers many items share."""
    expansions: int
    """Number of expansions before this stage."""
    names: tuple[str, ...] = ()
    """The known fields of its items."""

    def spec(self, inputs: Any) -> BatchSpec:
        try:
            return BatchSpec.of(**{**self.options, "task": self.step.task, "inputs": inputs})
        except SpecError as error:
            raise SpecError(f"Stage {self.step.name!r}: {error}") from error.__cause__


@dataclass(frozen=True, slots=True)
class _History:
    """The steps that items have passed through."""

    stages: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    into: str | None = None
    expansions: int = 0

    def mapped(self, name: str) -> "_History":
        return replace(self, stages=(*self.stages, name))

    def flagged(self, name: str) -> "_History":
        """Adds a field that is not an answer, and that a reduce does not show."""
        return replace(self, hidden=(*self.hidden, name))

    def expanded(self, name: str) -> "_History":
        return _History((), (*self.hidden, *self.stages), name, self.expansions + 1)

    def compiled(self, step: ModelStep, options: Mapping[str, Any], known: Known | None = None) -> CompiledStage:
        answers = self.stages or (() if self.into is None else (self.into,))
        return CompiledStage(step, _options(step, options), answers, self.hidden, self.expansions, tuple(known or ()))


def compile_flow(steps: Sequence[FlowStep], options: Mapping[str, Any], first: Sequence[Known]) -> list[CompiledStage]:
    """Compiles validated steps. `options`: options for all stages. `first`: the fields of the first input, or empty.
    Raises SpecError."""
    known: Known | None = dict.fromkeys(first[0], _ANYTHING) if first else None
    _check_clashes(steps, known or {})
    before = _History()
    compiled: list[CompiledStage] = []
    tasks: dict[str, str | Fields] = {}
    for step in steps:
        match step:
            case Filter():
                continue
            case Expand(name):
                known = _with(known, {name: _ANYTHING, "index": _ANYTHING})
                before = before.expanded(name)
            case Map(name):
                step = replace(step, task=_named(step.task, known))
                _check_fields(name, certain_fields(template_of(step.task)), known)
                _check_spelling(step, known)
                compiled.append(before.compiled(step, options, known))
                tasks[name] = step.task
                known, before = _with(known, {name: _schema(step, options)}), before.mapped(name)
            case Escalate(name, of):
                step = replace(step, task=tasks[of])
                compiled.append(before.compiled(step, options, known))
                known, before = _with(known, {name: bool}), before.flagged(name)
            case CascadeFilter(name):
                step = replace(step, task=_named(step.task, known))
                _check_fields(name, certain_fields(template_of(step.task)), known)
                _check_spelling(step, known)
                compiled.append(before.compiled(step, options, known))
                known, before = _with(known, {name: bool}), before.flagged(name)
            case Dedupe(name) | Join(name):
                _check_fields(name, [step.pairing.on] if isinstance(step.pairing.on, str) else [], known)
                _check_fields(name, certain_fields(template_of(step.task)), _PAIR)
                compiled.append(before.compiled(step, options, _PAIR))
                known = _with(known, {name: _ANYTHING})
                before = before.expanded(name) if isinstance(step, Join) else before.flagged(name)
            case Reduce(name):
                step = replace(step, task=_with_results(step.task))
                group_fields = _group_fields(step, known)
                available = {**group_fields, "results": str, **dict.fromkeys(step.given, str)}
                _check_fields(name, certain_fields(parse_template(step.task)), available)
                _check_spelling(step, available)
                compiled.append(before.compiled(step, options))
                known, before = {**group_fields, name: _schema(step, options)}, _History((name,))
    return compiled


def text_name(steps: Sequence[FlowStep]) -> str:
    """The field name of a plain-text input: the only field of the first task."""
    generated = {"index"}
    for step in steps:
        match step:
            case Expand(name):
                generated.add(name)
            case Map() | CascadeFilter():
                fields = [path for path in certain_fields(template_of(step.task)) if root_of(path) not in generated]
                return fields[0] if len(fields) == 1 else "input"
            case Reduce():
                break
            case Dedupe() | Join():
                return step.pairing.on if isinstance(step.pairing.on, str) else "input"
            case Filter() | Escalate():
                continue
    return "input"


def certain_fields(template: Template) -> list[str]:
    """The distinct fields that are certainly not literal text in braces."""
    cells = enumerate(template.cell_names)
    return list(dict.fromkeys(path for cell, path in cells if cell in template.certain_cells))


def _check_clashes(steps: Sequence[FlowStep], known: Known) -> None:
    for step in steps:
        if isinstance(step, Reduce):
            return  # items after a reduce have no fields of the inputs
        if isinstance(step, Filter):
            continue
        for name in (step.name, "index") if isinstance(step, Expand) else (step.name,):
            if name in known:
                raise SpecError(
                    f"{name!r} is a field of the inputs, and step {step.name!r} adds a field of the same name: rename "
                    "one of them."
                )


def _group_fields(step: Reduce, known: Known | None) -> Known:
    """The fields of a group other than its results, which the reduced item keeps."""
    if step.group_by is None:
        return {"n": int}
    by = [step.group_by] if isinstance(step.group_by, str) else []
    _check_fields(step.name, by, known)
    return {"n": int, **dict.fromkeys(["group", *by], _ANYTHING)}


def _options(step: ModelStep, options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**options, **step.options}
    folder = options.get("checkpoint_dir")
    return merged if folder is None else {**merged, "checkpoint_dir": Path(folder) / step.name}


def _schema(step: ModelStep, options: Mapping[str, Any]) -> Any:
    return {**options, **step.options}.get("output_schema")


def _with(known: Known | None, more: Known) -> Known | None:
    return None if known is None else {**known, **more}


def _named(task: str | Fields, known: Known | None) -> str | Fields:
    return task if isinstance(task, str) or known is None else task.named(sorted(known))


def _check_fields(stage: str, fields: Iterable[str], known: Known | None) -> None:
    for path in fields:
        if known is None or path in known:
            continue
        root, rest = steps_of(path)[0].name, steps_of(path)[1:]
        if root not in known:
            have, where, near = sorted(known), "items do not have at this step (they have", nearest(path, known)
        elif (parts := _parts(known[root])) is not None and rest[0].name not in parts:
            have, where = parts, f"the answer of {root!r} does not have (it has"
            near = f"{root}.{found}" if (found := nearest(rest[0].name, parts)) else None
        else:
            continue
        meant = f"Did you mean {{{near}}}? " if near else ""
        raise SpecError(
            f"Stage {stage!r} uses the field {{{path}}}, which {where}: {', '.join(have) or 'none'}). {meant}Write "
            f"{{{{{path}}}}} for literal braces."
        )


def _check_spelling(step: ModelStep, known: Known | None) -> None:
    if known is not None:
        check_names(template_of(step.task), list(known), f"Stage {step.name!r}: ")


def _parts(schema: Any) -> list[str] | None:
    """The fields of an answer; None if they are unknown."""
    if schema is None or schema in (str, int, float, bool):
        return []
    if isinstance(schema, type) and issubclass(schema, BaseModel) and schema.model_config.get("extra") != "allow":
        return list(schema.model_fields)
    return None


def _with_results(task: str) -> str:
    return task if "results" in map(root_of, parse_template(task).fields) else task + _RESULTS
