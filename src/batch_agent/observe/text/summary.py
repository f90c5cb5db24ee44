"""Summary of a run in a few lines."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...core.errors import ErrorKind
from ...core.requests import Usage
from ...core.results import dollars, truncation_note
from ...core.run_reports import Pacing, Scheduling
from ..live.state import LiveState
from ..run_stats import RunStats
from ..tool_counts import ToolCounts
from .prefix import prefix_outcome_line, shared_results_line
from .text_format import duration, plural

_MAX_TOOLS = 5
_MAX_STEERED = 8
_SHOWN_DOLLARS = 0.0001


def summary_lines(state: LiveState, seconds: float, *, is_stopped: bool = False) -> list[str]:
    """Summary of a run that is not a flow. `is_stopped`: whether the run ended before all inputs did."""
    stats = state.run_stats
    lines = [f"{_counts(state, is_stopped)} {duration(seconds)} ({stats.model} on {stats.backend})."]
    if stats.resumed:
        lines.append(f"{plural(stats.resumed, 'answer')} restored from the checkpoint.")
    if stats.truncated:
        lines.append(f"{truncation_note(stats.truncated)}: raise it, or ask for shorter answers.")
    usage = state.stages[""].usage
    if usage.input:
        cached = f", {usage.cached / usage.input:.0%} of the input from the prefix cache" if usage.cached else ""
        lines.append(f"Tokens: {usage.input:,} in, {usage.output:,} out{cached}.")
    if stats.prefix is not None and (outcome := prefix_outcome_line(stats.prefix)) is not None:
        lines.append(outcome)
    lines += _cost(stats, usage)
    if stats.tool_calls:
        lines.append(f"Tool calls: {stats.tool_calls:,}{saved_by_sharing(stats.tool_sources, state.tools)}.")
    lines += failed_tool_lines([stats])
    if stats.agents_with_changes:
        lines.append(
            f"Agents that changed files: {stats.agents_with_changes:,}. The patches are in `changes` of the results."
        )
    if retried := stats.retries.total() - stats.retries[ErrorKind.CAPACITY]:
        lines.append(f"Retried requests: {retried:,}.")
    if stats.scheduling is not None:
        lines += _scheduling(stats.scheduling, stats.done)
    for kind, count, example in stats.failures.groups:
        lines.append(f"Failed, {kind}: {count:,}. Example: {example[:300]}")
    return [*lines, *callback_lines(state), *endpoint_lines(state), *steered_lines(state)]


def _counts(state: LiveState, is_stopped: bool) -> str:
    """The number of agents that answered, and the total. For a stopped run, also the numbers of failed and unfinished
    agents."""
    stats, total = state.run_stats, state.stages[""].total
    if not is_stopped or total == stats.done:
        return f"{stats.ok:,} of {plural(stats.done, 'agent')} answered in"
    if total is None:
        left, of = "the others not finished after", plural(stats.ok, "agent")
    else:
        left, of = f"{total - stats.done:,} not finished after", f"{stats.ok:,} of {plural(total, 'agent')}"
    return ", ".join([f"{of} answered", *([f"{stats.failed:,} failed"] if stats.failed else []), left])


def _cost(stats: RunStats, usage: Usage) -> list[str]:
    """The cost of the answers, including restored ones, and the amount that the budget counts beyond that: requests
    without a known answer, and amounts set aside by a killed process."""
    known = stats.run.cost(usage) if stats.run else None
    if not known:
        return [f"Cost: {dollars(stats.spent)}."] if stats.spent else []
    by_lane = cost_by_lane(stats.run.cost, usage) if stats.run else ""
    return [f"Cost: {'; '.join([dollars(known) + by_lane, *unanswered_parts(stats.spent - known)])}."]


def unanswered_parts(rest: float) -> list[str]:
    """The amount that the budget counts beyond the cost of answers, if it is worth mentioning."""
    if rest < _SHOWN_DOLLARS:
        return []
    return [f"the budget counts {dollars(rest)} more for requests without an answer, which may have cost less"]


def cost_by_lane(cost: Callable[[Usage], float | None], usage: Usage) -> str:
    """Spending in each lane; empty if all requests used the standard lane."""
    if usage.lanes == ("standard",):
        return ""
    return f" ({', '.join(f'{dollars(cost(usage.of_lane(lane)) or 0.0)} in {lane}' for lane in usage.lanes)})"


def callback_lines(state: LiveState) -> list[str]:
    """A line per callback that raised."""
    return [
        f"{where} raised for {plural(count, 'item')}. Example: {example[:300]}"
        for where, (count, example) in state.callback_failures.items()
    ]


def endpoint_lines(state: LiveState) -> list[str]:
    """The numbers of endpoints that joined and left during the run, in one line."""
    changes = state.endpoint_changes
    shown = [f"{changes[change]:,} {change}" for change in ("joined", "left") if changes[change]]
    return [f"Endpoints during the run: {', '.join(shown)}."] if shown else []


def steered_lines(state: LiveState) -> list[str]:
    """The user's changes during the run, in one line."""
    shown, more = state.steered[-_MAX_STEERED:], len(state.steered) - _MAX_STEERED
    return [f"Steered: {'; '.join(shown)}{f' (and {more:,} changes before)' if more > 0 else ''}."] if shown else []


def saved_by_sharing(sources: Mapping[str, int], tools: ToolCounts) -> str:
    """Savings by shared executions; empty if nothing was shared. `sources`: counts of the agents' calls. These add up,
    while tools also count calls of agents that failed or moved to another worker."""
    answered = sources.get("shared", 0) + sources.get("cached", 0)
    if not answered:
        return ""
    executed, saved = sum(sources.values()) - answered, sum(tool.seconds_saved for tool in tools.reports)
    return f", {executed:,} of them executed, {answered:,} shared ({duration(saved)} of tool time saved)"


def failed_tool_lines(stages: Sequence[RunStats]) -> list[str]:
    """Tools with failed calls, most failures first. The agents may have answered anyway."""
    calls: Counter[str] = sum((stats.calls_by_tool for stats in stages), Counter())
    failed: Counter[str] = sum((stats.failed_by_tool for stats in stages), Counter())
    if not failed:
        return []
    failing = failed.most_common()
    named = [f"{name[:60]!r} {count:,} of {calls[name]:,}" for name, count in failing[:_MAX_TOOLS]]
    more = f", and {len(failing) - _MAX_TOOLS:,} more tools" if len(failing) > _MAX_TOOLS else ""
    return [f"Failed tool calls: {', '.join(named)}{more}."]


def _scheduling(how: Scheduling, agents: int) -> list[str]:
    """Lines about limits that held agents back, and about cache misses."""
    lines = []
    if how.limits:
        last = how.limits[-1]
        lines.append(
            f"Limit of requests in flight: {how.inflight:,} at the end (changed after {last.at:.1f} s: {last.reason})."
        )
    lines += pace_lines([how])
    if how.max_residents is not None and how.kv_limit is not None and how.max_residents < agents:
        lost = f"; {how.cache_misses:,} turns missed the cache" if how.cache_misses else ""
        size = f" of {how.kv_tokens:,} tokens" if how.kv_tokens else ""
        lines.append(f"Resident agents in the KV cache{size}: {how.max_residents:,} at most{lost}.")
    if how.keep_warm is not None and how.keep_warm.requests:
        warmth = how.keep_warm
        lines.append(f"Keep-warm requests: {warmth.requests:,} for {warmth.tokens:,} tokens, {warmth.hits:,} hits.")
    return [*lines, *lane_lines([how]), *shared_results_lines([how]), *unavailable_lines([how])]


def lane_lines(reports: Iterable[Scheduling | None]) -> list[str]:
    """One line per run or stage that used another lane than the standard one."""
    found = [str(how.lanes) for how in reports if how is not None and how.lanes is not None]
    return [f"Lanes: {each}." for each in found if each]


def shared_results_lines(reports: Iterable[Scheduling | None]) -> list[str]:
    """One line per run or stage whose agents read the same tool results."""
    found = [how.shared_results for how in reports if how is not None]
    return [shared_results_line(each) for each in found if each is not None]


def pace_lines(reports: Iterable[Scheduling | None]) -> list[str]:
    """One line per per-minute limit that delayed requests. Stages of a flow may share a limit."""
    found = [how.pace for how in reports if how is not None and how.pace is not None]
    return list(dict.fromkeys(pace_line(each) for each in found if each.delayed))


def pace_line(pace: Pacing) -> str:
    return f"Paced at {pace}: {plural(pace.delayed, 'request')} waited for it."


def unavailable_lines(reports: Iterable[Scheduling | None]) -> list[str]:
    """One line per endpoint that was unavailable at the end. Stages of a flow may share endpoints."""
    named = dict.fromkeys(each for how in reports if how is not None for each in how.unavailable)
    return [f"Unavailable endpoint: {each[:300]}" for each in named]
