"""Forecast of a run from its spec: plans the prompts, runs a canary if requested, and simulates the rest."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from ..backends.prices import known_price
from ..cluster.coordinator_address import coordinator_of
from ..core.errors import SpecError
from ..core.events import Event, Notice
from ..core.fast_dataclass import dataclass
from ..core.images import Image, ImageRef
from ..core.images.token_estimate import estimated_tokens
from ..core.messages import Placement
from ..core.options import Rows
from ..core.options.evaluation import Evaluation
from ..core.options.price import Price
from ..core.protocols.backend import Traits
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentResult
from ..core.run_reports import PrefixReport
from ..core.spec import BatchSpec
from ..core.validation import at_least
from ..data import read_inputs_async
from ..engine.result_stream import ResultStream
from ..lazy_imports import lazy_modules
from ..media.image_files import identify
from ..plan.template import MARK_CHARS, Template
from ..run import runner
from ..run.resource_opener import open_preview
from ..run.resources import RunResources
from ..run.setup import RunSetup
from ..tools import Tool
from .forecast import Behaviour, Forecast

with lazy_modules(globals()):
    from .. import forecasting


async def forecast_run(spec: BatchSpec, canary: int, events: EventSink | None) -> Forecast:
    """Forecasts a run. `canary`: number of real agents to run, spread over the inputs: the first one alone, then the
    others concurrently. With a checkpoint or a store, the run reuses their answers. A distributed run is forecast as
    one in a single process: it is limited by the server, whose limits all workers share. Raises SpecError if the number
    of inputs is unknown, and for programs as agents."""
    at_least("canary", canary, 0)
    if spec.runtime is not None:
        raise SpecError(
            f"A plan cannot predict the requests of programs ({spec.runtime.name}). Run a few inputs instead."
        )
    if spec.evaluation.models is not None:
        raise SpecError("A plan forecasts the run of one model: pass model= instead of models=.")
    samples = spec.evaluation.samples
    spec = replace(spec, distribution=replace(spec.distribution, cluster=None, workers=None))
    spec = await _with_one_sample(spec) if samples > 1 else spec
    async with open_preview(RunSetup.validate(_repeated(spec, samples), events)) as preview:
        lane, spec = spec.lane, replace(spec, lane="standard")  # a canary is awaited
        runs = await _canary(spec, preview, canary, events, samples)
        traits = preview.server.traits
        images = ImageTokens(traits, preview.chars_per_token)
        shown = await asyncio.to_thread(images.of_inputs, preview.plan.layout.template, preview.inputs.known)
        report = with_images(preview.report(), shown)
        scale, lead = preview.chars_per_token, len(preview.plan.layout.lead)
        behaviour = None
        if runs:
            placements = _placements(spec, preview.tools)
            behaviour = forecasting.behaviour_of(
                runs, report, chars_per_token=scale, lead=lead, placements=placements, image_tokens=images.of
            )
        speeds = None
        if behaviour is not None:
            speeds = await asyncio.to_thread(forecasting.speeds_of, runs, behaviour, report)
        else:
            behaviour = Behaviour.assumed(
                has_tools=bool(preview.tools), max_turns=spec.max_turns, max_tokens=spec.sampling.max_tokens
            )
            if _KEPT_FOR_HOUR in str(spec.sampling.extra):
                behaviour = replace(behaviour, written_hour=1.0)
        found = await asyncio.to_thread(
            forecasting.forecast,
            report,
            behaviour,
            traits,
            speeds=speeds,
            price=_price(spec, preview),
            max_inflight=spec.limits.max_inflight,
            lane=lane,
        )
        return replace(found, basis=(*found.basis, *image_basis(shown, canary=bool(runs)))) if shown else found


_KEPT_FOR_HOUR = "'1h'"
"""Marks the extra fields of requests whose prompts are kept in the provider's cache for an hour."""


def _placements(spec: BatchSpec, tools: Sequence[Tool]) -> dict[str, Placement]:
    """Placement of each tool's results, by name, without tools that choose inline themselves."""
    return {
        tool.name: tool.sharing.placement or spec.prefix.shared_results
        for tool in tools
        if tool.is_shared and tool.sharing.placement != "inline"
    }


async def _with_one_sample(spec: BatchSpec) -> BatchSpec:
    """The run of the first sample of each input."""
    inputs = await read_inputs_async(spec.inputs, spec.rows)
    return replace(spec, inputs=inputs, rows=spec.rows.of_read_inputs(), evaluation=Evaluation())


def _repeated(spec: BatchSpec, samples: int) -> BatchSpec:
    """A run with as many prompts as samples. To a forecast, samples are equal inputs."""
    if samples == 1 or not isinstance(spec.inputs, Sequence):
        return spec
    inputs = [each for each in spec.inputs for _ in range(samples)]
    return replace(spec, inputs=inputs, rows=Rows(images=spec.rows.images))


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
    """Runs inputs in this process, even for a distributed run."""
    run = partial(runner.run, RunSetup.validate(spec, events), only=only, coordinator=coordinator_of(spec))
    async with ResultStream(run) as stream:
        return [result async for result in stream]


@dataclass(frozen=True, slots=True)
class _OnlyNotices:
    """Event sink of a canary, which forwards only notices."""

    events: EventSink | None

    def emit(self, event: Event) -> None:
        if self.events is not None and isinstance(event, Notice):
            self.events.emit(event)


def _spread(rows: int, count: int) -> list[int]:
    """`count` indices, spread evenly over `rows`."""
    return [(2 * number + 1) * rows // (2 * count) for number in range(count)]


def _price(spec: BatchSpec, preview: RunResources) -> Price | None:
    """The price; None if it is unknown, as for a self-hosted server."""
    return known_price(preview.plan.config.model, preview.server.traits.name, spec.spending.prices)


_MAX_INPUTS = 200
"""Maximum number of inputs whose images are read, spread over all inputs."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Counts the tokens of images for the model of a server."""

    traits: Traits
    chars_per_token: float = 4.0

    def of(self, image: ImageRef) -> int:
        return estimated_tokens(image, self.traits.model, self.traits.name)

    def of_inputs(self, template: Template, rows: Sequence[Any]) -> float:
        """Mean image tokens of an input, beyond those of the marks in its text. Blocks, because files are read."""
        step = max(1, len(rows) // _MAX_INPUTS)
        chosen = rows[::step][:_MAX_INPUTS]
        return fmean(self._of_input(template, row) for row in chosen) if chosen else 0.0

    def _of_input(self, template: Template, row: Any) -> float:
        try:
            return sum(map(self._beyond_mark, template.images(row).values()))
        except ValueError:  # the input gets no agent
            return 0.0

    def _beyond_mark(self, image: Image) -> float:
        return self.of(identify(image)) - MARK_CHARS / self.chars_per_token


def with_images(report: PrefixReport, tokens: float) -> PrefixReport:
    """The report with this many image tokens per prompt, which are assumed not to be shared."""
    if not tokens or not report.prompt_tokens:
        return report
    longer = report.prompt_tokens + round(tokens)
    predicted = None if report.predicted is None else report.predicted * report.prompt_tokens / longer
    return replace(report, prompt_tokens=longer, predicted=predicted)


def image_basis(tokens: float, *, canary: bool) -> tuple[str, ...]:
    """Assumptions of the forecast on images, for the user."""
    corrected = ", corrected by what the server counted for the canary" if canary else ""
    return (f"Images of an input have about {tokens:,.0f} tokens, by their sizes and the model's formula{corrected}.",)
