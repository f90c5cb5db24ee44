"""Frozen dataclasses that are cheap to make."""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick(cls: type[T]) -> type[T]:
    """Goes above `@dataclass(frozen=True, slots=True)` where an agent's every turn makes some.

    A frozen dataclass sets each field through object.__setattr__, 0.3 microseconds each: 17 per agent, a fifth of the
    engine. This one fills its slots directly, in a quarter of the time; it is as frozen as before."""
    names: dict[str, Any] = {}
    parameters, body = [], []
    for field in fields(cls):  # type: ignore[arg-type]
        if field.default_factory is not MISSING or not field.init:
            raise TypeError(f"{cls.__name__}.{field.name}: a quick dataclass has plain defaults only")
        names[f"set_{field.name}"] = cls.__dict__[field.name].__set__
        names[f"default_{field.name}"] = field.default
        parameters.append(field.name if field.default is MISSING else f"{field.name}=default_{field.name}")
        body.append(f"    set_{field.name}(self, {field.name})\n")
    exec(f"def __init__(self, {', '.join(parameters)}):\n{''.join(body)}", names)  # noqa: S102 - as dataclasses do
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = cls.__init__.__annotations__
    setattr(cls, "__init__", made)  # noqa: B010 - mypy would have an assignment to a method refused
    return cls
