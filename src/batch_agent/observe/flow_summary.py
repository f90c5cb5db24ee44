"""What a flow came to, in a few lines."""

from collections import Counter
from collections.abc import Iterable

from ..core.flow import FlowResult, StageReport
from ..core.requests import NO_USAGE, Usage
from .progress import duration
from .stages import FlowTally
from .story import tokens
from .tally import Tally


def flow_summary_lines(outcome: FlowResult, seconds: float) -> list[str]:
    """A line for each stage, one for all of them, and one for each kind of failure. `seconds`: what the flow took."""
    stages = outcome.stages.values()
    lines = [_stage_line(stage) for stage in stages]
    if len(lines) > 1:
        lines.append(f"In all: {'; '.join([duration(seconds), *_spent(outcome.usage, outcome.usd)])}.")
    for stage in stages:
        errors = [result.error for result in stage.results if result.error is not None]
        lines += _failure_lines(stage.name, [(error.kind, error.message) for error in errors])
    return lines


def stopped_flow_lines(tally: FlowTally, seconds: float) -> list[str]:
    """The same for a flow that did not come to its end: what each stage had done by then."""
    lines = [_so_far(name, stage, tally.of(name)) for name, stage in tally.stages.items()]
    usage = sum((stage.usage for stage in tally.stages.values()), NO_USAGE)
    lines.append(f"In all: {'; '.join([duration(seconds), *_spent(usage, None)])}.")
    for name, stage in tally.stages.items():
        kinds = [(kind, stage.examples[kind]) for kind in stage.failures.elements()]
        lines += _failure_lines(name, kinds)
    return lines


def _stage_line(stage: StageReport) -> str:
    agents, calls = len(stage.results), sum(len(result.tool_calls) for result in stage.results)
    if not agents:
        return f"{stage.name}: nothing to ask."
    counts = f"{agents - stage.failed:,} of {_many(agents, 'agent')} answered{_failed(stage.failed)}"
    parts = [f"{counts} in {duration(stage.seconds)}{_where(stage.model, stage.backend)}"]
    if stage.skipped:
        parts.append(f"{_many(stage.skipped, 'item')} left the flow")
    if calls:
        parts.append(_many(calls, "tool call"))
    return f"{stage.name}: {'; '.join([*parts, *_spent(stage.usage, stage.usd)])}."


def _so_far(name: str, tally: Tally, of: int | None) -> str:
    done = f"{tally.ok:,} of {_many(of, 'agent')}" if of is not None else f"{tally.ok:,}"
    states = f"{done} answered{_failed(tally.failed)}{_where(tally.model, tally.backend)}"
    return f"{name}: {'; '.join([states, *_spent(tally.usage, None)])}."


def _spent(usage: Usage, usd: float | None) -> list[str]:
    """Nothing where nothing is known."""
    spent = [tokens(usage)] if usage.input or usage.output else []
    return [*spent, f"${usd:,.4f}"] if usd else spent


def _failure_lines(stage: str, failures: Iterable[tuple[str, str]]) -> list[str]:
    """`failures`: kinds and messages."""
    examples: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for kind, message in failures:
        counts[kind] += 1
        examples.setdefault(kind, message)
    return [
        f"{stage} failed, {kind}: {count:,}. For example: {examples[kind][:300]}"
        for kind, count in counts.most_common()
    ]


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _failed(count: int) -> str:
    return f", {count:,} failed" if count else ""


def _where(model: str, backend: str) -> str:
    return f" ({model} on {backend})" if model else ""
