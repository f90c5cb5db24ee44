"""Steps of a flow, as the user defined them."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from typing import Any

from ..core.fast_dataclass import dataclass
from ..core.task_fields import Fields
from .result import Item, OnFailure

Keep = Callable[[Item], Any]
Into = Callable[[Item], Iterable[Any]]
GroupBy = Callable[[Item], Hashable]
Shown = Callable[[Item], Any]


@dataclass(frozen=True, slots=True)
class Map:
    """An agent per item, whose answer becomes the item's field `name`."""

    name: str
    task: str | Fields
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filter:
    """Items for which the function is false leave the flow."""

    keep: Keep


@dataclass(frozen=True, slots=True)
class Expand:
    """Several items for one, each with a field `name`, and its `index`."""

    name: str
    into: Into


@dataclass(frozen=True, slots=True)
class Reduce:
    """An agent that reduces all items, or each group, to one answer."""

    name: str
    task: str
    group_by: str | GroupBy | None = None
    shown: Shown | None = None
    """What the agent sees of an item; None: its answers since it was expanded, and its short fields."""
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Further fields of the task, by name: known when the first item arrives, and the same for all agents."""


FlowStep = Map | Filter | Expand | Reduce
ModelStep = Map | Reduce
"""A step that calls a model."""
