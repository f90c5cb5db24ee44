"""Rows that all live views show for the state of a run."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from ...core.events import Event, LoadSampled, PrefixReported
from ...core.fast_dataclass import dataclass
from ...core.results import AgentResult, dollars
from ..event_codec import answer_preview
from ..sanitize import sanitize
from ..text.prefix import prefix_notes
from ..text.text_format import duration, per_time, plural, rounded
from ..tool_counts import ToolCount
from .state import LiveStage, LiveState

Tone = Literal["", "good", "bad", "busy", "quiet"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text that is shown whole or not at all."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a label, then its segments, the most important first."""

    label: str
    segments: tuple[Segment, ...]
    weight: int
    """Rows with a higher weight are kept if space is short."""
    fill: float | None = None
    """Fill level of a gauge, from 0 to 1."""


def stage_prefix(event: Event) -> list[str]:
    """Lines about what keeps prompts from sharing a longer prefix, shown once before the first agent."""
    return prefix_notes(event.prefix) if isinstance(event, PrefixReported) and event.prefix.measured is None else []


def title(state: LiveState) -> str:
    """Models and backends."""
    models = {
        f"{stage.stats.model} on {stage.stats.backend}": None for stage in state.stages.values() if stage.stats.run
    }
    return sanitize(", ".join(models))


def clock(state: LiveState, seconds: float) -> list[Segment]:
    left = state.seconds_left
    return [Segment(duration(seconds)), *([] if left is None else [Segment(f"{duration(left)} left", "quiet")])]


def progress(name: str, stage: LiveStage) -> list[Segment]:
    """Progress of a stage. A named stage also shows its remaining time; other runs show it next to the clock."""
    done, total = stage.stats.done, stage.total
    rate = [Segment(per_time(stage.throughput.rate), "quiet")] if stage.throughput.rate else []
    if total is None:
        return [Segment(f"{done:,} done"), *rate]
    share, left = done / total if total else 1.0, stage.seconds_left
    until = [Segment(f"{duration(left)} left", "quiet")] if name and left else []
    return [Segment(f"{done:,} of {total:,}"), Segment(f"{share:.0%}"), *rate, *until]


def rows(state: LiveState) -> Iterator[Row]:
    if state.paused:
        yield Row("paused", (Segment(sanitize(state.paused), "bad"),), 90)
    yield _agents(state)
    for sampled in state.backends.values():
        yield from _capacity(sampled, len(state.backends) > 1)
    yield from _tokens(state)
    yield from _tools(state)
    yield from _workers(state)
    retries: Counter[str] = sum((stage.stats.retries for stage in state.stages.values()), Counter())
    if retries:
        kinds = (Segment(f"{kind} {count:,}", "quiet") for kind, count in retries.most_common())
        problem = [Segment(sanitize(state.first_problem), "quiet")] if state.first_problem else []
        yield Row("retries", (Segment(f"{retries.total():,}", "bad"), *kinds, *problem), 30)
    if state.notice and not state.notice.endswith("..."):  # such notices only say to wait
        yield Row("notice", (Segment(sanitize(state.notice)),), 35)


def errors(state: LiveState) -> Iterator[Row]:
    """Failures by kind, the most frequent ones of each stage first."""
    for name, stage in state.stages.items():
        for kind, count, example in stage.stats.failures.groups:
            where = f"{sanitize(name)} " if name else ""
            yield Row(f"{count:,}", (Segment(f"{where}{kind}", "bad"), Segment(sanitize(example), "quiet")), 20)


def results(state: LiveState) -> Iterator[Row]:
    """Last results, the newest first."""
    for name, result in reversed(state.latest):
        yield _result(name, result)


def _agents(state: LiveState) -> Row:
    stages = state.stages.values()
    not_started = [stage.not_started for stage in stages]
    known = [each for each in not_started if each is not None]
    ok, failed = sum(stage.stats.ok for stage in stages), state.failed
    waiting = sum(stage.agents.waiting for stage in stages)
    generating = sum(stage.agents.generating for stage in stages)
    in_tools = sum(stage.agents.in_tools for stage in stages)
    segments = [
        Segment(f"{generating:,} generating", "busy" if generating else "quiet"),
        *(
            [Segment(f"{in_tools:,} in tools", "busy" if in_tools else "quiet")]
            if in_tools or state.tools.by_tool
            else []
        ),
        Segment(f"{waiting:,} waiting", "" if waiting else "quiet"),
        Segment(f"{failed:,} failed", "bad" if failed else "quiet"),
        Segment(f"{ok:,} answered", "good" if ok else "quiet"),
        Segment(f"{sum(known):,} not started" if known else "total unknown", "quiet"),
    ]
    return Row("agents", tuple(segments), 80)


def _capacity(sampled: LoadSampled, is_named: bool) -> Iterator[Row]:
    name = f"{sanitize(sampled.backend)}: " if is_named else ""
    slots = [Segment(f"{name}{_slots(sampled)}")]
    if sampled.waiting:
        slots.append(Segment(f"{sampled.waiting:,} waiting", "quiet"))
    if sampled.server_running is not None:
        queue = f", {sampled.server_waiting:,} queued" if sampled.server_waiting else ""
        slots.append(Segment(f"server: {sampled.server_running:,} running{queue}", "quiet"))
    yield Row("slots", tuple(slots), 60, sampled.inflight / sampled.limit if sampled.limit else None)
    if sampled.residents is None and sampled.kv_usage is None:
        return
    cache, fill = [], sampled.kv_usage
    if sampled.residents is not None:
        cache.append(Segment(f"{name}{sampled.residents:,} resident agents"))
    if sampled.kv_held is not None and sampled.kv_limit:
        held, limit = rounded(sampled.kv_held), rounded(sampled.kv_limit)
        is_over = sampled.kv_held > sampled.kv_limit  # agents beyond the capacity, while the engine would idle
        cache.append(Segment(f"{held} tokens, {limit} fit" if is_over else f"{held} of {limit} tokens"))
        fill = sampled.kv_held / sampled.kv_limit
    if sampled.kv_usage is not None:
        cache.append(Segment(f"server: {sampled.kv_usage:.0%}", "quiet"))
    yield Row("KV cache", tuple(cache), 40, fill)


def _slots(sampled: LoadSampled) -> str:
    """Requests in flight, and their limit. After the limit is lowered, more may be in flight until some end."""
    if sampled.inflight > sampled.limit:
        return f"{sampled.inflight:,} in flight, limit lowered to {sampled.limit:,}"
    return f"{sampled.inflight:,} of {sampled.limit:,} in use"


def _tokens(state: LiveState) -> Iterator[Row]:
    usage = state.turn_usage
    if not usage.input and not usage.output:
        return
    cached = usage.cached / usage.input if usage.input else 0.0
    segments = [
        Segment(f"{rounded(usage.input)} in"),
        Segment(f"{cached:.0%} cached", "good" if cached >= 0.5 else "" if cached else "quiet"),
        Segment(f"{rounded(usage.output)} out"),
        *([Segment(dollars(cost))] if (cost := state.cost) else []),
        Segment(f"{rounded(state.input_rate.rate)}/s in, {rounded(state.output_rate.rate)}/s out", "quiet"),
    ]
    yield Row("tokens", tuple(segments), 70)


def _tools(state: LiveState) -> Iterator[Row]:
    tools = state.tools
    if not tools.by_tool:
        return
    total, by_tool = tools.total, sorted(tools.by_tool.items(), key=lambda item: item[1].calls, reverse=True)
    yield Row("tool calls", tuple(_calls(total)), 50)
    if len(by_tool) > 1 or total.failed:
        for name, count in by_tool:
            took = Segment(f"{count.mean_seconds:.2f} s mean", "quiet")
            yield Row("", (Segment(sanitize(name, 40)), *_calls(count), took), 10)


def _calls(count: ToolCount) -> Iterator[Segment]:
    sources = count.sources
    shared = sources["shared"] + sources["cached"]
    yield Segment(f"{count.calls:,}")
    if shared:
        yield Segment(f"{shared / count.calls:.0%} reused", "good")
    yield Segment(f"{sources['executed']:,} executed")
    if count.failed:
        yield Segment(f"{count.failed:,} failed", "bad")
    for source, calls in sources.items():
        if calls and source != "executed":
            yield Segment(f"{calls:,} {source}", "quiet")


def _workers(state: LiveState) -> Iterator[Row]:
    """Turns by worker, if there are several."""
    if not state.turns.keys() - {""}:
        return
    turns = (
        Segment(f"{sanitize(name, 40) or 'this process'} {plural(count, 'turn')}", "quiet")
        for name, count in state.turns.most_common()
    )
    yield Row("workers", (Segment(f"{len(state.turns):,}"), *turns), 15)


def _result(name: str, result: AgentResult) -> Row:
    where = f"{sanitize(name)} " if name else ""
    took = Segment(f"{duration(result.timing.total):>4}", "quiet")
    if result.error is not None:
        return Row(
            f"{where}{result.index:,}", (Segment("failed", "bad"), took, Segment(sanitize(str(result.error)), "bad")), 5
        )
    return Row(
        f"{where}{result.index:,}", (Segment("answered", "good"), took, Segment(sanitize(answer_preview(result)))), 5
    )
