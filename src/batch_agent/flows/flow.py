"""`Flow`: the public interface for composing and running stages."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from ..core.errors import SpecError
from ..core.options.run_options import StageOptions
from ..core.options.signature import lists_options
from ..core.protocols.event_sink import EventSinks
from ..core.spec import BatchSpec
from ..core.task_fields import Fields, is_object_url
from ..data.inputs import print_notice
from ..engine.sync import run_blocking
from ..lazy_imports import lazy_modules
from ..observe.live.detection import progress_if_interactive
from ..observe.sinks import combine_sinks
from .cascade_filter import proxy_stage
from .driver import drive, work
from .pair_step import SAME
from .result import FlowResult, OnFailure
from .shared_flow import SharedFlow
from .steps import (
    Cascade,
    CascadeFilter,
    Dedupe,
    Escalate,
    Expand,
    Filter,
    FlowStep,
    GroupBy,
    Into,
    Join,
    Keep,
    Map,
    ModelStep,
    Pairing,
    Reduce,
    Shown,
)

with lazy_modules(globals()):
    from ..objects import remote_checkpoint
    from ..observe.text import run_outputs

if TYPE_CHECKING:
    from ..observe.text.run_outputs import RunOutputs


class Flow:
    """`Flow(inputs, backend=...).map("review", "Review {path}: {text}").reduce("report", "Sum up {n} reviews.")`.

    Each item moves to its next step as soon as it is ready, without waiting for the rest of the stage. The answer of a
    stage becomes a field of the item with the name of the stage. Stages may have their own models and backends; they
    share slots, the KV ledger, tools and one budget. A flow is immutable: each method returns a longer one."""

    @lists_options(StageOptions)
    def __init__(self, inputs: Any, **options: Unpack[StageOptions]) -> None:
        """`inputs` and `options`: as for `BatchAgent.run`; the options apply to all stages."""
        if "task" in options:
            raise SpecError("Each stage of a flow has its own task: Flow(inputs, ...).map(name, task).")
        is_remote = is_object_url(options.get("checkpoint_dir"))
        BatchSpec.of(**{"task": "-", "inputs": inputs, **options, **({"checkpoint_dir": None} if is_remote else {})})
        self._inputs = inputs
        self._options = options
        self._steps: tuple[FlowStep, ...] = ()

    @lists_options(StageOptions, default="...")
    def map(
        self, name: str, task: str | Fields, *, on_failure: OnFailure = "keep", **options: Unpack[StageOptions]
    ) -> "Flow":
        """Adds a stage with an agent per item. `options`: options of this stage, such as output_schema, tools, model,
        backend."""
        return self.with_step(Map(name, task, on_failure, options))

    @lists_options(StageOptions, default="...")
    def escalate(
        self,
        *,
        when: Keep,
        failed: bool = True,
        name: str | None = None,
        on_failure: OnFailure = "keep",
        **options: Unpack[StageOptions],
    ) -> "Flow":
        """Adds a stage that repeats the task of the preceding map for the items for which `when(item)` is true.
        `options`: the differences, such as a stronger model; the answer replaces the first one. `failed`: whether to
        run failed items of the map again too. The field `name` (by default MAP_escalated) tells which items were
        escalated."""
        first = next((step for step in reversed(self._steps) if not isinstance(step, Filter | Escalate)), None)
        if not isinstance(first, Map):
            raise SpecError(".escalate(...) repeats the task of a map: it must follow .map(...).")
        before = [step.name for step in self._steps if isinstance(step, Escalate) and step.of == first.name]
        name = name or f"{first.name}_escalated{len(before) + 1 if before else ''}"
        failed_in = (first.name, *before) if failed else ()
        merged = {**first.options, **options}
        return self.with_step(Escalate(name, first.name, when, failed_in, first.task, on_failure, merged))

    @overload
    def filter(self, keep: Keep) -> "Flow": ...
    @overload
    def filter(
        self,
        keep: str,
        task: str | Fields,
        *,
        cascade: Cascade | None = None,
        on_failure: OnFailure = "keep",
        **options: Unpack[StageOptions],
    ) -> "Flow": ...
    @lists_options(StageOptions, default="...")
    def filter(
        self,
        keep: Keep | str,
        task: str | Fields | None = None,
        *,
        cascade: Cascade | None = None,
        on_failure: OnFailure = "keep",
        **options: Any,
    ) -> "Flow":
        """Keeps the items for which `keep(item)` is true or, with a name and a task, for which a model answers the task
        with yes. `cascade`: asks the model only where a cheaper score is uncertain."""
        if not isinstance(keep, str) or task is None:
            if task is not None or cascade is not None or options:
                raise SpecError("A filter by a model needs a name and a task: .filter('relevant', 'Is {text} ...?').")
            return self.with_step(Filter(cast(Keep, keep)))
        if "output_schema" in options:
            raise SpecError(f"filter({keep!r}): the answer is yes or no; omit output_schema=.")
        options = {**options, "output_schema": bool}
        if cascade is None:
            return self.with_step(Map(keep, task, on_failure, options)).with_step(Filter(itemgetter(keep)))
        step = CascadeFilter(keep, task, cascade, on_failure, options)
        proxy = proxy_stage(step) if isinstance(cascade, Cascade) else None
        return (self if proxy is None else self.with_step(proxy)).with_step(step)

    @lists_options(StageOptions, default="...")
    def dedupe(
        self,
        name: str,
        task: str = SAME,
        *,
        on: str | Keep,
        similarity: float = 0.5,
        block: GroupBy | None = None,
        max_pairs: int = 10_000,
        **options: Unpack[StageOptions],
    ) -> "Flow":
        """Keeps one of each group of equal items. `on`: the text to compare, a field or a function. A model is asked
        about pairs ({left} and {right}) whose texts are similar, from 0 to 1 by the tokens that they share, or for
        which `block(item)` has a key in common. The first item of a group stays, with the others in its field `name`.
        More than `max_pairs` pairs stop the flow before any of them is asked about."""
        pairing = Pairing(on, similarity, block, max_pairs)
        return self.with_step(Dedupe(name, task, pairing, {"output_schema": bool, **options}))

    @lists_options(StageOptions, default="...")
    def join(
        self,
        name: str,
        others: Sequence[Any],
        task: str = SAME,
        *,
        on: str | Keep,
        others_on: str | Keep | None = None,
        similarity: float = 0.5,
        block: GroupBy | None = None,
        max_pairs: int = 10_000,
        keep_unmatched: bool = False,
        **options: Unpack[StageOptions],
    ) -> "Flow":
        """Replaces an item by one for each row of `others` that matches it, with the row as field `name`. Items without
        a match are dropped, or kept with None. `others_on`: the text of a row, if it differs from `on`. Other
        parameters are as for `dedupe`."""
        pairing = Pairing(on, similarity, block, max_pairs)
        step = Join(name, task, pairing, others, on if others_on is None else others_on, keep_unmatched)
        return self.with_step(replace(step, options={"output_schema": bool, **options}))

    def expand(self, name: str, into: Into) -> "Flow":
        """Replaces an item by one for each value of `into(item)`, with the value as field `name`, and its `index`."""
        return self.with_step(Expand(name, into))

    @lists_options(StageOptions, default="...")
    def reduce(
        self,
        name: str,
        task: str,
        *,
        group_by: str | GroupBy | None = None,
        shown: Shown | None = None,
        on_failure: OnFailure = "keep",
        **options: Unpack[StageOptions],
    ) -> "Flow":
        """Reduces all items, or each group, to one item. An agent gets the task and `shown(item)` of each item: by
        default its answers since it was expanded and its short fields, or its error if it failed. Results that do not
        fit one prompt are merged in parts, as soon as a part is complete. In the task, {n} is the number of results,
        {group} the key of the group, and {results} the position of the results, if they are not at the end."""
        return self.with_step(Reduce(name, task, group_by, shown, on_failure, options))

    async def run(self, *, events: EventSinks = None, progress: bool | None = None) -> FlowResult:
        """Runs the flow. Raises like `BatchAgent.run`, and RunStopped for a failure in a stage with on_failure='stop'.
        The error's `flow` has the results so far."""
        if is_object_url(self._options.get("checkpoint_dir")):
            async with remote_checkpoint.open_checkpoint_copy(
                str(self._options["checkpoint_dir"]), print_notice
            ) as copy:
                return await self._with_checkpoint(copy).run(events=events, progress=progress)
        shown = progress_if_interactive(sys.stderr, progress if events is None else bool(progress), self._outputs)
        watched = combine_sinks(events, self._options.get("checkpoint_dir"), shown)
        try:
            return await drive(self._steps, self._inputs, self._options, watched)
        except asyncio.CancelledError:
            if shown is not None and shown.state.has_started:
                raise  # it has shown what is kept
            raise asyncio.CancelledError(self._outputs().stop_line("The flow is not finished")) from None

    def run_sync(self, *, events: EventSinks = None, progress: bool | None = None) -> FlowResult:
        """Blocking form of `run`, for scripts and notebooks."""
        return run_blocking(lambda: self.run(events=events, progress=progress))

    async def work(self, *, events: EventSinks = None) -> None:
        """Joins a flow that another process runs with the same steps, options and `store`, as a worker, until it has no
        work left. Does not read the inputs. Raises like `run`."""
        await work(self._steps, self._inputs, self._options, combine_sinks(events))

    def _outputs(self) -> "RunOutputs":
        outs = (step.options.get("out") for step in self._steps if isinstance(step, ModelStep))
        shared = SharedFlow.of(self._steps, self._options)
        store, run_id = (None, "") if shared is None else (shared.distribution.store, shared.run_id)
        out = next((out for out in outs if out is not None), None)
        return run_outputs.RunOutputs(self._options.get("checkpoint_dir"), store, run_id, out)

    def _with_checkpoint(self, folder: Path) -> "Flow":
        same = Flow.__new__(Flow)
        same._inputs, same._steps = self._inputs, self._steps
        same._options = {**self._options, "checkpoint_dir": folder}
        return same

    def with_step(self, step: FlowStep) -> "Flow":
        """A copy of the flow with one more step."""
        longer = Flow.__new__(Flow)
        longer._inputs, longer._options, longer._steps = self._inputs, self._options, (*self._steps, step)
        return longer
