"""What a flow came to, in a few lines."""

from collections import Counter
from collections.abc import Sequence

from ...core.flow_result import FlowResult, Item, StageReport
from ...core.requests import Usage
from ..live.state import LiveStage, LiveState
from ..run_stats import Failures
from .agent_trace import tokens
from .formatting import duration, many
from .summary import callback_lines, failed_tool_lines, saved_by_sharing, unavailable_lines


def flow_summary_lines(outcome: FlowResult, seconds: float) -> list[str]:
    """A line for each stage, one for all of them, and one for each kind of failure. `seconds`: what the flow took."""
    stages = outcome.stages.values()
    lines = [_stage_line(stage) for stage in stages]
    if len(lines) > 1:
        lines.append(f"In all: {'; '.join([duration(seconds), *_spent(outcome.usage, outcome.usd)])}.")
    for stage in stages:
        failures = Failures()
        for result in stage.results:
            if result.error is not None:
                failures.add(result.error)
        lines += _failure_lines(stage.name, failures)
    return [*lines, *_callback_lines(outcome.callback_failures)]


def flow_lines_so_far(board: LiveState, seconds: float) -> list[str]:
    """The same, told from what was seen of it: also of a flow that did not come to its end."""
    lines = [_so_far(name, stage) for name, stage in board.stages.items() if name]
    usage = sum((stage.tally.usage for stage in board.stages.values()), board.tools.summaries)
    usd = board.spent.usd if board.spent is not None else None
    lines.append(f"In all: {'; '.join([duration(seconds), *_spent(usage, usd)])}.")
    lines += flow_tool_lines(board)
    for name, stage in board.stages.items():
        lines += _failure_lines(name, stage.tally.failures)
    return [*lines, *callback_lines(board)]


def flow_tool_lines(board: LiveState) -> list[str]:
    """What the stages saved by sharing their tools, and which tools failed or endpoints were lost."""
    sources: Counter[str] = sum((stage.tally.tool_sources for stage in board.stages.values()), Counter())
    saved = saved_by_sharing(sources, board.tools)
    shared = [f"Tool calls: {sources.total():,}{saved}."] if saved else []
    lost = unavailable_lines(stage.tally.scheduling for stage in board.stages.values())
    return [*shared, *failed_tool_lines(board.tools), *lost]


def _stage_line(stage: StageReport) -> str:
    agents, calls = len(stage.results), sum(len(result.tool_calls) for result in stage.results)
    if not agents:
        return f"{stage.name}: nothing to ask."
    counts = f"{agents - stage.failed:,} of {many(agents, 'agent')} answered{_failed(stage.failed)}"
    parts = [f"{counts} in {duration(stage.seconds)}{_where(stage.model, stage.backend)}"]
    if stage.skipped:
        parts.append(f"{many(stage.skipped, 'item')} left the flow")
    if calls:
        parts.append(many(calls, "tool call"))
    return f"{stage.name}: {'; '.join([*parts, *_spent(stage.usage, stage.usd)])}."


def _so_far(name: str, stage: LiveStage) -> str:
    tally = stage.tally
    done = f"{tally.ok:,} of {many(stage.of, 'agent')}" if stage.of is not None else f"{tally.ok:,}"
    states = f"{done} answered{_failed(tally.failed)}{_where(tally.model, tally.backend)}"
    return f"{name}: {'; '.join([states, *_spent(tally.usage, None)])}."


def _spent(usage: Usage, usd: float | None) -> list[str]:
    """Nothing where nothing is known."""
    spent = [tokens(usage)] if usage.input or usage.output else []
    return [*spent, f"${usd:,.4f}"] if usd else spent


def _failure_lines(stage: str, failures: Failures) -> list[str]:
    return [
        f"{stage} failed, {kind}: {count:,}. For example: {example[:300]}" for kind, count, example in failures.groups
    ]


def _callback_lines(failed: Sequence[Item]) -> list[str]:
    by_place: dict[str, list[Item]] = {}
    for item in failed:
        by_place.setdefault(item.stage, []).append(item)
    return [
        f"{where} raised for {many(len(items), 'item')}. For example: {str(items[0].error)[:300]}"
        for where, items in by_place.items()
    ]


def _failed(count: int) -> str:
    return f", {count:,} failed" if count else ""


def _where(model: str, backend: str) -> str:
    return f" ({model} on {backend})" if model else ""
