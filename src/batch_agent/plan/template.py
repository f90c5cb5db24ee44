"""Task templates: `{field}` is replaced, everything else is left alone."""

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel

from ..core.errors import SpecError

_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_LENIENT = re.compile(r"\{\{(" + _PATH.pattern + r")\}\}|\{(" + _PATH.pattern + r")(?:!([rsa]))?(?::([^{}\"'\s]*))?\}")

_CONVERSIONS: Mapping[str | None, Callable[[Any], Any]] = {"r": repr, "s": str, "a": ascii, None: lambda value: value}


class MissingField(ValueError):
    """An input lacks a field that the task names; the message says which, and the fix."""


@dataclass(frozen=True, slots=True)
class _Field:
    path: str
    conversion: str | None
    spec: str


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed task. Rendering never looks at braces inside the values."""

    parts: tuple[str | _Field, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, each once, in order."""
        return tuple(dict.fromkeys(part.path for part in self.parts if isinstance(part, _Field)))

    def render(self, value: Any) -> str:
        """The task for one input. Raises MissingField."""
        if isinstance(value, str):
            lookup = self._for_text(value)
        elif isinstance(value, BaseModel):
            lookup = {name: getattr(value, name) for name in type(value).model_fields}
        elif isinstance(value, Mapping):
            lookup = value
        else:
            raise MissingField(f"An input must be a dict, a string or a Pydantic model, not {type(value).__name__}.")
        return "".join([part if isinstance(part, str) else _show(part, lookup) for part in self.parts])

    def _for_text(self, text: str) -> Mapping[str, Any]:
        names = self.fields
        if len(names) > 1:
            listed = ", ".join(f"{{{name}}}" for name in names)
            raise MissingField(f"The input is a plain string but the task has several fields ({listed}): use dicts.")
        return dict.fromkeys(names, text)


def parse_template(task: str) -> Template:
    """Reads `task` as str.format would; where that fails (JSON, LaTeX, code), only `{name}` counts as a field
    and every other brace is itself. In both readings `{{name}}` is the text `{name}`."""
    strict = _parse_strict(task)
    return strict if strict is not None else _parse_lenient(task)


def _parse_strict(task: str) -> Template | None:
    parts: list[str | _Field] = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(task):
            if literal:
                parts.append(literal)
            if name is None:
                continue
            if not _PATH.fullmatch(name) or "{" in (spec or ""):
                return None
            parts.append(_Field(name, conversion, spec or ""))
    except ValueError:
        return None
    return Template(tuple(parts))


def _parse_lenient(task: str) -> Template:
    parts: list[str | _Field] = []
    end = 0
    for match in _LENIENT.finditer(task):
        parts.append(task[end : match.start()])
        escaped, name, conversion, spec = match.groups()
        parts.append(f"{{{escaped}}}" if escaped else _Field(name, conversion, spec or ""))
        end = match.end()
    parts.append(task[end:])
    return Template(tuple(part for part in parts if part != ""))


def _show(part: _Field, lookup: Mapping[str, Any]) -> str:
    value = _find(part.path, lookup)
    if part.conversion is None and not part.spec:
        return _text(value)
    try:
        return format(_CONVERSIONS[part.conversion](value), part.spec)
    except (ValueError, TypeError) as error:
        raise MissingField(f"Field {part.path!r} cannot be shown as {part.spec!r}: {error}.") from error


def _find(path: str, lookup: Mapping[str, Any]) -> Any:
    if path in lookup:
        return lookup[path]
    here: Any = lookup
    for step in path.split("."):
        if isinstance(here, BaseModel) and step in type(here).model_fields:
            here = getattr(here, step)
        elif isinstance(here, Mapping) and step in here:
            here = here[step]
        else:
            known = ", ".join(map(str, list(lookup)[:12])) or "none"
            raise MissingField(
                f"The task names the field {{{path}}} but the input has no {path!r} (its fields: {known}). "
                f"Add the field to the input, or write {{{{{path}}}}} if the braces are meant as text."
            )
    return here


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if isinstance(value, Mapping | list | tuple):
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return str(value)


def check_first(template: Template, value: Any) -> None:
    """Refuses a task that does not fit even the first input: then nothing is sent."""
    try:
        template.render(value)
    except MissingField as error:
        raise SpecError(f"Input 0: {error}") from error
