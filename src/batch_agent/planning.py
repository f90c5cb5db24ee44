"""What a run will be, before it: its prompts, a few of its agents if wanted, and a rehearsal of the rest."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from .backends.prices import known_price
from .core.checks import at_least
from .core.errors import SpecError
from .core.events import Event, Notice
from .core.forecast import Behaviour, Forecast
from .core.interfaces import EventSink
from .core.quick import dataclass
from .core.results import AgentResult
from .core.spec import BatchSpec
from .engine.stream import ResultStream
from .run.runner import Run
from .run.setup import Openings, Preparation, Prepared
from .schedule.budget import Price


async def make_plan(spec: BatchSpec, canary: int, events: EventSink | None) -> Forecast:
    """`canary`: agents that are really run, spread over the inputs: the first alone, then the others at once. With a
    checkpoint their answers count for the run. Raises SpecError for inputs whose number nobody knows."""
    from .forecasting import behaviour_of, forecast, speeds_of  # brings the simulator, which a run does not need

    at_least("canary", canary, 0)
    if spec.runtime is not None:
        raise SpecError(f"A plan cannot tell what the programs of {spec.runtime.name} will ask. Run a few inputs.")
    preparation = Preparation.check(spec, events)
    async with AsyncExitStack() as stack:
        prepared = await preparation.opened(await preparation.lay_out(), Openings([preparation], stack))
        runs = await _canary(spec, prepared, canary, events)
        report, traits = prepared.report, prepared.server.traits
        scale, lead = prepared.chars_per_token, len(prepared.layout.lead)
        behaviour = behaviour_of(runs, report, chars_per_token=scale, lead=lead) if runs else None
        speeds = None
        if behaviour is not None:
            speeds = await asyncio.to_thread(speeds_of, runs, behaviour, report)
        else:
            behaviour = Behaviour.assumed(
                has_tools=bool(prepared.tools), max_turns=spec.max_turns, max_tokens=spec.sampling.max_tokens
            )
        return await asyncio.to_thread(
            forecast,
            report,
            behaviour,
            traits,
            speeds=speeds,
            price=_price(spec, prepared),
            max_inflight=spec.limits.max_inflight,
        )


async def _canary(spec: BatchSpec, prepared: Prepared, count: int, events: EventSink | None) -> list[list[AgentResult]]:
    rows = prepared.inputs.rows
    if count and rows is None:
        raise SpecError("A canary is chosen among all inputs: give them as a list.")
    if not count or not rows:
        return []
    chosen = _spread(len(rows), min(count, len(rows)))
    asked = replace(spec, backend=prepared.server, context=replace(spec.context, streaming=True), on_result=None)
    quiet = _OnlyNotices(events)
    quiet.emit(Notice(f"Running {len(chosen)} agents ahead ..."))
    return [await _run(asked, only, quiet) for only in (chosen[:1], chosen[1:]) if only]


async def _run(spec: BatchSpec, only: Sequence[int], events: EventSink) -> list[AgentResult]:
    async with ResultStream(Run(Preparation.check(spec, events), only).drive) as stream:
        return [result async for result in stream]


@dataclass(frozen=True, slots=True)
class _OnlyNotices:
    """A canary is no run of its own."""

    events: EventSink | None

    def emit(self, event: Event) -> None:
        if self.events is not None and isinstance(event, Notice):
            self.events.emit(event)


def _spread(rows: int, count: int) -> list[int]:
    """So many, evenly over all."""
    return [(2 * number + 1) * rows // (2 * count) for number in range(count)]


def _price(spec: BatchSpec, prepared: Prepared) -> Price | None:
    """None where nobody knows it, as for a server of one's own."""
    return known_price(prepared.plan.rules.model, prepared.server.traits.name, spec.spend.prices)
