"""batch-agent run --reduce: a flow of two stages, which writes the results and the combined answer."""

import sys
import time
from pathlib import Path
from typing import Any

import orjson
from pydantic_core import to_jsonable_python

from ...atomic_file import atomic_write
from ...core.errors import SpecError
from ...core.protocols import EventSinks
from ...core.results import AgentResult
from ...core.safe_text import safe_text
from ...data import ResultWriter, open_results
from ...flows import Flow
from ...flows.result import FlowResult
from ...flows.summary import flow_summary_lines
from ...observe.live.progress import Progress
from ...observe.live.state import LiveState
from ...observe.text.flow_summary import flow_tool_lines, partial_flow_summary_lines
from ..checkpoint import MAP, REDUCE
from ..options.reduce import ReduceSettings
from ..signals import StoppedBySignal, exit_status, print_lines, run_until_signal
from .plan import compare
from .report import report_lines


def run_reduced(
    options: dict[str, Any], reduce: ReduceSettings, out: Path, progress: Progress, events: EventSinks
) -> int:
    """Runs both stages, and returns the exit status. Raises SpecError, BackendError and StoreError.

    `options`: of the map stage. `events`: all event sinks, including `progress`.
    """
    started, folder = time.monotonic(), options["checkpoint_dir"]
    ended = run_until_signal(_flow(options, reduce, out, events))
    seconds, state = time.monotonic() - started, progress.state
    if isinstance(ended, StoppedBySignal):
        print_lines(
            [*partial_flow_summary_lines(state, seconds), *_resumed(state), f"Results: {out}", *report_lines(folder)]
        )
        return exit_status(ended, folder, any_failed=False)
    outcome, problem = ended
    print_lines([*flow_summary_lines(outcome, seconds), *flow_tool_lines(state), *_resumed(state)])
    print_lines(compare(folder, state.stages[MAP].stats, outcome.stages[MAP].seconds))
    print_lines([f"Results: {out}", *report_lines(folder)])
    status = _finish(outcome, reduce, folder)
    if problem is not None:
        raise problem
    return status


class _ResultCallback:
    """Callback that writes each result. The first error is kept for the end: the flow continues without the file."""

    def __init__(self, file: ResultWriter) -> None:
        self._file = file
        self.error: SpecError | None = None

    def __call__(self, result: AgentResult) -> None:
        if self.error is None:
            try:
                self._file.write(result)
            except SpecError as error:
                self.error = error


async def _flow(
    options: dict[str, Any], reduce: ReduceSettings, out: Path, events: EventSinks
) -> tuple[FlowResult, SpecError | None]:
    """The result of the flow, and the error of writing results, if any. Unlike in `BatchAgent.run_with_reduce`, a
    failed reduce counts as a failed agent."""
    shared = dict(options)
    map_options = {name: shared.pop(name) for name in ("task", "tools", "output_schema")}
    with open_results(out, "--out") as file:
        callback = _ResultCallback(file)
        flow = Flow(shared.pop("inputs"), **shared).map(MAP, **map_options, on_result=callback)
        return await flow.reduce(REDUCE, **reduce.options).run(events=events), callback.error


def _finish(outcome: FlowResult, reduce: ReduceSettings, folder: Path) -> int:
    """Writes the summary and returns the exit status. Only the answer goes to standard output, after all messages."""
    [item] = outcome.items
    any_failed = outcome.stages[MAP].failed > 0
    if item.error is not None:
        print_lines([f"The reduce failed: {item.error}"])
        return exit_status(None, folder, any_failed=True)
    text = item[REDUCE] if reduce.is_text else _pretty(item[REDUCE])
    with atomic_write(reduce.summary) as file:
        file.write(f"{text}\n".encode())
    print_lines([f"Summary: {reduce.summary}"])
    status = exit_status(None, folder, any_failed=any_failed)
    print(safe_text(text) if sys.stdout.isatty() else text)
    return status


def _pretty(answer: Any) -> str:
    return orjson.dumps(to_jsonable_python(answer, fallback=str), option=orjson.OPT_INDENT_2).decode()


def _resumed(state: LiveState) -> list[str]:
    return [f"{state.resumed:,} answers restored from the checkpoint."] if state.resumed else []
