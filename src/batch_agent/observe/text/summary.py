"""What a run came to, in a few lines."""

from collections.abc import Iterable, Mapping

from ...core.run_reports import Scheduling
from ..live.state import LiveState
from ..tool_counts import ToolCounts
from .formatting import duration, many
from .prefix import outcome_line

_MOST_TOOLS = 5


def summary_lines(board: LiveState, seconds: float) -> list[str]:
    """Of a run that is no flow."""
    tally = board.alone
    lines = [f"{tally.ok} of {tally.done} agents answered in {duration(seconds)} ({tally.model} on {tally.backend})."]
    if tally.resumed:
        lines.append(f"{tally.resumed} answers came from the checkpoint, without asking again.")
    usage = tally.usage
    if usage.input:
        cached = f", {usage.cached / usage.input:.0%} of the input from the prefix cache" if usage.cached else ""
        lines.append(f"Tokens: {usage.input:,} in, {usage.output:,} out{cached}.")
    if tally.prefix is not None and (outcome := outcome_line(tally.prefix)) is not None:
        lines.append(outcome)
    if tally.spent:
        lines.append(f"Cost: ${tally.spent:,.4f}.")
    if tally.tool_calls:
        lines.append(f"Tool calls: {tally.tool_calls:,}{saved_by_sharing(tally.tool_sources, board.tools)}.")
    lines += failed_tool_lines(board.tools)
    if tally.changers:
        lines.append(f"Agents that changed files: {tally.changers:,}. Each result has its patch, in `changes`.")
    if tally.retries:
        lines.append(f"Requests sent again after an error: {tally.retries.total():,}.")
    if tally.scheduling is not None:
        lines += _scheduling(tally.scheduling, tally.done)
    for kind, count, example in tally.failures.groups:
        lines.append(f"Failed, {kind}: {count}. For example: {example[:300]}")
    return [*lines, *callback_lines(board)]


def callback_lines(board: LiveState) -> list[str]:
    """Functions of the user's that raised."""
    return [
        f"{where} raised for {many(count, 'item')}. For example: {example[:300]}"
        for where, (count, example) in board.callbacks.items()
    ]


def saved_by_sharing(sources: Mapping[str, int], tools: ToolCounts) -> str:
    """What one execution for many saved; empty where nothing was shared. `sources`: the calls of all agents, so that
    they add up whatever else the tools did, for agents that failed or went to another worker."""
    answered = sources.get("shared", 0) + sources.get("cached", 0)
    if not answered:
        return ""
    executed, saved = sum(sources.values()) - answered, sum(tool.seconds_saved for tool in tools.used)
    return f", {executed:,} of them executed, {answered:,} shared ({duration(saved)} of tool time saved)"


def failed_tool_lines(tools: ToolCounts) -> list[str]:
    """Tools whose calls failed, those with the most failures first: agents may well have answered without them."""
    failing = sorted((each for each in tools.by_tool.items() if each[1].failed), key=lambda each: -each[1].failed)
    if not failing:
        return []
    named = [f"{name[:60]!r} {count.failed:,} of {count.calls:,}" for name, count in failing[:_MOST_TOOLS]]
    more = f", and {len(failing) - _MOST_TOOLS:,} more tools" if len(failing) > _MOST_TOOLS else ""
    return [f"Tool calls that failed: {', '.join(named)}{more}."]


def _scheduling(how: Scheduling, agents: int) -> list[str]:
    """Only what held agents back, or went wrong."""
    lines = []
    if how.limits:
        last = how.limits[-1]
        lines.append(
            f"Requests in flight: {how.inflight} at the end (last change after {last.at:.1f} s: {last.reason})."
        )
    if how.most_residents is not None and how.kv_limit is not None and how.most_residents < agents:
        lost = f"; {how.cache_misses:,} turns found their context gone" if how.cache_misses else ""
        size = f" of {how.kv_tokens:,} tokens" if how.kv_tokens else ""
        lines.append(f"Agents with a place in the KV cache{size}: {how.most_residents:,} at most{lost}.")
    if how.keep_warm is not None and how.keep_warm.requests:
        warmth = how.keep_warm
        lines.append(
            f"Contexts kept warm: {warmth.requests:,} touches for {warmth.tokens:,} tokens, {warmth.hits:,} hits."
        )
    return [*lines, *unavailable_lines([how])]


def unavailable_lines(reports: Iterable[Scheduling | None]) -> list[str]:
    """Endpoints that were out of service at the end; stages of a flow may share them."""
    named = dict.fromkeys(each for how in reports if how is not None for each in how.unavailable)
    return [f"Endpoint out of service: {each[:300]}" for each in named]
