"""Summary of a finished flow, in a few lines of text."""

from collections.abc import Sequence

from ..data.results import StageReport
from ..observe.run_stats import Failures
from ..observe.text.flow_summary import failed_count, failure_lines, model_and_backend, truncated_parts, usage_parts
from ..observe.text.text_format import duration, plural
from .result import FlowResult, Item


def flow_summary_lines(outcome: FlowResult, seconds: float) -> list[str]:
    """One line per stage, one for the total, and one per kind of failure. `seconds`: duration of the flow."""
    stages = outcome.stages.values()
    lines = [_stage_line(stage) for stage in stages]
    if len(lines) > 1:
        lines.append(f"Total: {'; '.join([duration(seconds), *usage_parts(outcome.usage, outcome.cost)])}.")
    for stage in stages:
        failures = Failures()
        for result in stage.results:
            if result.error is not None:
                failures.add(result.error)
        lines += failure_lines(stage.name, failures)
    return [*lines, *_callback_lines(outcome.callback_failures)]


def _stage_line(stage: StageReport) -> str:
    agents, calls = len(stage.results), sum(len(result.tool_calls) for result in stage.results)
    if not agents:
        return f"{stage.name}: no inputs."
    counts = f"{agents - stage.failed:,} of {plural(agents, 'agent')} answered{failed_count(stage.failed)}"
    parts = [f"{counts} in {duration(stage.seconds)}{model_and_backend(stage.model, stage.backend)}"]
    parts += truncated_parts(stage.truncated)
    if stage.skipped:
        parts.append(f"{plural(stage.skipped, 'item')} skipped")
    if calls:
        parts.append(plural(calls, "tool call"))
    if stage.cascade is not None:
        parts.append(str(stage.cascade))
    return f"{stage.name}: {'; '.join([*parts, *usage_parts(stage.usage, stage.cost)])}."


def _callback_lines(failed: Sequence[Item]) -> list[str]:
    by_stage: dict[str, list[Item]] = {}
    for item in failed:
        by_stage.setdefault(item.stage, []).append(item)
    return [
        f"{where} raised for {plural(len(items), 'item')}. Example: {str(items[0].error)[:300]}"
        for where, items in by_stage.items()
    ]
