"""Summary of a flow from its events, in a few lines of text: also of one that was interrupted."""

from collections import Counter

from ...core.requests import Usage
from ..live.state import LiveStage, LiveState
from ..run_stats import Failures
from .agent_trace import tokens
from .formatting import duration, many
from .summary import callback_lines, failed_tool_lines, saved_by_sharing, unavailable_lines


def flow_lines_so_far(board: LiveState, seconds: float) -> list[str]:
    """A line per stage, one for the whole flow, and one per kind of failure. `seconds`: duration of the flow so far."""
    lines = [_stage_line_so_far(name, stage) for name, stage in board.stages.items() if name]
    usage = sum((stage.tally.usage for stage in board.stages.values()), board.tools.summaries)
    usd = board.spent.usd if board.spent is not None else None
    lines.append(f"In all: {'; '.join([duration(seconds), *usage_parts(usage, usd)])}.")
    lines += flow_tool_lines(board)
    for name, stage in board.stages.items():
        lines += failure_lines(name, stage.tally.failures)
    return [*lines, *callback_lines(board)]


def flow_tool_lines(board: LiveState) -> list[str]:
    """Calls that the stages saved by sharing their tools, failed tools and unavailable endpoints."""
    sources: Counter[str] = sum((stage.tally.tool_sources for stage in board.stages.values()), Counter())
    saved = saved_by_sharing(sources, board.tools)
    shared = [f"Tool calls: {sources.total():,}{saved}."] if saved else []
    lost = unavailable_lines(stage.tally.scheduling for stage in board.stages.values())
    return [*shared, *failed_tool_lines(board.tools), *lost]


def _stage_line_so_far(name: str, stage: LiveStage) -> str:
    tally = stage.tally
    done = f"{tally.ok:,} of {many(stage.of, 'agent')}" if stage.of is not None else f"{tally.ok:,}"
    states = f"{done} answered{failed_count(tally.failed)}{model_and_backend(tally.model, tally.backend)}"
    return f"{name}: {'; '.join([states, *usage_parts(tally.usage, None)])}."


def usage_parts(usage: Usage, usd: float | None) -> list[str]:
    """Nothing where nothing is known."""
    spent = [tokens(usage)] if usage.input or usage.output else []
    return [*spent, f"${usd:,.4f}"] if usd else spent


def failure_lines(stage: str, failures: Failures) -> list[str]:
    return [
        f"{stage} failed, {kind}: {count:,}. For example: {example[:300]}" for kind, count, example in failures.groups
    ]


def failed_count(count: int) -> str:
    return f", {count:,} failed" if count else ""


def model_and_backend(model: str, backend: str) -> str:
    return f" ({model} on {backend})" if model else ""
