"""batch-agent run --reduce: a flow of two stages, whose results and whose one answer are both kept."""

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
from ...observe.text.flow_summary import flow_lines_so_far, flow_tool_lines
from ..checkpoint import MAP, REDUCE
from ..options.reduce import ReduceSettings
from ..signals import StoppedBySignal, exit_status, print_lines, run_until_signal
from .plan import compare
from .report import report_lines


def run_reduced(
    options: dict[str, Any], reduce: ReduceSettings, out: Path, progress: Progress, events: EventSinks
) -> int:
    """`options`: of the run whose results are reduced. `events`: who watches, `progress` among them. Raises SpecError,
    BackendError and StoreError."""
    started, folder = time.monotonic(), options["checkpoint_dir"]
    ended = run_until_signal(_flow(options, reduce, out, events))
    seconds, board = time.monotonic() - started, progress.board
    if isinstance(ended, StoppedBySignal):
        print_lines([*flow_lines_so_far(board, seconds), *_resumed(board), f"Results: {out}", *report_lines(folder)])
        return exit_status(ended, folder, any_failed=False)
    outcome, problem = ended
    print_lines([*flow_summary_lines(outcome, seconds), *flow_tool_lines(board), *_resumed(board)])
    print_lines(compare(folder, board.stages[MAP].tally, outcome.stages[MAP].seconds))
    print_lines([f"Results: {out}", *report_lines(folder)])
    status = _finish(outcome, reduce, folder)
    if problem is not None:
        raise problem
    return status


class _Written:
    """Results, written as they come. A flow goes on whatever becomes of them: what went wrong is for its end."""

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
    """As `BatchAgent.run_with_reduce` makes it, but for a reduce that fails: that is a failed agent like any other.
    Also gives why results could not be written."""
    shared = dict(options)
    workers = {name: shared.pop(name) for name in ("task", "tools", "output_schema")}
    with open_results(out, "--out") as file:
        written = _Written(file)
        flow = Flow(shared.pop("inputs"), **shared).map(MAP, **workers, on_result=written)
        return await flow.reduce(REDUCE, **reduce.options).run(events=events), written.error


def _finish(outcome: FlowResult, reduce: ReduceSettings, folder: Path) -> int:
    """The answer is the last thing said, and the only one on the standard output."""
    [item] = outcome.items
    any_failed = outcome.stages[MAP].failed > 0
    if item.error is not None:
        print_lines([f"There is no summary: {item.error}"])
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


def _resumed(board: LiveState) -> list[str]:
    return [f"{board.resumed:,} answers came from the checkpoint, without asking again."] if board.resumed else []
