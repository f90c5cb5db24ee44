"""Dataclasses with slots that are cheap to declare and to instantiate.

The standard library compiles three methods for each dataclass, and six for a frozen one, about 0.2 milliseconds each:
with two hundred classes, a third of the import time. The `__init__` of a frozen one sets each field through
object.__setattr__, 0.3 microseconds each. Here one method is compiled, when it is first used; the others are closures.

Assignments are several times faster than calls that set slots, but a frozen class refuses them. So an instance with
more than a few fields is of a mutable class with the same slots while its `__init__` runs."""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(**options):
        """`dataclasses.dataclass`, with a faster implementation of classes with slots."""
        is_known = options.get("slots") and options.keys() <= _OPTIONS.keys()
        return partial(_declare, {**_OPTIONS, **options}) if is_known else dataclasses.dataclass(**options)


_OPTIONS = {"frozen": False, "slots": True, "init": True, "repr": True, "eq": True}
"""What this implementation knows, with the defaults."""
_FEW_FIELDS = 3
"""Up to so many fields, changing the class twice costs more than it saves."""
_set_class = vars(object)["__class__"].__set__


class _Made:
    """Default of a parameter whose field has a default_factory."""

    def __repr__(self) -> str:
        return "<factory>"


def _declare(options: dict[str, bool], cls: type[Any]) -> type[Any]:
    own, doc = set(vars(cls)), cls.__doc__
    cls.__doc__ = doc or "."  # otherwise the standard library would generate one from the signature
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    cls.__doc__ = doc
    params = getattr(cls, "__dataclass_params__")  # noqa: B009 - not in the type stubs
    params.init, params.repr, params.eq = options["init"], options["repr"], options["eq"]
    params.frozen = is_frozen = options["frozen"]
    opens = is_frozen and len(fields(cls)) > _FEW_FIELDS
    methods = _methods(cls, options)
    if options["init"]:
        methods["__init__"] = _LazyInit(cls, is_frozen=is_frozen, opens=opens)
        if opens:
            methods["__init_subclass__"] = classmethod(_inherit_init)
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


class _LazyInit:
    """Compiles an `__init__` when it is first used: two of three classes that a short run imports are never made."""

    __slots__ = ("_cls", "_is_frozen", "_opens")

    def __init__(self, cls: type[Any], *, is_frozen: bool, opens: bool) -> None:
        self._cls = cls
        self._is_frozen = is_frozen
        self._opens = opens

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        compiled = _init(self._cls, is_frozen=self._is_frozen, opens=self._opens)
        setattr(self._cls, "__init__", compiled)  # noqa: B010 - mypy refuses the assignment
        return compiled if instance is None else compiled.__get__(instance, owner)


def _inherit_init(cls: type[Any]) -> None:
    """An instance of a subclass has another layout, and stays of its class."""
    if "__init__" not in vars(cls):
        setattr(cls, "__init__", _init(cls.__mro__[1], is_frozen=True, opens=False))  # noqa: B010 - mypy refuses the assignment


def _init(cls: type[Any], *, is_frozen: bool, opens: bool) -> Any:
    """`opens`: the fields of a frozen class are assigned while the instance is of a mutable class with the same
    slots."""
    names: dict[str, Any] = {"made": _Made()}
    given = [field for field in fields(cls) if field.init]
    for field in fields(cls):
        if is_frozen and not opens:
            names[f"set_{field.name}"] = vars(cls)[field.name].__set__
        names[f"default_{field.name}"] = field.default
        names[f"make_{field.name}"] = field.default_factory
    named = [_parameter(field) for field in given if field.kw_only]
    placed = [_parameter(field) for field in given if not field.kw_only]
    parameters = ", ".join(["self", *placed, *(["*", *named] if named else [])])
    form = "set_{}(self, {})" if is_frozen and not opens else "self.{} = {}"
    body = [form.format(field.name, value) for field in fields(cls) if (value := _value(field)) is not None]
    if opens:
        same_layout = {name: vars(cls)[name] for name in ("__slots__", "__orig_bases__") if name in vars(cls)}
        mutable = type(cls.__name__, cls.__bases__, same_layout)
        names |= {"class_setter": _set_class, "mutable_class": mutable, "frozen_class": cls}
        body = ["class_setter(self, mutable_class)", *body, "self.__class__ = frozen_class"]
    if "__post_init__" in vars(cls):
        body.append("self.__post_init__()")
    exec(f"def __init__({parameters}):\n    " + ("\n    ".join(body) or "pass"), names)  # noqa: S102 - as dataclasses do
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {**{field.name: field.type for field in given}, "return": None}
    return made


def _parameter(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"{field.name}=default_{field.name}"
    return field.name if field.default_factory is MISSING else f"{field.name}=made"


def _value(field: Field[Any]) -> str | None:
    """Expression for the value of a field; None if it is set later."""
    name = field.name
    if field.init:
        return name if field.default_factory is MISSING else f"make_{name}() if {name} is made else {name}"
    if field.default_factory is not MISSING:
        return f"make_{name}()"
    return None if field.default is MISSING else f"default_{name}"


def _values(chosen: list[Field[Any]]) -> Callable[[Any], Any]:
    return attrgetter(*(field.name for field in chosen)) if chosen else lambda _: ()


def _methods(cls: type[Any], options: dict[str, bool]) -> dict[str, Any]:
    all_fields = fields(cls)
    values = _values([field for field in all_fields if field.compare])
    hashed = _values([field for field in all_fields if (field.compare if field.hash is None else field.hash)])

    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    @recursive_repr("...")
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in all_fields if field.repr)
        return f"{self.__class__.__qualname__}({shown})"

    def __setattr__(self: Any, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self: Any, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, field.name) for field in all_fields]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for field, value in zip(all_fields, state, strict=True):
            object.__setattr__(self, field.name, value)

    methods: dict[str, Any] = {}
    if options["eq"]:
        methods |= {"__eq__": __eq__, "__hash__": __hash__ if options["frozen"] else None}
    if options["repr"]:
        methods["__repr__"] = __repr__
    if options["frozen"]:
        chosen = (__setattr__, __delattr__, __getstate__, __setstate__)
        methods |= {method.__name__: method for method in chosen}
    return methods
