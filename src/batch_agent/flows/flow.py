"""`Flow`: the public interface to compose and run stages."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Unpack

from ..core.errors import SpecError
from ..core.options.run_options import StageOptions
from ..core.options.signature import lists_options
from ..core.protocols import EventSinks
from ..core.spec import BatchSpec
from ..core.task_fields import Fields
from ..engine.sync import run_blocking
from ..observe.live.detection import progress_if_interactive
from ..observe.sinks import combine_sinks
from .driver import drive
from .result import FlowResult, OnFailure
from .steps import Expand, Filter, FlowStep, GroupBy, Into, Keep, Map, Reduce, Shown

if TYPE_CHECKING:
    from ..observe.text.run_outputs import RunOutputs


class Flow:
    """`Flow(inputs, backend=...).map("review", "Review {path}: {text}").reduce("report", "Sum up {n} reviews.")`.

    Each item goes to its next step as soon as it is ready, without waiting for the rest of the stage. The answer of a
    stage is a field of the item, named like the stage. Stages may have their own models and backends, and share slots,
    the KV ledger, tools and one budget. A flow is immutable: each method returns a longer one."""

    @lists_options(StageOptions)
    def __init__(self, inputs: Any, **options: Unpack[StageOptions]) -> None:
        """`inputs` and `options`: as for `BatchAgent.run`; the options apply to all stages."""
        if "task" in options:
            raise SpecError("Each stage of a flow has its own task: Flow(inputs, ...).map(name, task).")
        BatchSpec.of(task="-", inputs=inputs, **options)
        self._inputs = inputs
        self._options = options
        self._steps: tuple[FlowStep, ...] = ()

    @lists_options(StageOptions, default="...")
    def map(
        self, name: str, task: str | Fields, *, on_failure: OnFailure = "keep", **options: Unpack[StageOptions]
    ) -> "Flow":
        """Adds a stage: an agent per item. `options`: of this stage, such as output_schema, tools, model, backend."""
        return self.with_step(Map(name, task, on_failure, options))

    def filter(self, keep: Keep) -> "Flow":
        """Keeps the items for which `keep(item)` is true."""
        return self.with_step(Filter(keep))

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
        """Reduces all items, or each group, to one: an agent gets the task and `shown(item)` of each item (by default
        its answers since it was expanded and its short fields; for a failed item, its error). Results that do not fit
        one prompt are merged in parts, as soon as these are complete. In the task, {n} is the number of results,
        {group} the group's key, and {results} their position, if not at the end."""
        return self.with_step(Reduce(name, task, group_by, shown, on_failure, options))

    async def run(self, *, events: EventSinks = None, progress: bool | None = None) -> FlowResult:
        """Raises like `BatchAgent.run`, and RunStopped for a failure in a stage with on_failure='stop'. The results so
        far are in the error's `flow`."""
        shown = progress_if_interactive(sys.stderr, progress if events is None else bool(progress), self._outputs)
        watched = combine_sinks(events, self._options.get("checkpoint_dir"), shown)
        try:
            return await drive(self._steps, self._inputs, self._options, watched)
        except asyncio.CancelledError:
            if shown is not None and shown.state.has_started:
                raise  # it has shown what is kept
            raise asyncio.CancelledError(self._outputs().stop_line("The flow is not finished")) from None

    def run_sync(self, *, events: EventSinks = None, progress: bool | None = None) -> FlowResult:
        """`run` for scripts and notebooks."""
        return run_blocking(lambda: self.run(events=events, progress=progress))

    def _outputs(self) -> "RunOutputs":
        from ..observe.text.run_outputs import RunOutputs  # only for flows that are shown or stopped

        outs = (step.options.get("out") for step in self._steps if isinstance(step, Map | Reduce))
        return RunOutputs(self._options.get("checkpoint_dir"), out=next((out for out in outs if out is not None), None))

    def with_step(self, step: FlowStep) -> "Flow":
        """A copy of the flow with one more step."""
        longer = Flow.__new__(Flow)
        longer._inputs, longer._options, longer._steps = self._inputs, self._options, (*self._steps, step)
        return longer
