"""A dataclass of core/fast_dataclass.py is one of the standard library's in all that can be seen of it."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import KW_ONLY, FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter

from batch_agent.core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """Somewhere."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)
    hidden: str = field(default="secret", repr=False)
    _: KW_ONLY
    unit: str = "m"
    length: float = field(init=False)
    ZERO: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", float(self.x + self.y))


@dataclasses.dataclass(frozen=True, slots=True)
class Twin:
    """Somewhere."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)
    hidden: str = field(default="secret", repr=False)
    _: KW_ONLY
    unit: str = "m"
    length: float = field(init=False)
    ZERO: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", float(self.x + self.y))


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Node:
    children: list[Any]


def test_a_fast_dataclass_has_the_signature_fields_and_repr_of_a_dataclass() -> None:
    assert str(inspect.signature(Point)) == str(inspect.signature(Twin))
    assert repr(Point(1)).removeprefix("Point") == repr(Twin(1)).removeprefix("Twin")
    assert [each.name for each in fields(Point)] == [each.name for each in fields(Twin)]
    assert Point.__doc__ == Twin.__doc__
    assert Nothing.__doc__ is None
    assert Point.__match_args__ == Twin.__match_args__
    assert repr(Nothing()) == "Nothing()"


def test_instances_of_one_class_with_equal_fields_are_equal() -> None:
    assert Point(1, names=["a"]) == Point(1, names=["b"])
    assert hash(Point(1, names=["a"])) == hash(Point(1, names=["b"]))
    assert Point(1) != Point(1, 3)
    assert Point(1) != Twin(1)  # type: ignore[comparison-overlap]
    assert Nothing() == Nothing()
    assert len({Nothing(), Nothing()}) == 1


def test_default_factories_are_called_per_instance() -> None:
    assert Point(1).names is not Point(1).names
    assert Point(1, names=["given"]).names == ["given"]


def test_missing_and_unknown_arguments_raise_the_usual_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Point(1, 2, [], "", "km")  # type: ignore[call-arg]


def test_a_fast_dataclass_is_immutable() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    with pytest.raises((FrozenInstanceError, TypeError)):
        point.other = 2  # type: ignore[attr-defined]


def test_a_fast_dataclass_can_be_copied_replaced_pickled_and_matched() -> None:
    point = Point(1, 4, ["a"], unit="km")
    for again in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert again == point
        assert again.names == ["a"]
    assert replace(point, x=5).length == 9.0
    assert dataclasses.asdict(point) == dataclasses.asdict(Twin(1, 4, ["a"], unit="km"))


def test_pydantic_validates_a_fast_dataclass() -> None:
    assert TypeAdapter(Node).validate_python({"children": [1]}) == Node([1])


def test_a_self_referencing_instance_has_a_repr() -> None:
    node = Node([])
    node.children.append(node)
    assert repr(node) == "Node(children=[...])"


def test_methods_of_the_class_are_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return "somebody"

    assert repr(Named("a")) == "somebody"


def test_a_dataclass_that_is_not_frozen_can_be_changed_and_has_no_hash() -> None:
    @dataclass(slots=True)
    class Changing:
        x: int
        names: list[str] = field(default_factory=list)
        count: int = field(init=False, default=7)

    changing = Changing(1)
    changing.x = 2
    changing.names.append("a")
    assert changing == Changing(2, ["a"])
    assert Changing(1).names == []
    assert repr(changing).endswith("Changing(x=2, names=['a'], count=7)")
    assert copy.copy(changing) == changing
    with pytest.raises(TypeError, match="unhashable"):
        hash(changing)


def test_what_a_class_has_of_its_own_and_what_it_does_without_is_left() -> None:
    @dataclass(frozen=True, slots=True, eq=False)
    class Shared:
        x: int

    @dataclass(frozen=True, slots=True, init=False, repr=False)
    class Special:
        x: int

        def __init__(self, text: str) -> None:
            object.__setattr__(self, "x", int(text))

    assert Shared(1) != Shared(1)
    assert len({Shared(1), Shared(1)}) == 2
    assert Special("3") == Special("3")
    assert repr(Special("3")).endswith(">")
    with pytest.raises(FrozenInstanceError):
        Special("3").x = 4  # type: ignore[misc]


def test_other_dataclass_options_use_the_standard_library() -> None:
    @dataclass(order=True)
    class Ordered:
        x: int

    assert Ordered(1) < Ordered(2)


def test_an_instance_of_a_subclass_stays_of_its_class() -> None:
    class Inhabited(Point):
        def double(self) -> int:
            return 2 * self.x

    inhabited = Inhabited(3, unit="km")
    assert type(inhabited) is Inhabited
    assert inhabited.double() == 6
    assert (inhabited.unit, inhabited.length) == ("km", 5.0)


def test_an_instance_is_frozen_as_soon_as_it_is_made() -> None:
    assert type(Point(1)) is Point
    with pytest.raises(ZeroDivisionError):
        Late(1, 2, 3, 0)


@dataclass(frozen=True, slots=True)
class Late:
    """More than a few fields, one of which cannot be made."""

    a: int
    b: int
    c: int
    d: int
    e: float = field(default_factory=lambda: 1 / 0)
