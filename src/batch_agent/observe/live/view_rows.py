"""What is said of a board, in the words that all views share."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from ...core.events import Event, LoadSampled, PrefixReported
from ...core.fast_dataclass import dataclass
from ...core.results import AgentResult
from ..event_codec import said
from ..sanitize import sanitize
from ..text.formatting import dollars, duration, many, per_time, rounded
from ..text.prefix import prefix_lines
from ..tool_counts import ToolCount
from .state import LiveStage, LiveState

Tone = Literal["", "good", "bad", "busy", "quiet"]


@dataclass(frozen=True, slots=True)
class Bit:
    """A few words that stand or fall together."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what it is about, then its bits, the more important first."""

    label: str
    bits: tuple[Bit, ...]
    weight: int
    """Rows with more of it stay where there is little room."""
    full: float | None = None
    """How full something is, from 0 to 1."""


def stage_prefix(event: Event) -> list[str]:
    """What is said once, before the first agent of a run."""
    return prefix_lines(event.prefix) if isinstance(event, PrefixReported) and event.prefix.measured is None else []


def title(board: LiveState) -> str:
    """Who is asked."""
    asked = {
        f"{stage.tally.model} on {stage.tally.backend}": None for stage in board.stages.values() if stage.tally.run
    }
    return sanitize(", ".join(asked))


def clock(board: LiveState, seconds: float) -> list[Bit]:
    left = board.seconds_left
    return [Bit(duration(seconds)), *([] if left is None else [Bit(f"{duration(left)} left", "quiet")])]


def progress(name: str, stage: LiveStage) -> list[Bit]:
    """How far a stage is; with a name also when it will be done, which is said of a run on its own by the clock."""
    done, of = stage.tally.done, stage.of
    pace = [Bit(per_time(stage.pace.rate), "quiet")] if stage.pace.rate else []
    if of is None:
        return [Bit(f"{done:,} done"), *pace]
    share, left = done / of if of else 1.0, stage.seconds_left
    until = [Bit(f"{duration(left)} left", "quiet")] if name and left else []
    return [Bit(f"{done:,} of {of:,}"), Bit(f"{share:.0%}"), *pace, *until]


def rows(board: LiveState) -> Iterator[Row]:
    if board.paused:
        yield Row("paused", (Bit(sanitize(board.paused), "bad"),), 90)
    yield _agents(board)
    for sampled in board.backends.values():
        yield from _room(sampled, len(board.backends) > 1)
    yield from _tokens(board)
    yield from _tools(board)
    yield from _workers(board)
    retries: Counter[str] = sum((stage.tally.retries for stage in board.stages.values()), Counter())
    if retries:
        kinds = (Bit(f"{kind} {count:,}", "quiet") for kind, count in retries.most_common())
        yield Row("sent again", (Bit(f"{retries.total():,}", "bad"), *kinds), 30)
    if board.notice and not board.notice.endswith("..."):  # what only says that one has to wait is over by now
        yield Row("notice", (Bit(sanitize(board.notice)),), 35)


def errors(board: LiveState) -> Iterator[Row]:
    """By their cause, the most frequent of a stage first."""
    for name, stage in board.stages.items():
        for kind, count, example in stage.tally.failures.groups:
            where = f"{sanitize(name)} " if name else ""
            yield Row(f"{count:,}", (Bit(f"{where}{kind}", "bad"), Bit(sanitize(example), "quiet")), 20)


def results(board: LiveState) -> Iterator[Row]:
    """The newest first."""
    for name, result in reversed(board.latest):
        yield _result(name, result)


def _agents(board: LiveState) -> Row:
    stages = board.stages.values()
    to_come = [stage.to_come for stage in stages]
    known = [each for each in to_come if each is not None]
    ok, failed = sum(stage.tally.ok for stage in stages), board.failed
    waiting = sum(stage.agents.waiting for stage in stages)
    generating = sum(stage.agents.generating for stage in stages)
    in_tools = sum(stage.agents.in_tools for stage in stages)
    bits = [
        Bit(f"{generating:,} generating", "busy" if generating else "quiet"),
        *([Bit(f"{in_tools:,} in tools", "busy" if in_tools else "quiet")] if in_tools or board.tools.by_tool else []),
        Bit(f"{waiting:,} waiting", "" if waiting else "quiet"),
        Bit(f"{failed:,} failed", "bad" if failed else "quiet"),
        Bit(f"{ok:,} answered", "good" if ok else "quiet"),
        Bit(f"{sum(known):,} to come" if known else "more to come", "quiet"),
    ]
    return Row("agents", tuple(bits), 80)


def _room(sampled: LoadSampled, is_named: bool) -> Iterator[Row]:
    name = f"{sanitize(sampled.backend)}: " if is_named else ""
    slots = [Bit(f"{name}{sampled.inflight:,} of {sampled.limit:,} in use")]
    if sampled.waiting:
        slots.append(Bit(f"{sampled.waiting:,} waiting for one", "quiet"))
    if sampled.server_running is not None:
        queue = f", queues {sampled.server_waiting:,}" if sampled.server_waiting else ""
        slots.append(Bit(f"server runs {sampled.server_running:,}{queue}", "quiet"))
    yield Row("slots", tuple(slots), 60, sampled.inflight / sampled.limit if sampled.limit else None)
    if sampled.residents is None and sampled.kv_usage is None:
        return
    cache, full = [], sampled.kv_usage
    if sampled.residents is not None:
        cache.append(Bit(f"{name}{sampled.residents:,} agents resident"))
    if sampled.kv_held is not None and sampled.kv_limit:
        cache.append(Bit(f"{rounded(sampled.kv_held)} of {rounded(sampled.kv_limit)} tokens"))
        full = sampled.kv_held / sampled.kv_limit
    if sampled.kv_usage is not None:
        cache.append(Bit(f"server says {sampled.kv_usage:.0%}", "quiet"))
    yield Row("KV cache", tuple(cache), 40, full)


def _tokens(board: LiveState) -> Iterator[Row]:
    usage = board.turned
    if not usage.input and not usage.output:
        return
    cached = usage.cached / usage.input if usage.input else 0.0
    bits = [
        Bit(f"{rounded(usage.input)} in"),
        Bit(f"{cached:.0%} cached", "good" if cached >= 0.5 else "" if cached else "quiet"),
        Bit(f"{rounded(usage.output)} out"),
        *([Bit(dollars(usd))] if (usd := board.usd) else []),
        Bit(f"{rounded(board.read.rate)}/s in, {rounded(board.written.rate)}/s out", "quiet"),
    ]
    yield Row("tokens", tuple(bits), 70)


def _tools(board: LiveState) -> Iterator[Row]:
    tools = board.tools
    if not tools.by_tool:
        return
    total, by_tool = tools.total, sorted(tools.by_tool.items(), key=lambda item: item[1].calls, reverse=True)
    yield Row("tool calls", tuple(_calls(total)), 50)
    if len(by_tool) > 1 or total.failed:
        for name, count in by_tool:
            took = Bit(f"{count.seconds_each:.2f} s each", "quiet")
            yield Row("", (Bit(sanitize(name, 40)), *_calls(count), took), 10)


def _calls(count: ToolCount) -> Iterator[Bit]:
    sources = count.sources
    shared = sources["shared"] + sources["cached"]
    yield Bit(f"{count.calls:,}")
    if shared:
        yield Bit(f"{shared / count.calls:.0%} reused", "good")
    yield Bit(f"{sources['executed']:,} executed")
    if count.failed:
        yield Bit(f"{count.failed:,} failed", "bad")
    for source, calls in sources.items():
        if calls and source != "executed":
            yield Bit(f"{calls:,} {source}", "quiet")


def _workers(board: LiveState) -> Iterator[Row]:
    """Where several share the work."""
    if not board.turns.keys() - {""}:
        return
    turns = (
        Bit(f"{sanitize(name, 40) or 'this one'} {many(count, 'turn')}", "quiet")
        for name, count in board.turns.most_common()
    )
    yield Row("workers", (Bit(f"{len(board.turns):,}"), *turns), 15)


def _result(name: str, result: AgentResult) -> Row:
    where = f"{sanitize(name)} " if name else ""
    took = Bit(f"{duration(result.timing.total):>4}", "quiet")
    if result.error is not None:
        return Row(f"{where}{result.index:,}", (Bit("failed", "bad"), took, Bit(sanitize(str(result.error)), "bad")), 5)
    return Row(f"{where}{result.index:,}", (Bit("answered", "good"), took, Bit(sanitize(said(result)))), 5)
