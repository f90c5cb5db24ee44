"""Signatures that list the options of a call one by one, for help(), IPython and notebooks.

Type checkers and editors read `**options: Unpack[RunOptions]`; what runs takes `**options: Any`, so that a name of an
earlier version still works and an unknown one raises a SpecError."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields
from functools import cache
from inspect import Parameter, signature
from typing import Any, Required, TypeVar, get_args, get_origin

from ..fast_dataclass import dataclass
from ..spec import BatchSpec
from .flat_options import OPTION_GROUPS, flat_name

F = TypeVar("F", bound=Callable[..., Any])

_MODULES = re.compile(r"(?:\w+\.)+(?=\w)")


def lists_options(*options: type[Any], default: str = "") -> Callable[[F], F]:
    """Decorator that makes the signature of the function list the keys of these TypedDicts instead of its `**options`.

    `default`: text shown as the default of each option, if not the default of a run."""
    listed = _parameters(options, default)

    def decorate(function: F) -> F:
        own = signature(function)
        named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        setattr(function, "__signature__", own.replace(parameters=[*named, *listed]))  # noqa: B010 - not in its type
        return function

    return decorate


@cache
def _parameters(options: tuple[type[Any], ...], default: str) -> Sequence[Parameter]:
    types = {name: type_ for each in options for name, type_ in each.__annotations__.items()}
    required = frozenset[str]().union(*(each.__required_keys__ for each in options))
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if name in required else _Shown(default) if default else _DEFAULTS.get(name),
            annotation=_Type(types[name]),
        )
        for name in _ordered(types, required)
    ]


@dataclass(frozen=True, slots=True)
class _Type:
    """A type, shown without the names of modules."""

    type: Any

    def __repr__(self) -> str:
        bare = get_args(self.type)[0] if get_origin(self.type) is Required else self.type
        return _MODULES.sub("", bare.__name__ if isinstance(bare, type) else repr(bare))


@dataclass(frozen=True, slots=True)
class _Shown:
    """A default that is written as this text."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _ordered(names: Mapping[str, Any], required: Set[str]) -> list[str]:
    """Required names of the call itself, then the options of a spec, then other names of the call."""
    of_call = [name for name in names if name not in _DEFAULTS and name not in OPTION_GROUPS]
    return [
        *(name for name in of_call if name in required),
        *(name for name in _DEFAULTS if name in names),
        *(name for name in of_call if name not in required),
    ]


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()


_DEFAULTS: dict[str, Any] = {
    **{field.name: _default(field) for field in fields(BatchSpec) if field.name not in OPTION_GROUPS},
    **{
        flat_name(group, field.name): _default(field) for group, kind in OPTION_GROUPS.items() for field in fields(kind)
    },
}
"""Default of each option. Groups are replaced by their fields."""
