"""From the steps of a flow to a spec for each of its stages; what cannot work is refused before anything is sent."""

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
from .steps import Expand, Filter, FlowStep, Map, ModelStep, Reduce

_RESULTS = "\n\nResults:\n{results}"

Known = Mapping[str, Any]
"""The fields of items at some point, each with the schema of the answer that it is, or _ANYTHING."""
_ANYTHING = object()


@dataclass(frozen=True, slots=True)
class CompiledStage:
    """A stage with what it needs to know of the others."""

    step: ModelStep
    options: Mapping[str, Any]
    """As a spec takes them, but for the inputs."""
    answers: tuple[str, ...]
    """What came of its items so far, by the names of steps: the stages since they were expanded, or what into."""
    hidden: tuple[str, ...]
    """Stages before that, whose answers many items have in common."""
    expansions: int
    """How often its items were expanded."""
    names: tuple[str, ...] = ()
    """The fields that its items have, as far as they are known."""

    def spec(self, inputs: Any) -> BatchSpec:
        try:
            return BatchSpec.of(**{**self.options, "task": self.step.task, "inputs": inputs})
        except SpecError as error:
            raise SpecError(f"Stage {self.step.name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Before:
    """What items went through."""

    stages: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    into: str | None = None
    expansions: int = 0

    def asked(self, name: str) -> "_Before":
        return replace(self, stages=(*self.stages, name))

    def expanded(self, name: str) -> "_Before":
        return _Before((), (*self.hidden, *self.stages), name, self.expansions + 1)

    def compiled(self, step: ModelStep, options: Mapping[str, Any], known: Known | None = None) -> CompiledStage:
        answers = self.stages or (() if self.into is None else (self.into,))
        return CompiledStage(step, _options(step, options), answers, self.hidden, self.expansions, tuple(known or ()))


def compile_flow(steps: Sequence[FlowStep], options: Mapping[str, Any], first: Sequence[Known]) -> list[CompiledStage]:
    """Of steps that were checked. `options`: for all stages; `first`: the fields of the first input, or none. Raises
    SpecError."""
    known: Known | None = dict.fromkeys(first[0], _ANYTHING) if first else None
    _check_clashes(steps, known or {})
    before = _Before()
    compiled: list[CompiledStage] = []
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
                _check_words(step, known)
                compiled.append(before.compiled(step, options, known))
                known, before = _with(known, {name: _schema(step, options)}), before.asked(name)
            case Reduce(name):
                step = replace(step, task=_with_results(step.task))
                told = _told(step, known)
                said = {**told, "results": str, **dict.fromkeys(step.given, str)}
                _check_fields(name, certain_fields(parse_template(step.task)), said)
                _check_words(step, said)
                compiled.append(before.compiled(step, options))
                known, before = {**told, name: _schema(step, options)}, _Before((name,))
    return compiled


def text_name(steps: Sequence[FlowStep]) -> str:
    """What an input that is a plain text is called: as the first task calls it."""
    made = {"index"}
    for step in steps:
        match step:
            case Expand(name):
                made.add(name)
            case Map():
                fields = [path for path in certain_fields(template_of(step.task)) if root_of(path) not in made]
                return fields[0] if len(fields) == 1 else "input"
            case Reduce():
                break
            case Filter():
                continue
    return "input"


def certain_fields(template: Template) -> list[str]:
    """Those that are no text in braces, each once."""
    cells = enumerate(template.cell_names)
    return list(dict.fromkeys(path for cell, path in cells if cell in template.certain_cells))


def _check_clashes(steps: Sequence[FlowStep], known: Known) -> None:
    for step in steps:
        if isinstance(step, Reduce):
            return  # from there on, items have nothing of the inputs
        if isinstance(step, Filter):
            continue
        for name in (step.name, "index") if isinstance(step, Expand) else (step.name,):
            if name in known:
                raise SpecError(
                    f"{name!r} is a field of the inputs, and step {step.name!r} gives items a field of this name too: "
                    "rename one of them."
                )


def _told(step: Reduce, known: Known | None) -> Known:
    """What a reduce says of a group beside its results, and its item has afterwards."""
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
            have, where, near = sorted(known), "items do not have there (they have", nearest(path, known)
        elif (parts := _parts(known[root])) is not None and rest[0].name not in parts:
            have, where = parts, f"the answer of {root!r} does not have (it has"
            near = f"{root}.{found}" if (found := nearest(rest[0].name, parts)) else None
        else:
            continue
        meant = f"Did you mean {{{near}}}? " if near else ""
        raise SpecError(
            f"Stage {stage!r} names the field {{{path}}}, which {where}: {', '.join(have) or 'none'}). {meant}Write "
            f"{{{{{path}}}}} if the braces are meant as text."
        )


def _check_words(step: ModelStep, known: Known | None) -> None:
    if known is not None:
        check_names(template_of(step.task), list(known), f"Stage {step.name!r}: ")


def _parts(schema: Any) -> list[str] | None:
    """The fields of an answer; None where nobody knows them."""
    if schema is None or schema in (str, int, float, bool):
        return []
    if isinstance(schema, type) and issubclass(schema, BaseModel) and schema.model_config.get("extra") != "allow":
        return list(schema.model_fields)
    return None


def _with_results(task: str) -> str:
    return task if "results" in map(root_of, parse_template(task).fields) else task + _RESULTS
