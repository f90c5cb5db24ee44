"""The step that asks an agent about each item."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ..core.results import AgentResult
from .nodes import FlowNode, ItemDropped, ItemExpected, NodeMessage, StageClosed
from .result import Item
from .stage_runner import StageRunner, forward_failure
from .steps import Map


class MapNode:
    """Fed with items by the step before it."""

    def __init__(self, step: Map, fields: Sequence[str], agents: StageRunner, then: FlowNode) -> None:
        """`fields`: those that the task shows. Others are no part of what is asked."""
        self.agents = agents
        self._step = step
        self._fields = fields
        self._then = then
        self._items: dict[int, Item] = {}

    async def hear(self, news: NodeMessage) -> None:
        match news:
            case Item() if news.ok:
                await self.agents.room()
                asked = {name: news.fields[name] for name in self._fields if name in news.fields}
                self._items[self.agents.ask(asked)] = news
            case StageClosed():
                self.agents.close()
            case _:
                await self._then.hear(news)

    async def go(self) -> None:
        await self.agents.go(self._deliver)
        await self._then.hear(StageClosed())

    async def _deliver(self, result: AgentResult) -> None:
        item = self._items.pop(result.index)
        self.agents.keep(item.position, result)
        await forward(self._step, self.agents, item, result, self._then)


class MapInputs:
    """The first step, which reads the inputs of the flow itself."""

    def __init__(self, step: Map, text_name: str, agents: StageRunner, then: FlowNode, total: int | None) -> None:
        self.agents = agents
        self._step = step
        self._text_name = text_name
        self._then = then
        self._total = total
        self._seen: set[int] = set()

    async def go(self) -> None:
        if self._total is not None:
            await self._then.hear(ItemExpected(self._total))
        await self.agents.go(self._deliver)
        if self._total is None:
            await self._then.hear(ItemExpected(len(self._seen)))
        elif len(self._seen) < self._total:  # there are fewer than their length said
            for missing in sorted(set(range(self._total)) - self._seen):
                await self._then.hear(ItemDropped((missing,)))
        await self._then.hear(StageClosed())

    async def _deliver(self, result: AgentResult) -> None:
        self._seen.add(result.index)
        item = Item((result.index,), fields_of(result.input, self._text_name))
        self.agents.keep(item.position, result)
        await forward(self._step, self.agents, item, result, self._then)


async def forward(step: Map, agents: StageRunner, item: Item, result: AgentResult, then: FlowNode) -> None:
    if result.error is not None:
        await forward_failure(agents, item, result.error, step.on_failure, then)
    else:
        await then.hear(item.with_fields(**{step.name: result.output}))


def fields_of(value: Any, text_name: str) -> Mapping[str, Any]:
    """What later tasks can name of an input. A plain text has the name that the first task gives it."""
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    return {text_name: value}
