"""Runner of one stage's agents, with its inputs, results and treatment of failures."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from .. import aio
from ..backends.prices import known_price
from ..channel import Channel
from ..core.events import ItemQueued
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentError, AgentResult
from ..core.run_failure import RunStopped
from ..core.run_reports import CascadeReport
from ..data.results import Results, StageReport
from ..run.resources import RunResources
from ..run.runner import execute
from .callbacks import item_position
from .item_order import Position
from .nodes import FlowNode, ItemDropped
from .result import Item, OnFailure


class StageRunner:
    """The agents of one stage, and their results."""

    def __init__(
        self, name: str, feed: Channel[Any] | None, events: EventSink | None, *, runs_agents: bool = True
    ) -> None:
        """`feed`: channel of the stage's inputs; None for a stage that reads the inputs of the flow. `runs_agents`: as
        for `execute`."""
        self.name = name
        self._runs_agents = runs_agents
        self.skipped = 0
        self.cascade: CascadeReport | None = None
        self._feed = feed
        self._events = events
        self.resources: RunResources | None = None
        """Set once the stages are open."""
        self._put = 0
        self._results: list[tuple[Position, AgentResult]] = []
        self._began: float | None = None
        self._ended = 0.0

    def submit(self, value: Any) -> int:
        """Queues an input and returns the index of its result."""
        assert self._feed is not None
        if self._events is not None:
            self._events.emit(ItemQueued())
        self._begin()
        self._feed.put(value)
        number, self._put = self._put, self._put + 1
        return number

    async def wait_for_room(self) -> None:
        if self._feed is not None:
            await self._feed.wait_for_room()

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    async def run(self, deliver: Callable[[AgentResult], Awaitable[None]]) -> None:
        if self._feed is None:
            self._begin()
        assert self.resources is not None
        await execute(self.resources, deliver, runs_agents=self._runs_agents)

    def record(self, position: Position, result: AgentResult) -> None:
        """Adds a result to the report."""
        self._results.append((position, result))
        self._ended = aio.now()

    def report(self) -> StageReport:
        """The report on the results so far."""
        ordered = [result for _, result in sorted(self._results, key=lambda recorded: (recorded[0], recorded[1].index))]
        if self._feed is not None:
            ordered = [replace(result, index=index) for index, result in enumerate(ordered)]
        if (resources := self.resources) is None:
            return StageReport(self.name)
        traits, config = resources.server.traits, resources.plan.config
        report = StageReport(
            self.name,
            traits.name,
            config.model,
            Results(ordered, resources.admission.report(), resources.measured_report),
            self.skipped,
            seconds=max(0.0, self._ended - self._began) if self._began is not None else 0.0,
            cascade=self.cascade,
        )
        price = known_price(config.model, traits.name, resources.setup.spec.spending.prices)
        return report if price is None else replace(report, cost=price.of(report.usage))

    def _begin(self) -> None:
        if self._began is None:
            self._began = aio.now()


async def forward_failure(
    agents: StageRunner, item: Item, error: AgentError, policy: OnFailure, then: FlowNode
) -> None:
    """Applies `on_failure` to an item. Raises RunStopped if it is 'stop'."""
    if policy == "stop":
        raise RunStopped(
            error.kind,
            f"Stage {agents.name!r} failed for item {item_position(item)} (on_failure='stop'): {error}",
        )
    if policy == "skip":
        agents.skipped += 1
        await then.receive(ItemDropped(item.position))
    else:
        await then.receive(item.failed(agents.name, error))
