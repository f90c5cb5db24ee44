"""What stages that ask a model have in common: their inputs, their results, and what becomes of failures."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from .. import aio
from ..backends.prices import known_price
from ..channel import Channel
from ..core.events import Event, ItemQueued, StageEvent
from ..core.fast_dataclass import dataclass
from ..core.protocols import EventSink
from ..core.results import AgentError, AgentResult
from ..core.run_failure import RunStopped
from ..data.results import Results, StageReport
from ..run.resources import RunResources
from ..run.runner import execute
from .callbacks import item_position
from .item_order import Position
from .nodes import FlowNode, ItemDropped
from .result import Item, OnFailure


@dataclass(frozen=True, slots=True)
class StageEvents:
    """Says of everything that happens in a stage which one it is."""

    stage: str
    events: EventSink

    def emit(self, event: Event) -> None:
        self.events.emit(StageEvent(self.stage, event))


class StageRunner:
    """The agents of one stage, and what they did."""

    def __init__(self, name: str, feed: Channel[Any] | None, events: EventSink | None) -> None:
        """`feed`: None for a stage that reads the inputs of the flow itself."""
        self.name = name
        self.skipped = 0
        self._feed = feed
        self._events = events
        self.resources: RunResources | None = None
        """Set once the stages are open."""
        self._put = 0
        self._results: list[tuple[Position, AgentResult]] = []
        self._began: float | None = None
        self._ended = 0.0

    def ask(self, value: Any) -> int:
        """Puts one in line; the number by which its result will be known."""
        assert self._feed is not None
        if self._events is not None:
            self._events.emit(ItemQueued())
        self._begin()
        self._feed.put(value)
        number, self._put = self._put, self._put + 1
        return number

    async def room(self) -> None:
        if self._feed is not None:
            await self._feed.room()

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    async def go(self, deliver: Callable[[AgentResult], Awaitable[None]]) -> None:
        if self._feed is None:
            self._begin()
        assert self.resources is not None
        await execute(self.resources, deliver)

    def keep(self, position: Position, result: AgentResult) -> None:
        """For the report."""
        self._results.append((position, result))
        self._ended = aio.now()

    def report(self) -> StageReport:
        """So far."""
        ordered = [result for _, result in sorted(self._results, key=lambda kept: (kept[0], kept[1].index))]
        if self._feed is not None:
            ordered = [replace(result, index=index) for index, result in enumerate(ordered)]
        if (resources := self.resources) is None:
            return StageReport(self.name)
        traits, rules = resources.server.traits, resources.plan.rules
        report = StageReport(
            self.name,
            traits.name,
            rules.model,
            Results(ordered, resources.gate.report(), resources.measured_report),
            self.skipped,
            seconds=max(0.0, self._ended - self._began) if self._began is not None else 0.0,
        )
        price = known_price(rules.model, traits.name, resources.setup.spec.spend.prices)
        return report if price is None else replace(report, usd=price.of(report.usage))

    def _begin(self) -> None:
        if self._began is None:
            self._began = aio.now()


async def forward_failure(
    agents: StageRunner, item: Item, error: AgentError, policy: OnFailure, then: FlowNode
) -> None:
    """Raises RunStopped where that is the policy."""
    if policy == "stop":
        raise RunStopped(
            error.kind,
            f"Stage {agents.name!r} must not fail (on_failure='stop'), and did for item {item_position(item)}: {error}",
        )
    if policy == "skip":
        agents.skipped += 1
        await then.hear(ItemDropped(item.position))
    else:
        await then.hear(item.failed(agents.name, error))
