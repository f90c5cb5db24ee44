"""Forecast of a run from its spec: plans the prompts, runs a canary if requested, and simulates the rest."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..backends.prices import known_price
from ..core.errors import SpecError
from ..core.events import Event, Notice
from ..core.fast_dataclass import dataclass
from ..core.messages import Placement
from ..core.options import Rows
from ..core.options.evaluation import Evaluation
from ..core.options.price import Price
from ..core.protocols import EventSink
from ..core.results import AgentResult
from ..core.spec import BatchSpec
from ..core.validation import at_least
from ..data import read_inputs_async
from ..engine.result_stream import ResultStream
from ..run import runner
from ..run.resource_opener import open_preview
from ..run.resources import RunResources
from ..run.setup import RunSetup
from ..tools import Tool
from .forecast import Behaviour, Forecast


async def forecast_run(spec: BatchSpec, canary: int, events: EventSink | None) -> Forecast:
    """`canary`: real agents to run, spread over the inputs: the first alone, then the others concurrently. With a
    checkpoint, the run reuses their answers. Raises SpecError if the number of inputs is unknown, for programs as
    agents, and for a distributed run."""
    from . import behaviour_of, forecast, speeds_of  # imports the simulator, which a run does not need

    at_least("canary", canary, 0)
    if spec.runtime is not None:
        raise SpecError(
            f"A plan cannot predict the requests of programs ({spec.runtime.name}). Run a few inputs instead."
        )
    if distributed := [name for name in ("store", "cluster") if getattr(spec.distribution, name) is not None]:
        raise SpecError(
            f"A plan forecasts a run in one process, and its canary does not use {distributed[0]}=. Remove "
            f"{distributed[0]}=; with checkpoint_dir=, a run reuses the results of the canary."
        )
    if spec.evaluation.models is not None:
        raise SpecError("A plan forecasts the run of one model: pass model= instead of models=.")
    samples = spec.evaluation.samples
    spec = await _with_one_sample(spec) if samples > 1 else spec
    async with open_preview(RunSetup.validate(_repeated(spec, samples), events)) as preview:
        lane, spec = spec.lane, replace(spec, lane="standard")  # a canary is awaited
        runs = await _canary(spec, preview, canary, events, samples)
        report, traits = preview.report(), preview.server.traits
        scale, lead = preview.chars_per_token, len(preview.plan.layout.lead)
        behaviour = None
        if runs:
            placements = _placements(spec, preview.tools)
            behaviour = behaviour_of(runs, report, chars_per_token=scale, lead=lead, placements=placements)
        speeds = None
        if behaviour is not None:
            speeds = await asyncio.to_thread(speeds_of, runs, behaviour, report)
        else:
            behaviour = Behaviour.assumed(
                has_tools=bool(preview.tools), max_turns=spec.max_turns, max_tokens=spec.sampling.max_tokens
            )
            if _KEPT_FOR_HOUR in str(spec.sampling.extra):
                behaviour = replace(behaviour, written_hour=1.0)
        return await asyncio.to_thread(
            forecast,
            report,
            behaviour,
            traits,
            speeds=speeds,
            price=_price(spec, preview),
            max_inflight=spec.limits.max_inflight,
            lane=lane,
        )


_KEPT_FOR_HOUR = "'1h'"
"""In the extra fields of requests that have their prompts kept in the provider's cache for an hour."""


def _placements(spec: BatchSpec, tools: Sequence[Tool]) -> dict[str, Placement]:
    """Where results of the tools stand, by name; without tools whose results are inline by their own choice."""
    return {
        tool.name: tool.sharing.placement or spec.prefix.shared_results
        for tool in tools
        if tool.is_shared and tool.sharing.placement != "inline"
    }


async def _with_one_sample(spec: BatchSpec) -> BatchSpec:
    """The run of the first sample of each input."""
    inputs = await read_inputs_async(spec.inputs, spec.rows)
    return replace(spec, inputs=inputs, rows=Rows(key=spec.rows.key), evaluation=Evaluation())


def _repeated(spec: BatchSpec, samples: int) -> BatchSpec:
    """A run with as many prompts as there are samples. Samples are equal inputs to a forecast."""
    if samples == 1 or not isinstance(spec.inputs, Sequence):
        return spec
    return replace(spec, inputs=[each for each in spec.inputs for _ in range(samples)], rows=Rows())


async def _canary(
    spec: BatchSpec, preview: RunResources, count: int, events: EventSink | None, samples: int
) -> list[list[AgentResult]]:
    rows = preview.inputs.rows
    if count and rows is None:
        raise SpecError("A canary is chosen from all inputs: pass them as a list.")
    if not count or not rows:
        return []
    inputs = len(rows) // samples
    chosen = _spread(inputs, min(count, inputs))
    canary_spec = replace(spec, backend=preview.server, context=replace(spec.context, streaming=True), on_result=None)
    quiet = _OnlyNotices(events)
    quiet.emit(Notice(f"Running a canary of {len(chosen)} agents ..."))
    return [await _run(canary_spec, only, quiet) for only in (chosen[:1], chosen[1:]) if only]


async def _run(spec: BatchSpec, only: Sequence[int], events: EventSink) -> list[AgentResult]:
    async with ResultStream(partial(runner.run, RunSetup.validate(spec, events), only=only)) as stream:
        return [result async for result in stream]


@dataclass(frozen=True, slots=True)
class _OnlyNotices:
    """Event sink of a canary: forwards notices only."""

    events: EventSink | None

    def emit(self, event: Event) -> None:
        if self.events is not None and isinstance(event, Notice):
            self.events.emit(event)


def _spread(rows: int, count: int) -> list[int]:
    """`count` indices, spread evenly over `rows`."""
    return [(2 * number + 1) * rows // (2 * count) for number in range(count)]


def _price(spec: BatchSpec, preview: RunResources) -> Price | None:
    """None if it is unknown, as for a self-hosted server."""
    return known_price(preview.plan.config.model, preview.server.traits.name, spec.spending.prices)
