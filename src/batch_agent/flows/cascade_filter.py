"""Cascade filter: a proxy score decides most items, a strong model the uncertain ones, with bounds on the errors.

The step waits for all of its items: the choice of those to label must not depend on the order in which they arrive."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from ..core.events import Notice
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentResult
from ..core.run_reports import CascadeReport
from ..scores.cascade import Region, Regions, certify, propose
from .callbacks import Callbacks
from .map_step import select_fields, task_fields
from .nodes import FlowNode, ItemDropped, NodeMessage, StageClosed
from .result import Item
from .stage_runner import StageRunner, forward_failure
from .steps import CascadeFilter, Map

_PILOT_SHARE = 5
"""One label in this many proposes the thresholds; the others test them."""
_QUESTION = "\n\nGive the probability, from 0 to 1, that the answer is yes."


class Likelihood(BaseModel):
    """Answer of a model that serves as the proxy."""

    probability: float = Field(ge=0, le=1, description="The probability that the answer is yes.")


def proxy_stage(step: CascadeFilter) -> Map | None:
    """The stage of a model that serves as the proxy; None if the proxy is a function."""
    proxy = step.cascade.proxy
    if callable(proxy):
        return None
    own = {"model": proxy} if isinstance(proxy, str) else dict(proxy)
    task = step.task + _QUESTION if isinstance(step.task, str) else step.task
    return Map(proxy_name(step.name), task, "keep", {**step.options, **own, "output_schema": Likelihood})


def proxy_name(name: str) -> str:
    return f"{name}_proxy"


class CascadeNode:
    """Filter that asks a strong model only where the proxy score is uncertain."""

    def __init__(
        self, step: CascadeFilter, agents: StageRunner, then: FlowNode, callbacks: Callbacks, events: EventSink | None
    ) -> None:
        self.agents = agents
        self._step = step
        self._then = then
        self._callbacks = callbacks
        self._events = events
        self._fields = task_fields(step.task)
        self._waiting: list[tuple[Item, float | None]] = []
        self._items: list[Item] = []
        self._scores: list[float] = []
        self._asked: dict[int, int] = {}
        """Rows whose answers are pending, by the index of the result."""
        self._labels: dict[int, bool] = {}
        """The strong model's answers, by row. A failed row counts as not accepted."""
        self._failed: set[int] = set()
        self._regions: Regions | None = None
        self._audited: tuple[list[int], list[int]] = ([], [])
        self._random = random.Random(step.cascade.seed)  # noqa: S311 - a sample, not a secret
        self._phases = iter((self._propose, self._audit, self._certify))

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item() if message.ok or message.stage == proxy_name(self._step.name):
                await self._wait(message)
            case StageClosed():
                await self._start()
            case _:
                await self._then.receive(message)

    async def run(self) -> None:
        await self.agents.run(self._deliver)
        await self._then.receive(StageClosed())

    async def _wait(self, item: Item) -> None:
        """Holds an item with its score, or without one if the proxy failed."""
        item, proxy = Item(item.position, item.fields), self._step.cascade.proxy
        name = proxy_name(self._step.name)
        if not callable(proxy):
            self._waiting.append((item, item[name].probability if name in item.fields else None))
            return
        try:
            self._waiting.append((item, _number(proxy(item))))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            where = f"the proxy of {self._step.name!r}"
            await self._then.receive(item.failed(where, self._callbacks.raised(where, item, error)))

    async def _start(self) -> None:
        scored = sorted(((item, score) for item, score in self._waiting if score is not None), key=_position)
        others = sorted(((item, score) for item, score in self._waiting if score is None), key=_position)
        self._waiting = []
        self._items = [item for item, _ in (*scored, *others)]
        self._scores = [score for _, score in scored]
        labels = self._step.cascade.labels
        rows = range(len(scored))
        if len(scored) <= labels:
            self._phases = iter(())
            self._report("fewer items than labels")
            self._ask(range(len(self._items)))
        else:
            self._ask(self._random.sample(rows, max(1, labels // _PILOT_SHARE)))
            self._ask(range(len(scored), len(self._items)))
        await self._continue()

    def _ask(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._asked[self.agents.submit(select_fields(self._items[row], self._fields))] = row

    async def _deliver(self, result: AgentResult) -> None:
        row = self._asked[result.index]
        item, label = self._items[row], bool(result.output) and result.ok
        self.agents.record(item.position, result)
        self._labels[row] = label
        if result.error is not None:
            self._failed.add(row)
            await forward_failure(self.agents, item, result.error, self._step.on_failure, self._then)
        else:
            await self._decide(row, keeps=label)
        del self._asked[result.index]
        await self._continue()

    async def _decide(self, row: int, *, keeps: bool) -> None:
        item = self._items[row]
        answered = item.with_fields(**{self._step.name: True})
        await self._then.receive(answered if keeps else ItemDropped(item.position))

    async def _continue(self) -> None:
        """Begins the next phase once the previous one is answered."""
        while not self._asked:
            phase = next(self._phases, None)
            if phase is None:
                self.agents.close()
                return
            await phase()

    async def _propose(self) -> None:
        """Asks about the rows that are uncertain according to the pilot."""
        self._regions = self._proposal()
        self._ask(self._outside())

    async def _audit(self) -> None:
        """Chooses the regions by all labels so far, and draws the audit sample."""
        self._regions = regions = self._proposal()
        self._audited = self._drawn(regions.low), self._drawn(regions.high)
        self._ask([*self._outside(), *self._audited[0], *self._audited[1]])

    async def _certify(self) -> None:
        """Applies the regions that pass their test. The strong model decides the rows of the others."""
        assert self._regions is not None
        regions, (low, high) = self._regions, self._audited
        cascade = self._step.cascade
        inside = {*regions.low.rows, *regions.high.rows}
        accepted = sum(label for row, label in self._labels.items() if row < len(self._scores) and row not in inside)
        wrong_low = sum(self._labels[row] or row in self._failed for row in low)
        wrong_high = sum(not self._labels[row] for row in high)
        passed = certify(
            regions, wrong_low, wrong_high, accepted=accepted, target=cascade.target, delta=cascade.delta
        )  # fmt: skip
        rejected = self._unlabelled(regions.low) if passed.low else []
        kept = self._unlabelled(regions.high) if passed.high else []
        self._report("" if rejected or kept else self._reason(), rejected, kept)
        for row in rejected:
            await self._decide(row, keeps=False)
        for row in kept:
            await self._decide(row, keeps=True)
        decided = {*rejected, *kept}
        self._ask(row for row in range(len(self._scores)) if row not in self._labels and row not in decided)

    def _proposal(self) -> Regions:
        cascade = self._step.cascade
        labels = cascade.labels - max(1, cascade.labels // _PILOT_SHARE)
        known = {row: label for row, label in self._labels.items() if row < len(self._scores)}
        return propose(self._scores, known, labels=labels, target=cascade.target, delta=cascade.delta)

    def _outside(self) -> list[int]:
        assert self._regions is not None
        inside = {*self._regions.low.rows, *self._regions.high.rows}
        return [row for row in range(len(self._scores)) if row not in self._labels and row not in inside]

    def _drawn(self, region: Region) -> list[int]:
        return self._random.sample(sorted(region.rows), region.audit)

    def _unlabelled(self, region: Region) -> list[int]:
        return sorted(row for row in region.rows if row not in self._labels)

    def _reason(self) -> str:
        if self._failed:
            return f"{len(self._failed):,} of its {len(self._labels):,} labels failed"
        return "the proxy does not tell the items apart well enough"

    def _report(self, reason: str, rejected: Sequence[int] = (), kept: Sequence[int] = ()) -> None:
        rows = len(self._items)
        report = CascadeReport(
            rows=rows,
            asked=rows - len(rejected) - len(kept),
            rejected=len(rejected),
            kept=len(kept),
            low=max((self._scores[row] for row in rejected), default=None),
            high=min((self._scores[row] for row in kept), default=None),
            reason=reason,
        )
        self.agents.cascade = report
        if self._events is not None:
            self._events.emit(Notice(f"{self._step.name}: {report}."))


def _number(score: Any) -> float:
    """Raises ValueError for a score that cannot be ordered."""
    number = float(score)
    if math.isnan(number):
        raise ValueError("it returned a score that is not a number")
    return number


def _position(scored: tuple[Item, Any]) -> tuple[int, ...]:
    return scored[0].position


def cascade_problem(cascade: Any) -> str | None:
    """Describes what is wrong with a cascade; None if it is valid."""
    proxy = cascade.proxy
    if not (callable(proxy) or (isinstance(proxy, str) and proxy) or (isinstance(proxy, Mapping) and proxy)):
        return f"proxy must be a function, the name of a model or the options of a stage; got {proxy!r}"
    if not 0 < cascade.target < 1:
        return f"target must be between 0 and 1; got {cascade.target!r}"
    if not 0 < cascade.delta < 1:
        return f"delta must be between 0 and 1; got {cascade.delta!r}"
    if cascade.labels < _PILOT_SHARE:
        return f"labels must be at least {_PILOT_SHARE}; got {cascade.labels!r}"
    return None
