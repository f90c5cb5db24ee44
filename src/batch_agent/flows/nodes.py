"""The steps of a flow under way: each hears from the one before it, and hands items on as soon as they are ready."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pydantic import BaseModel

from ..core.fast_dataclass import dataclass
from .callbacks import Callbacks
from .item_order import Position
from .result import Item
from .steps import Expand, Filter

MOST_EXPANDED = 1_000_000
"""Items of one: an endless generator must come to an end."""


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """No item comes from there."""

    position: Position


@dataclass(frozen=True, slots=True)
class ItemExpanded:
    """So many positions are in the place of this one."""

    position: Position
    count: int


@dataclass(frozen=True, slots=True)
class ItemExpected:
    """How many inputs there are. Said as soon as it is known, before `StageClosed` at the latest."""

    inputs: int


@dataclass(frozen=True, slots=True)
class StageClosed:
    """That was all."""


NodeMessage = Item | ItemDropped | ItemExpanded | ItemExpected | StageClosed
"""Of every position comes an item, or that it is gone, or what it was expanded into."""


class FlowNode(Protocol):
    """A step under way."""

    async def hear(self, news: NodeMessage) -> None: ...


class ResultNode:
    """The end: keeps what comes."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(sorted(self._items, key=lambda item: item.position))

    async def hear(self, news: NodeMessage) -> None:
        if isinstance(news, Item):
            self._items.append(news)


class FilterNode:
    """Lets through what the function says; errors pass."""

    def __init__(self, step: Filter, after: str, then: FlowNode, callbacks: Callbacks) -> None:
        self._step = step
        self._callbacks = callbacks
        self._where = f"the filter after {after!r}" if after else "the first filter"
        self._then = then

    async def hear(self, news: NodeMessage) -> None:
        if isinstance(news, Item) and news.ok:
            news = self._filtered(news)
        await self._then.hear(news)

    def _filtered(self, item: Item) -> Item | ItemDropped:
        try:
            return item if self._step.keep(item) else ItemDropped(item.position)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return item.failed(self._where, self._callbacks.raised(self._where, item, error))


class ExpandNode:
    """Makes many of one. An error stays one."""

    def __init__(self, step: Expand, then: FlowNode, callbacks: Callbacks) -> None:
        self._step = step
        self._callbacks = callbacks
        self._then = then

    async def hear(self, news: NodeMessage) -> None:
        match news:
            case Item():
                await self._expand(news)
            case ItemDropped(position):
                await self._then.hear(ItemExpanded(position, 0))
            case _:
                await self._then.hear(news)

    async def _expand(self, item: Item) -> None:
        made = self._made(item) if item.ok else [item]
        await self._then.hear(ItemExpanded(item.position, len(made)))
        for number, each in enumerate(made):
            await self._then.hear(replace(each, position=(*item.position, number)))

    def _made(self, item: Item) -> list[Item]:
        name = self._step.name
        values: list[Any] = []
        try:
            for value in listed(self._step.into(item)):
                if len(values) == MOST_EXPANDED:
                    raise ValueError(f"it gives more than {MOST_EXPANDED:,} items")
                values.append(value)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            where = f"expand({name!r})"
            return [item.failed(where, self._callbacks.raised(where, item, error))]
        return [item.with_fields(**{name: value, "index": number}) for number, value in enumerate(values)]


def listed(values: Any) -> Iterable[Any]:
    """What a function expands an item into. Raises TypeError."""
    if isinstance(values, str | bytes | Mapping | BaseModel) or not isinstance(values, Iterable):
        raise TypeError(f"it must give a list, not {type(values).__name__}")
    if isinstance(values, set | frozenset):  # whose order is another in every process
        return sorted(values, key=repr)
    return values
