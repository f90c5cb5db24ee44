"""Outputs of a run as lines of text: its results, its report, and what is kept of a stopped run."""

from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TextIO

from ...core.fast_dataclass import dataclass
from ...core.safe_text import public_url, safe_text
from ..live.state import LiveState
from .flow_summary import partial_flow_summary_lines
from .summary import summary_lines
from .text_format import plural

_REPORT = "report.html"
_RUN_AGAIN = "run the same code again."


@dataclass(frozen=True, slots=True)
class RunOutputs:
    """Locations of a run's results and progress. `store`: URL of a Redis server; `run_id`: the run's name there;
    `resume`: how to resume it."""

    checkpoint: str | PathLike[str] | None = None
    store: str | None = None
    run_id: str = ""
    out: str | PathLike[str] | None = None
    resume: str = _RUN_AGAIN

    def print_end(self, stream: TextIO, state: LiveState, seconds: float, error: BaseException | None) -> None:
        """Prints `end_lines`, if the run has started."""
        if state.has_started:
            with suppress(OSError, ValueError):  # the run ends without its terminal
                for line in self.end_lines(state, seconds, error):
                    print(safe_text(line), file=stream, flush=True)

    def end_lines(self, state: LiveState, seconds: float, error: BaseException | None) -> list[str]:
        """Summary of the run or flow, paths of its results and report, and what is kept of a stopped run. `error`: the
        error that ended it early."""
        if state.is_flow:
            lines = partial_flow_summary_lines(state, seconds)
        else:
            lines = summary_lines(state, seconds, is_stopped=error is not None)
        if self.out is not None and Path(self.out).exists():
            lines.append(f"Results: {self.out}")
        if self.checkpoint is not None and (report := Path(self.checkpoint, _REPORT)).exists():
            lines.append(f"Report: {report}")
        return lines if error is None else [*lines, self.stop_line(agents_done(state))]

    def stop_line(self, agents: str, reason: str = "Stopped.") -> str:
        """Why a run was stopped, what is kept of it, and how to resume it. `agents`: a text with the number of finished
        agents."""
        if self.store is not None:
            location = f"on {public_url(self.store)} as run {self.run_id!r}"
        elif self.checkpoint is not None:
            location = f"in {str(self.checkpoint)!r}"
        elif self.out is not None:
            return (
                f"{reason} {agents}; their results are in {str(self.out)!r}, but the next run starts over. With "
                "checkpoint_dir=, it would resume."
            )
        else:
            return f"{reason} {agents}; nothing is kept. With checkpoint_dir=, the next run would resume."
        return f"{reason} {agents}; everything so far is kept {location}. To resume: {self.resume}"


def agents_done(state: LiveState) -> str:
    """The number of finished agents, and the total. The number of agents in a flow is unknown until it ends."""
    if not state.is_flow:
        return count_done(state.run_stats.done, state.stages[""].total)
    return count_done(sum(stage.stats.done for stage in state.stages.values()), None)


def count_done(done: int, total: int | None) -> str:
    """A text like "132 of 300 agents are done". `total`: None if unknown."""
    if total is not None:
        return f"{done:,} of {plural(total, 'agent')} {'is' if total == 1 else 'are'} done"
    return f"{plural(done, 'agent')} {'is' if done == 1 else 'are'} done"
