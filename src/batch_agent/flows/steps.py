"""Steps of a flow, as defined by the user."""

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
    """A second agent, usually with a stronger model, for some items of a map. Its answer replaces the first one."""

    name: str
    of: str
    """The name of the map."""
    when: Keep
    failed_in: tuple[str, ...]
    """Stages whose failed items are also run again: the map and the escalations before this one, or none."""
    task: str | Fields
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cascade:
    """Filter with a cheap score: a strong model decides only the items whose score leaves them uncertain.

    With a probability of at least 1 - `delta`, both precision and recall of the filter are at least `target`, compared
    with the strong model's answers to all items. `labels` of its answers serve to choose and test the thresholds. If
    the score does not separate the items, the strong model decides all of them."""

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
    """Drops the items for which the answer to the task is no. A proxy decides most of them."""

    name: str
    task: str | Fields
    cascade: Cascade
    on_failure: OnFailure = "keep"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filter:
    """Drops the items for which the function is false."""

    keep: Keep


@dataclass(frozen=True, slots=True)
class Expand:
    """Replaces an item by several, each with a field `name` and its `index`."""

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
    """Further fields of the task, by name. They are known when the first item arrives, and the same for all agents."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Selects the pairs that a model is asked about: those whose texts are similar or that share a key."""

    on: str | Keep
    """The text of an item to compare: a field or a function."""
    similarity: float = 0.5
    block: GroupBy | None = None
    """The key of an item, or a list of keys; None: pairs are similar texts."""
    max_pairs: int = 10_000


@dataclass(frozen=True, slots=True)
class Dedupe:
    """Merges items that are the same according to a model."""

    name: str
    task: str
    pairing: Pairing
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs items with the matching rows of another list according to a model, one item for each match."""

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
