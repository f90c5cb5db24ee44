"""Nodes of a running flow. Each receives messages from the previous step, and forwards items when they are ready."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pydantic import BaseModel

from ..core.fast_dataclass import dataclass
from .callbacks import Callbacks
from .item_order import Position
from .result import Item
from .steps import Expand, Filter

MAX_EXPANDED = 1_000_000
"""Maximum number of items from one expansion: a bound for endless generators."""


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """Announces that there will be no item with this position."""

    position: Position


@dataclass(frozen=True, slots=True)
class ItemExpanded:
    """Announces that an item was replaced by this many items."""

    position: Position
    count: int


@dataclass(frozen=True, slots=True)
class ItemExpected:
    """Announces the number of inputs. Sent as soon as it is known, at the latest before `StageClosed`."""

    inputs: int


@dataclass(frozen=True, slots=True)
class StageClosed:
    """Ends the messages."""


NodeMessage = Item | ItemDropped | ItemExpanded | ItemExpected | StageClosed
"""Each position has exactly one of: an item, `ItemDropped`, `ItemExpanded`."""


class FlowNode(Protocol):
    """A step of a running flow."""

    async def receive(self, message: NodeMessage) -> None: ...


class ResultNode:
    """The end of a flow, which collects the items."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(sorted(self._items, key=lambda item: item.position))

    async def receive(self, message: NodeMessage) -> None:
        if isinstance(message, Item):
            self._items.append(message)


class FilterNode:
    """Drops items for which the user function is false. Failed items pass."""

    def __init__(self, step: Filter, after: str, then: FlowNode, callbacks: Callbacks) -> None:
        self._step = step
        self._callbacks = callbacks
        self._where = f"the filter after {after!r}" if after else "the first filter"
        self._then = then

    async def receive(self, message: NodeMessage) -> None:
        if isinstance(message, Item) and message.ok:
            message = self._filtered(message)
        await self._then.receive(message)

    def _filtered(self, item: Item) -> Item | ItemDropped:
        try:
            return item if self._step.keep(item) else ItemDropped(item.position)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return item.failed(self._where, self._callbacks.raised(self._where, item, error))


class ExpandNode:
    """Replaces an item by several. A failed item stays single."""

    def __init__(self, step: Expand, then: FlowNode, callbacks: Callbacks) -> None:
        self._step = step
        self._callbacks = callbacks
        self._then = then

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item():
                await self._expand(message)
            case ItemDropped(position):
                await self._then.receive(ItemExpanded(position, 0))
            case _:
                await self._then.receive(message)

    async def _expand(self, item: Item) -> None:
        items = self._expanded(item) if item.ok else [item]
        await self._then.receive(ItemExpanded(item.position, len(items)))
        for number, each in enumerate(items):
            await self._then.receive(replace(each, position=(*item.position, number)))

    def _expanded(self, item: Item) -> list[Item]:
        name = self._step.name
        values: list[Any] = []
        try:
            for value in expanded_values(self._step.into(item)):
                if len(values) == MAX_EXPANDED:
                    raise ValueError(f"it returned more than {MAX_EXPANDED:,} items")
                values.append(value)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            where = f"expand({name!r})"
            return [item.failed(where, self._callbacks.raised(where, item, error))]
        return [item.with_fields(**{name: value, "index": number}) for number, value in enumerate(values)]


def expanded_values(values: Any) -> Iterable[Any]:
    """The values returned by a user function. Raises TypeError if they are not a list."""
    if isinstance(values, str | bytes | Mapping | BaseModel) or not isinstance(values, Iterable):
        raise TypeError(f"it must return a list, not {type(values).__name__}")
    if isinstance(values, set | frozenset):  # its order differs between processes
        return sorted(values, key=repr)
    return values
