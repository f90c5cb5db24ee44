"""Steps of a flow, as the user defined them."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
class Escalate:
    """A second agent, usually of a stronger model, for some items of a map. Its answer replaces the first one."""

    name: str
    of: str
    """The name of the map."""
    when: Keep
    failed_in: tuple[str, ...]
    """Stages whose failed items are run again as well: the map and the escalations before this one, or none."""
    task: str | Fields
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cascade:
    """Filter with a cheap score: a strong model decides only the items whose score leaves them uncertain.

    With a probability of at least 1 - `delta`, the precision and the recall of the filter are both at least `target`,
    compared with the strong model's answers to all items; `labels` of its answers choose and test the thresholds. If
    the score does not tell the items apart, the strong model decides all of them."""

    proxy: Keep | str | Mapping[str, Any]
    """`f(item)`, higher for items that should be kept; or a model that is asked for a probability: its name, or options
    of its stage such as `{"model": ..., "backend": ...}`."""
    target: float = 0.95
    delta: float = 0.05
    labels: int = 200
    seed: int = 0
    """Seed of the sample that is labelled."""


@dataclass(frozen=True, slots=True)
class CascadeFilter:
    """Items for which the answer to the task is no leave the flow; a proxy decides most of them."""

    name: str
    task: str | Fields
    cascade: Cascade
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
    """Returns what the agent sees of an item; None: its answers since it was expanded, and its short fields."""
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Further fields of the task, by name: known when the first item arrives, and the same for all agents."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Selection of the pairs that a model is asked about: those with similar texts, or with a common key."""

    on: str | Keep
    """The text of an item that is compared: a field, or a function."""
    similarity: float = 0.5
    block: GroupBy | None = None
    """The key of an item, or a list of keys; None: similar texts are pairs."""
    max_pairs: int = 10_000


@dataclass(frozen=True, slots=True)
class Dedupe:
    """Items that a model finds to be the same become one."""

    name: str
    task: str
    pairing: Pairing
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Join:
    """Items with the rows of another list that a model finds to match, one item for each match."""

    name: str
    task: str
    pairing: Pairing
    others: Sequence[Any] = ()
    """The rows of the other list."""
    others_on: str | Keep = ""
    keeps_unmatched: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


FlowStep = Map | Escalate | Filter | CascadeFilter | Expand | Dedupe | Join | Reduce
ModelStep = Map | Escalate | CascadeFilter | Dedupe | Join | Reduce
"""A step that calls a model."""
