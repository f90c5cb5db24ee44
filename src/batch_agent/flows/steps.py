"""The steps of a flow, as they were asked for."""

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
    """An agent for each item; its answer is the item's field of this name from then on."""

    name: str
    task: str | Fields
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filter:
    """Items for which the function says no leave the flow."""

    keep: Keep


@dataclass(frozen=True, slots=True)
class Expand:
    """Many items of one, each with a field of this name, and its number as `index`."""

    name: str
    into: Into


@dataclass(frozen=True, slots=True)
class Reduce:
    """An agent that makes one answer of all items, or of those of each group."""

    name: str
    task: str
    group_by: str | GroupBy | None = None
    shown: Shown | None = None
    """What the agent sees of an item; None: its answers since it was expanded, and what else of it is short."""
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Further fields of the task, by name: known when the first item arrives, and the same for all that are asked."""


FlowStep = Map | Filter | Expand | Reduce
ModelStep = Map | Reduce
"""A step that asks a model."""
