"""Behaviour of agents, measured on a canary: turns, output tokens and tool times."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from ..core.fast_dataclass import dataclass
from ..core.images import ImageRef
from ..core.messages import Assistant, Message, Placement, ToolResult, ToolResults, User
from ..core.results import AgentResult
from ..core.run_reports import PrefixReport
from ..schedule.reference_model import MIN_CHARS, Read
from .forecast import AgentProfile, Behaviour, ExpectedTurn

_REFERENCES_END = "</references>\n\n"

Runs = Sequence[Sequence[AgentResult]]
"""Groups of agents that started together, in the order in which the groups ran."""

CountImage = Callable[[ImageRef], int]


def behaviour_of(
    runs: Runs,
    report: PrefixReport,
    *,
    chars_per_token: float = 4.0,
    lead: int = 0,
    placements: Mapping[str, Placement] | None = None,
    image_tokens: CountImage = lambda image: image.tokens,
) -> Behaviour | None:
    """Measures the behaviour; None if no agent has an answer. `chars_per_token`: value used for the report. `lead`:
    characters at the beginning of all tasks. `placements`: placement of results, by name of the tool, for tools whose
    results agents share. `image_tokens`: as in the report.

    A result has only the total tokens of its turns, which are divided among them in proportion to characters."""
    estimate = _Estimate(chars_per_token, image_tokens)
    found = [_MeasuredAgent.of(result, estimate, placements or {}) for result in answered(runs)]
    readers = Counter(heading for each in found for heading in each.headings)
    measured = [each.without_headings({heading for heading, count in readers.items() if count < 2}) for each in found]
    if not measured:
        return None
    estimated = sum(each.prompts(report.shared_tokens - lead / chars_per_token) for each in measured)
    counted = sum(each.result.usage.input for each in measured)
    scale = counted / estimated if counted and estimated else 1.0
    later = [result for run in runs[1:] for result in run] or [result for run in runs for result in run][1:]
    cached = sum(result.usage.cached for result in later) / max(1, sum(result.usage.input for result in later))
    usages = [result.usage for run in runs for result in run]
    computed = max(1, sum(usage.input - usage.cached for usage in usages))
    return Behaviour(
        tuple(each.profile(scale) for each in measured),
        _source(sum(map(len, runs)), len(measured)),
        scale=scale,
        counts_cached=any(result.usage.cached for run in runs for result in run),
        cached=cached,
        written=sum(usage.written for usage in usages) / computed,
        written_hour=sum(usage.written_hour for usage in usages) / computed,
    )


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Estimates the tokens of texts and images that the server has not counted."""

    chars_per_token: float
    image_tokens: CountImage

    def text(self, chars: int) -> float:
        return chars / self.chars_per_token

    def message(self, message: User) -> float:
        return self.text(len(message.text)) + sum(self.image_tokens(placed.image) for placed in message.images)

    def results(self, results: Sequence[ToolResult]) -> float:
        images = sum(self.image_tokens(image) for result in results for image in result.images)
        return self.text(sum(len(result.content) for result in results)) + images


def _source(agents: int, good: int) -> str:
    return f"canary of {agents}" + (f" ({agents - good} failed)" if good < agents else "")


def answered(runs: Runs) -> list[AgentResult]:
    return [result for run in runs for result in run if result.ok and result.turns]


def tool_seconds(result: AgentResult) -> float:
    """Seconds that an agent waited for its tools."""
    return sum(_waited(message) for message in result.transcript if isinstance(message, ToolResults))


def _waited(message: ToolResults) -> float:
    """Seconds that an agent waited for the calls of a turn, which run concurrently. Cached results take no time."""
    return max((result.seconds for result in message.results if result.source in ("executed", "shared")), default=0.0)


@dataclass(frozen=True, slots=True)
class _MeasuredAgent:
    """The conversation of an agent, in tokens estimated from characters."""

    result: AgentResult
    task: float
    turns: AgentProfile

    @classmethod
    def of(cls, result: AgentResult, estimate: _Estimate, placements: Mapping[str, Placement]) -> "_MeasuredAgent":
        first, *rest = _inline(result.transcript) or (User(""),)
        task = estimate.message(first) if isinstance(first, User) else 0.0
        turns = _turns(rest, estimate, placements)
        if len(turns) != result.turns:  # a repaired answer leaves one message for two turns
            turns = _evenly(turns, result.turns)
        return cls(result, task, turns)

    @property
    def headings(self) -> set[str]:
        return {read.heading for turn in self.turns for read in turn.reads}

    def without_headings(self, unshared: Collection[str]) -> "_MeasuredAgent":
        """The agent without the headings of results that no other agent of the canary has read."""
        if not any(turn.reads for turn in self.turns):
            return self
        return replace(self, turns=tuple(_without_headings(turn, unshared) for turn in self.turns))

    def prompts(self, shared: float) -> float:
        """Prompt tokens of all turns, if all tasks start with `shared` common tokens."""
        count = len(self.turns)
        return count * (shared + self.task) + sum((count - at) * turn.added for at, turn in enumerate(self.turns, 1))

    def profile(self, scale: float) -> AgentProfile:
        total = sum(turn.output for turn in self.turns)
        output = self.result.usage.output
        return tuple(
            replace(
                turn,
                output=max(1, round(output * turn.output / total if total else output / len(self.turns))),
                added=round(turn.added * scale),
                reads=tuple(replace(read, size=read.size * scale) for read in turn.reads),
            )
            for turn in self.turns
        )


def _turns(messages: Sequence[Message], estimate: _Estimate, placements: Mapping[str, Placement]) -> AgentProfile:
    turns: list[ExpectedTurn] = []
    for message in messages:
        match message:
            case Assistant(text, calls):
                chars = len(text) + sum(len(call.name) + len(call.arguments) for call in calls)
                chars += sum(len(thought.text) for thought in message.thoughts)
                tokens = round(estimate.text(chars))
                turns.append(ExpectedTurn(tokens, tokens))
            case ToolResults(results) if turns:
                turns[-1] = replace(
                    turns[-1],
                    added=turns[-1].added + round(estimate.results(results)),
                    tool_seconds=_waited(message),
                    reads=tuple(_reads(results, estimate.chars_per_token, placements)),
                )
            case _:
                pass
    return tuple(turns)


def _reads(
    results: Iterable[ToolResult], chars_per_token: float, placements: Mapping[str, Placement]
) -> Iterator[Read]:
    for result in results:
        call, placement = result.call, placements.get(result.call.name)
        if placement is not None and len(result.content) >= MIN_CHARS and not result.is_error:
            yield Read(f"{call.name} {call.arguments}", len(result.content) / chars_per_token, placement)


def _without_headings(turn: ExpectedTurn, unshared: Collection[str]) -> ExpectedTurn:
    reads = (replace(read, heading="") if read.heading in unshared else read for read in turn.reads)
    return replace(turn, reads=tuple(reads))


def _inline(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with each result behind its call, including results that were in the first message."""
    placed = {
        (result.reference.rank, result.reference.heading)
        for message in messages
        if isinstance(message, ToolResults)
        for result in message.results
        if result.reference is not None and result.is_placed_first
    }
    if not placed or not isinstance(first := messages[0], User):
        return messages
    ends = (*first.breaks, first.shared)
    bounds = [ends[-len(placed) - 1] if len(ends) > len(placed) else 0, *ends[-len(placed) :]]
    blocks = [first.text[begin:end] for begin, end in pairwise(bounds)]
    texts = {heading: block for (_, heading), block in zip(sorted(placed), blocks, strict=True)}
    own = first.text[ends[-1] :].removeprefix(_REFERENCES_END)
    return [User(first.text[: bounds[0]] + own), *(_with_texts(message, texts) for message in messages[1:])]


def _with_texts(message: Message, texts: Mapping[str, str]) -> Message:
    """The message with the texts of its references. Without references, they are sent again for each call of an
    agent."""
    if not isinstance(message, ToolResults):
        return message
    return ToolResults(
        tuple(
            replace(result, content=texts.get(result.reference.heading, result.content))
            if result.reference is not None and result.is_placed_first
            else result
            for result in message.results
        )
    )


def _evenly(turns: AgentProfile, count: int) -> AgentProfile:
    if not turns:
        return (ExpectedTurn(0, 0),) * count
    output, added = fmean(turn.output for turn in turns), fmean(turn.added for turn in turns)
    each = ExpectedTurn(round(output), round(added), sum(turn.tool_seconds for turn in turns) / max(1, count - 1))
    return (each,) * count
