"""Map and escalate steps, with an agent per item."""

from collections.abc import Iterable, Mapping
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
    """Map or escalate step that receives its items from the previous step.

    An escalate step runs agents only for the items that need one; the others pass."""

    def __init__(self, step: Map | Escalate, agents: StageRunner, then: FlowNode, callbacks: Callbacks) -> None:
        self.agents = agents
        self._step = step
        self._then = then
        self._callbacks = callbacks
        self._fields = task_fields(step.task)
        self._failed_in = step.failed_in if isinstance(step, Escalate) else ()
        self._items: dict[int, Item] = {}

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item() if message.ok or message.stage in self._failed_in:
                passing = self._without_agent(message)
                if passing is not None:
                    await self._then.receive(passing)
                    return
                await self.agents.wait_for_room()
                index = self.agents.submit(select_fields(message, self._fields))
                self._items[index] = Item(message.position, message.fields)
            case StageClosed():
                self.agents.close()
            case _:
                await self._then.receive(message)

    async def run(self) -> None:
        await self.agents.run(self._deliver)
        await self._then.receive(StageClosed())

    def _without_agent(self, item: Item) -> Item | None:
        """The item, if it passes without an agent; None if it needs one."""
        step = self._step
        if isinstance(step, Map) or not item.ok:
            return None
        try:
            is_escalated = step.when(item)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            where = f"escalate({step.name!r})"
            return item.failed(where, self._callbacks.raised(where, item, error))
        return None if is_escalated else item.with_fields(**{step.name: False})

    async def _deliver(self, result: AgentResult) -> None:
        item = self._items.pop(result.index)
        self.agents.record(item.position, result)
        await forward(self._step, self.agents, item, result, self._then)


class MapInputs:
    """Map step at the start of a flow, which reads the flow's inputs."""

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


async def forward(step: Map | Escalate, agents: StageRunner, item: Item, result: AgentResult, then: FlowNode) -> None:
    if result.error is not None:
        await forward_failure(agents, item, result.error, step.on_failure, then)
    elif isinstance(step, Escalate):
        await then.receive(item.with_fields(**{step.of: result.output, step.name: True}))
    else:
        await then.receive(item.with_fields(**{step.name: result.output}))


def fields_of(value: Any, text_name: str) -> Mapping[str, Any]:
    """The fields of an input. Plain text is a single field, named by the first task."""
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    return {text_name: value}


def task_fields(task: str | Fields) -> tuple[str, ...]:
    """The fields that a task uses. The name of a field may contain a dot."""
    return tuple(dict.fromkeys(name for path in template_of(task).fields for name in (path, root_of(path))))


def select_fields(item: Item, names: Iterable[str]) -> dict[str, Any]:
    """The input of an agent: the fields of an item that its task uses."""
    return {name: item.fields[name] for name in names if name in item.fields}
