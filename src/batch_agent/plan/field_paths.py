"""Field paths of a task in the syntax of str.format: `user.name`, `tags[0]`, `user["home address"]`."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any

from ..core.fast_dataclass import dataclass
from ..core.schema import is_model

PATH = r"""[^\W\d]\w*(?:\.\w+|\[(?:"[^"{}\n]*"|'[^'{}\n]*'|[^\[\]{}"'\n]+)\])*"""
_WHOLE = re.compile(PATH)
_STEP = re.compile(r"""\.?(?P<name>\w+)|\[(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\]]+))\]""")
_OPAQUE = (ModuleType, type, FunctionType, GeneratorType, FrameType, CodeType, TracebackType)
"""Types that are not data. Their attributes expose the program itself."""
_MAX_NAME_CHARS = 200
_MAX_NAMES = 500


class FieldMissing(LookupError):
    """Raised if there is no value at a path."""

    def __init__(self, nearest: str | None = None) -> None:
        super().__init__(nearest)
        self.nearest = nearest
        """The path that was probably meant."""


@dataclass(frozen=True, slots=True)
class PathStep:
    """One name in a path."""

    name: str
    is_index: bool = False
    """Whether it is written in brackets."""

    def after(self, path: str) -> str:
        return f"{path}[{self.name}]" if self.is_index else f"{path}.{self.name}" if path else self.name


@lru_cache(maxsize=1024)
def steps_of(path: str) -> tuple[PathStep, ...]:
    """Steps of a path, starting with the field. Text that is not a path, such as `First Name`, is one step."""
    if not _WHOLE.fullmatch(path):
        return (PathStep(path),)
    found = []
    for match in _STEP.finditer(path):
        quoted = match["double"] if match["double"] is not None else match["single"]
        index = match["bare"] if quoted is None else quoted
        found.append(PathStep(match["name"]) if index is None else PathStep(index, is_index=True))
    return tuple(found)


def root_of(path: str) -> str:
    """The field with which a path begins."""
    return steps_of(path)[0].name


def find(fields: Mapping[str, Any], path: str) -> Any:
    """Value at a path. A field whose name is the whole path takes precedence. Raises FieldMissing, and any exception of
    a property or an index of the user's object."""
    if path in fields:
        return fields[path]
    here: Any = fields
    passed = ""
    for step in steps_of(path):
        try:
            here = _member(here, step)
        except FieldMissing as missing:
            near = missing.nearest and PathStep(missing.nearest, step.is_index).after(passed)
            raise FieldMissing(near) from None
        passed = step.after(passed)
    return here


def nearest(name: str, names: Iterable[Any], similar: float = 0.6) -> str | None:
    """The name that was probably meant, if any. `similar`: minimum similarity; 1 means equal except for case."""
    if len(name) > _MAX_NAME_CHARS:
        return None
    known = {each.casefold(): each for each in islice(map(str, names), _MAX_NAMES) if len(each) <= _MAX_NAME_CHARS}
    from difflib import get_close_matches  # for errors only

    found = get_close_matches(name.casefold(), known, n=1, cutoff=similar)
    return known[found[0]] if found else None


def _member(value: Any, step: PathStep) -> Any:
    """Member of a value: a key, a field, an element, or a public attribute that is not a method."""
    members = dict(value) if is_model(value) else value
    if isinstance(members, Mapping):
        if step.name in members:
            return members[step.name]
        if step.is_index and step.name.isdecimal() and int(step.name) in members:
            return members[int(step.name)]
        if members is value:
            raise FieldMissing(nearest(step.name, members))
    return _element(value, step.name) if step.is_index else _attribute(value, step.name)


def _element(value: Any, index: str) -> Any:
    try:
        return value[int(index) if index.isdecimal() else index]
    except (TypeError, LookupError):
        raise FieldMissing from None


def _attribute(value: Any, name: str) -> Any:
    if name.startswith("_") or isinstance(value, _OPAQUE):
        raise FieldMissing
    try:
        found = getattr(value, name)
    except AttributeError:
        raise FieldMissing(nearest(name, (each for each in dir(value) if not each.startswith("_")))) from None
    if callable(found):
        raise FieldMissing
    return found
