"""Summary of a flow from its events in a few lines of text, also for an interrupted flow."""

from collections import Counter

from ...core.requests import Usage
from ...core.results import dollars, truncation_note
from ..live.state import LiveStage, LiveState
from ..run_stats import Failures
from .agent_trace import tokens
from .summary import (
    callback_lines,
    endpoint_lines,
    failed_tool_lines,
    lane_lines,
    pace_lines,
    saved_by_sharing,
    shared_results_lines,
    steered_lines,
    unanswered_parts,
    unavailable_lines,
)
from .text_format import duration, plural


def partial_flow_summary_lines(state: LiveState, seconds: float) -> list[str]:
    """A line per stage, one for the total, and one per kind of failure. `seconds`: duration of the flow so far."""
    lines = [_partial_stage_line(name, stage) for name, stage in state.stages.items() if name]
    usage = sum((stage.usage for stage in state.stages.values()), state.tools.summaries)
    lines.append(f"Total: {'; '.join([duration(seconds), *usage_parts(usage, None), *_cost_parts(state)])}.")
    lines += flow_tool_lines(state)
    for name, stage in state.stages.items():
        lines += failure_lines(name, stage.stats.failures)
    return [*lines, *callback_lines(state), *endpoint_lines(state), *steered_lines(state)]


def _cost_parts(state: LiveState) -> list[str]:
    """The cost of the answers, including restored ones, and the amount that the budget counts beyond that. Stages share
    a budget, or each backend of a run with `fallback=` has one."""
    stages = [stage for stage in state.stages.values() if stage.stats.run is not None]
    costs = [stage.cost_of(stage.usage) for stage in stages]
    costs += [stage.cost_of(state.tools.summaries) for stage in stages[:1]]
    spent = max([0.0 if state.budget is None else state.budget.cost, *(stage.stats.spent for stage in stages)])
    if None in costs or not (known := sum(cost for cost in costs if cost is not None)):
        return [dollars(spent)] if spent else []
    return [dollars(known), *unanswered_parts(spent - known)]


def flow_tool_lines(state: LiveState) -> list[str]:
    """Lines about shared tool calls, failed tools, the pace and unavailable endpoints."""
    stats = [stage.stats for stage in state.stages.values()]
    sources: Counter[str] = sum((each.tool_sources for each in stats), Counter())
    saved = saved_by_sharing(sources, state.tools)
    shared = [f"Tool calls: {sources.total():,}{saved}."] if saved else []
    reports = [each.scheduling for each in stats]
    limits = [*lane_lines(reports), *pace_lines(reports), *shared_results_lines(reports), *unavailable_lines(reports)]
    return [*shared, *failed_tool_lines(stats), *limits]


def _partial_stage_line(name: str, stage: LiveStage) -> str:
    stats = stage.stats
    done = f"{stats.ok:,} of {plural(stage.total, 'agent')}" if stage.total is not None else f"{stats.ok:,}"
    states = f"{done} answered{failed_count(stats.failed)}{model_and_backend(stats.model, stats.backend)}"
    spent = usage_parts(stage.usage, stage.cost_of(stage.usage))
    return f"{name}: {'; '.join([states, *truncated_parts(stats.truncated), *spent])}."


def truncated_parts(count: int) -> list[str]:
    """The number of truncated answers, if any."""
    return [truncation_note(count)] if count else []


def usage_parts(usage: Usage, cost: float | None) -> list[str]:
    """Tokens and cost, where known."""
    spent = [tokens(usage)] if usage.input or usage.output else []
    return [*spent, dollars(cost)] if cost else spent


def failure_lines(stage: str, failures: Failures) -> list[str]:
    """A line per kind of failure."""
    return [f"{stage} failed, {kind}: {count:,}. Example: {example[:300]}" for kind, count, example in failures.groups]


def failed_count(count: int) -> str:
    return f", {count:,} failed" if count else ""


def model_and_backend(model: str, backend: str) -> str:
    return f" ({model} on {backend})" if model else ""
