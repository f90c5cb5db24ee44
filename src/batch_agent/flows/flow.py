"""Stages in a row, each an agent for every item: what people compose."""

import sys
from typing import Any, Unpack

from ..core.errors import SpecError
from ..core.flow_result import FlowResult, OnFailure
from ..core.options.run_options import StageOptions
from ..core.options.signature import lists_options
from ..core.protocols import EventSinks
from ..core.spec import BatchSpec
from ..core.task_fields import Fields
from ..engine.sync import run_blocking
from ..observe.live.detection import progress_if_interactive
from ..observe.sinks import combine_sinks
from .driver import drive
from .steps import Expand, Filter, FlowStep, GroupBy, Into, Keep, Map, Reduce, Shown


class Flow:
    """`Flow(inputs, backend=...).map("review", "Review {path}: {text}").reduce("report", "Sum up {n} reviews.")`.

    Each item goes to its next step as soon as it is ready; nobody waits for a whole stage. The answer of a stage is a
    field of the item, by the stage's name. Stages may have models and backends of their own, and share slots, the
    ledger of the KV cache, tools and one budget. A flow is never changed: each method gives a longer one."""

    @lists_options(StageOptions)
    def __init__(self, inputs: Any, **options: Unpack[StageOptions]) -> None:
        """`inputs` and `options`: as `BatchAgent.run` takes them; the options are for all stages."""
        if "task" in options:
            raise SpecError("Each stage of a flow has a task of its own: Flow(inputs, ...).map(name, task).")
        BatchSpec.of(task="-", inputs=inputs, **options)
        self._inputs = inputs
        self._options = options
        self._steps: tuple[FlowStep, ...] = ()

    @lists_options(StageOptions, default="...")
    def map(
        self, name: str, task: str | Fields, *, on_failure: OnFailure = "keep", **options: Unpack[StageOptions]
    ) -> "Flow":
        """An agent for each item. `options`: for this stage alone, such as output_schema, tools, model and backend."""
        return self.with_step(Map(name, task, on_failure, options))

    def filter(self, keep: Keep) -> "Flow":
        """Only items for which `keep(item)` is true go on."""
        return self.with_step(Filter(keep))

    def expand(self, name: str, into: Into) -> "Flow":
        """Many items of one: for each value of `into(item)` one with that value as field `name`, and its `index`."""
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
        """One item of all, or of each group: an agent is given the task and what is `shown(item)` of each (by default
        its answers since it was expanded, and what else of it is short; of failures, their error). What does not fit
        one prompt is merged in parts, as soon as they are there. In the task {n} is the number of results, {group} the
        group's key, and {results} where they shall stand, if not at the end."""
        return self.with_step(Reduce(name, task, group_by, shown, on_failure, options))

    async def run(self, *, events: EventSinks = None, progress: bool | None = None) -> FlowResult:
        """Raises as `BatchAgent.run` does. RunStopped also comes of a stage with on_failure='stop'; what was done by
        then is in its `flow`."""
        watched = combine_sinks(
            progress_if_interactive(sys.stderr, progress) if events is None else events,
            self._options.get("checkpoint_dir"),
        )
        return await drive(self._steps, self._inputs, self._options, watched)

    def run_sync(self, *, events: EventSinks = None, progress: bool | None = None) -> FlowResult:
        """`run` for scripts and notebooks."""
        return run_blocking(lambda: self.run(events=events, progress=progress))

    def with_step(self, step: FlowStep) -> "Flow":
        """The flow with one more step."""
        longer = Flow.__new__(Flow)
        longer._inputs, longer._options, longer._steps = self._inputs, self._options, (*self._steps, step)
        return longer
