"""Map step: an agent per item."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ..core.results import AgentResult
from ..core.task_fields import Fields
from ..plan.field_paths import root_of
from ..plan.template import template_of
from .callbacks import Callbacks
from .nodes import FlowNode, ItemDropped, ItemExpected, NodeMessage, StageClosed
from .result import Item
from .stage_runner import StageRunner, forward_failure
from .steps import Escalate, Map


class MapNode:
    """Map step that receives its items from the step before it."""

    def __init__(self, step: Map, fields: Sequence[str], agents: StageRunner, then: FlowNode) -> None:
        """`fields`: those that the task uses. Others are not part of the agent's input."""
        self.agents = agents
        self._step = step
        self._fields = fields
        self._then = then
        self._items: dict[int, Item] = {}

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item() if message.ok:
                await self.agents.wait_for_room()
                values = {name: message.fields[name] for name in self._fields if name in message.fields}
                self._items[self.agents.submit(values)] = message
            case StageClosed():
                self.agents.close()
            case _:
                await self._then.receive(message)

    async def run(self) -> None:
        await self.agents.run(self._deliver)
        await self._then.receive(StageClosed())

    async def _deliver(self, result: AgentResult) -> None:
        item = self._items.pop(result.index)
        self.agents.record(item.position, result)
        await forward(self._step, self.agents, item, result, self._then)


class EscalateNode:
    """A second agent for the items that need one; the others pass."""

    def __init__(
        self, step: Escalate, fields: Sequence[str], agents: StageRunner, then: FlowNode, callbacks: Callbacks
    ) -> None:
        self.agents = agents
        self._step = step
        self._fields = fields
        self._then = then
        self._callbacks = callbacks
        self._items: dict[int, Item] = {}

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item() if message.ok or message.stage in self._step.failed_in:
                await self._receive_item(message)
            case StageClosed():
                self.agents.close()
            case _:
                await self._then.receive(message)

    async def run(self) -> None:
        await self.agents.run(self._deliver)
        await self._then.receive(StageClosed())

    async def _receive_item(self, item: Item) -> None:
        try:
            is_escalated = self._step.when(item) if item.ok else True
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            where = f"escalate({self._step.name!r})"
            await self._then.receive(item.failed(where, self._callbacks.raised(where, item, error)))
            return
        if not is_escalated:
            await self._then.receive(item.with_fields(**{self._step.name: False}))
            return
        await self.agents.wait_for_room()
        values = {name: item.fields[name] for name in self._fields if name in item.fields}
        self._items[self.agents.submit(values)] = Item(item.position, item.fields)

    async def _deliver(self, result: AgentResult) -> None:
        step, item = self._step, self._items.pop(result.index)
        self.agents.record(item.position, result)
        if result.error is not None:
            await forward_failure(self.agents, item, result.error, step.on_failure, self._then)
        else:
            await self._then.receive(item.with_fields(**{step.of: result.output, step.name: True}))


class MapInputs:
    """Map step at the start of a flow, which reads the inputs of the flow."""

    def __init__(self, step: Map, text_name: str, agents: StageRunner, then: FlowNode, total: int | None) -> None:
        self.agents = agents
        self._step = step
        self._text_name = text_name
        self._then = then
        self._total = total
        self._seen: set[int] = set()

    async def run(self) -> None:
        if self._total is not None:
            await self._then.receive(ItemExpected(self._total))
        await self.agents.run(self._deliver)
        if self._total is None:
            await self._then.receive(ItemExpected(len(self._seen)))
        elif len(self._seen) < self._total:  # fewer than their length
            for missing in sorted(set(range(self._total)) - self._seen):
                await self._then.receive(ItemDropped((missing,)))
        await self._then.receive(StageClosed())

    async def _deliver(self, result: AgentResult) -> None:
        self._seen.add(result.index)
        item = Item((result.index,), fields_of(result.input, self._text_name))
        self.agents.record(item.position, result)
        await forward(self._step, self.agents, item, result, self._then)


async def forward(step: Map, agents: StageRunner, item: Item, result: AgentResult, then: FlowNode) -> None:
    if result.error is not None:
        await forward_failure(agents, item, result.error, step.on_failure, then)
    else:
        await then.receive(item.with_fields(**{step.name: result.output}))


def fields_of(value: Any, text_name: str) -> Mapping[str, Any]:
    """The fields of an input. A plain text is one field, named by the first task."""
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    return {text_name: value}


def task_fields(task: str | Fields) -> tuple[str, ...]:
    """The fields that a task uses; a field's name may contain a dot."""
    return tuple(dict.fromkeys(name for path in template_of(task).fields for name in (path, root_of(path))))
