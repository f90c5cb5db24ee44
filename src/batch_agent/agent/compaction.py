"""Which tool results of a conversation are shortened when it comes near the end of the model's window.

What was shortened in one conversation, and what may still be.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.agent_config import Compaction
from ..core.facts import Compacted, Shortened
from ..core.fast_dataclass import dataclass
from ..core.messages import Message, ToolResult, ToolResults
from ..core.requests import Reply
from .context_size import ContextSize

_SHORT = 200
"""Characters. Shorter results stay: a line that says what was there is hardly shorter."""
_LITTLE = 0.02
"""A result that brings less than this share of what has to go is left alone as long as others bring it."""
_LEAST_SUMMARY, _MOST_SUMMARY = 64, 512
_SUMMARY_SHARE = 0.125
"""Of a result: what its summary may take, in tokens, between the two above."""
_WORDY = 1.5
"""A summary may be longer than its tokens say by this: prose has more characters in a token than data."""


@dataclass(frozen=True, slots=True)
class ToolOutputSize:
    """A tool result in a conversation."""

    place: int
    """Which of the agent's results it is, counted from its first."""
    tool: str
    content: str
    chars: int
    """That the tool gave; `content` may be what is left of them."""
    stays: bool = False
    """Errors do: they are short, and say what not to try again."""
    is_newest: bool = False
    """The model has not read it, or has not yet made anything of it."""
    is_summary: bool = False
    made_a_change: bool = False
    """Whoever calls it again changes something again."""

    @property
    def line(self) -> str:
        """What stays of it when it is elided."""
        again = "the call was made, do not repeat it" if self.made_a_change else "call it again if you need them"
        return f"[elided: {self.chars:,} characters that {self.tool} gave; {again}]"


@dataclass(frozen=True, slots=True)
class ShortenedResult:
    """What is to become of a result."""

    held: ToolOutputSize
    content: str
    """Its new content, also where no summary can be had."""
    summary_tokens: int = 0
    """A summary of this length is wanted; 0: none."""
    summary_chars: int = 0

    @property
    def gain(self) -> int:
        """Characters, a summary taken to be as long as it may be."""
        return len(self.held.content) - max(len(self.content), self.summary_chars)


@dataclass(frozen=True, slots=True)
class CompactContext:
    """A step: what has to be shortened before the next request. `done` makes the fact of it."""

    results: tuple[ShortenedResult, ...]
    tokens: int
    """Of the next request if nothing is shortened."""
    chars_per_token: float

    def done(self, summaries: Mapping[int, str], seconds: float = 0.0) -> Compacted:
        """`summaries` are those that could be had, by the places of their results."""
        made = tuple(_shortened(each, summaries.get(each.held.place, "").strip()) for each in self.results)
        saved = sum(len(each.held.content) - len(new.content) for each, new in zip(self.results, made, strict=True))
        after = max(0, round(self.tokens - saved / self.chars_per_token))
        return Compacted(made, self.tokens, after, seconds)


def plan_compaction(rules: Compaction, results: Sequence[ToolOutputSize], size: ContextSize) -> CompactContext | None:
    """None when the next request fits, or nothing can be gained.

    The oldest go first, summaries of earlier compactions only if the others are not enough; at last the newest, which
    the model has not read, are cut. Going down to `enough` at once moves the prefix once, and rarely."""
    if size.tokens <= rules.most:
        return None
    plan = _Plan(rules, size)
    long = [held for held in results if len(held.content) > _SHORT and not held.stays]
    old = [held for held in long if not held.is_newest]
    plan.shorten([held for held in old if not held.is_summary])
    plan.elide(old)
    plan.cut([held for held in long if held.is_newest])
    if not plan.chosen:
        return None
    ordered = tuple(plan.chosen[place] for place in sorted(plan.chosen))
    return CompactContext(ordered, round(size.tokens), size.chars_per_token)


class _Plan:
    """Chosen so far, by place."""

    def __init__(self, rules: Compaction, size: ContextSize) -> None:
        self.chosen: dict[int, ShortenedResult] = {}
        self._rules = rules
        self._size = size
        self._gained = 0

    def shorten(self, old: Sequence[ToolOutputSize]) -> None:
        """Down to `enough`; those that bring little only if the others are not enough."""
        ways = [self._shorter(held) for held in old]
        little = _LITTLE * self._left(self._rules.enough)
        ordered = [*(way for way in ways if way.gain >= little), *(way for way in ways if way.gain < little)]
        for way in ordered:
            if self._left(self._rules.enough) > 0:
                self._choose(way)

    def elide(self, old: Sequence[ToolOutputSize]) -> None:
        """Summaries go too, where they are what fills the window."""
        for held in old:
            if self._left(self._midway) > 0:
                self._choose(ShortenedResult(held, held.line))

    def cut(self, newest: Sequence[ToolOutputSize]) -> None:
        """The longest to the same length, so far that the request fits also if the estimate is off by a third."""
        if self._left(self._rules.most) <= 0:
            return
        marks = {held.place: _cut_mark(held, held.chars) for held in newest}
        over = self._left(self._midway) + sum(map(len, marks.values()))
        longest = _level([len(held.content) for held in newest], over)
        for held in newest:
            if len(held.content) > longest:
                kept = max(0, int(longest) - len(marks[held.place]))
                self._choose(ShortenedResult(held, held.content[:kept] + _cut_mark(held, kept)))

    @property
    def _midway(self) -> float:
        return (self._rules.enough + self._rules.most) / 2

    def _left(self, tokens: float) -> float:
        """Characters that are still to go before no more than so many tokens are left."""
        return (self._size.tokens - tokens) * self._size.chars_per_token - self._gained

    def _choose(self, way: ShortenedResult) -> None:
        before = self.chosen.get(way.held.place)
        more = way.gain - (before.gain if before else 0)
        if more > 0:
            self.chosen[way.held.place] = way
            self._gained += more

    def _shorter(self, held: ToolOutputSize) -> ShortenedResult:
        if not self._rules.summarizes:
            return ShortenedResult(held, held.line)
        tokens = len(held.content) / self._size.chars_per_token
        wanted = int(min(_MOST_SUMMARY, max(_LEAST_SUMMARY, _SUMMARY_SHARE * tokens)))
        if 2 * wanted > tokens:
            return ShortenedResult(held, held.line)
        return ShortenedResult(held, held.line, wanted, int(_WORDY * wanted * self._size.chars_per_token))


def _shortened(each: ShortenedResult, summary: str) -> Shortened:
    if each.summary_tokens and summary:
        title = f"[a summary of {each.held.chars:,} characters that {each.held.tool} gave]\n"
        told = (title + summary)[: each.summary_chars]
        if len(told) < len(each.held.content):
            return Shortened(each.held.place, told, is_summary=True)
    return Shortened(each.held.place, each.content)


def _cut_mark(held: ToolOutputSize, kept: int) -> str:
    return f"\n[cut here: {kept:,} of {held.chars:,} characters are shown; more do not fit into the context]"


def _level(lengths: Sequence[int], over: float) -> float:
    """The length to which the longest are cut so that `over` characters are gone; 0 if there are not so many."""
    descending = sorted(lengths, reverse=True)
    total = 0
    for number, length in enumerate(descending, 1):
        total += length
        following = descending[number] if number < len(descending) else 0
        level = (total - over) / number
        if level >= following:
            return level
    return 0.0


_NO_PLACES: frozenset[int] = frozenset()


class CompactionState:
    """At most one compaction before each reply: what one could not bring, another would not."""

    __slots__ = ("_chars", "_is_done", "_summaries", "compactions", "size")

    def __init__(self, chars: int) -> None:
        """`chars`: of the first request."""
        self.size = ContextSize(chars)
        self.compactions = 0
        self._chars: dict[int, int] = {}
        """That the tools gave, by the places of the results that were shortened."""
        self._summaries = _NO_PLACES
        self._is_done = False

    def plan(self, rules: Compaction, messages: Sequence[Message], changes: frozenset[int]) -> CompactContext | None:
        """What to shorten before the next request, if anything. `changes`: the places of calls that changed things."""
        if self._is_done or self.size.tokens <= rules.most:
            return None
        return plan_compaction(rules, list(self._held(messages, changes)), self.size)

    def apply(self, fact: Compacted, messages: Sequence[Message]) -> list[Message]:
        """The messages with what the fact says in the place of their results; nothing else of them changes."""
        new = {each.place: each for each in fact.results}
        for place, result, _ in _placed(messages):
            if place in new:
                self._chars.setdefault(place, len(result.content))
                self.size.grew(len(new[place].content) - len(result.content))
        self._summaries -= new.keys()
        self._summaries |= {each.place for each in fact.results if each.is_summary}
        self._is_done = True
        self.compactions += 1
        return _replaced(messages, {place: each.content for place, each in new.items()})

    def heard(self, reply: Reply) -> None:
        self.size.heard(reply)
        self._is_done = False

    def _held(self, messages: Sequence[Message], changes: frozenset[int]) -> Iterator[ToolOutputSize]:
        newest = max((at for at, message in enumerate(messages) if isinstance(message, ToolResults)), default=None)
        for place, result, at in _placed(messages):
            yield ToolOutputSize(
                place,
                result.call.name,
                result.content,
                chars=self._chars.get(place, len(result.content)),
                stays=result.is_error,
                is_newest=at == newest,
                is_summary=place in self._summaries,
                made_a_change=place in changes,
            )


def _placed(messages: Sequence[Message]) -> Iterator[tuple[int, ToolResult, int]]:
    """The results of a conversation: their places, themselves, and the places of their messages."""
    place = 0
    for at, message in enumerate(messages):
        if isinstance(message, ToolResults):
            for result in message.results:
                yield place, result, at
                place += 1


def _replaced(messages: Sequence[Message], contents: dict[int, str]) -> list[Message]:
    """Messages without any of these places stay the same objects."""
    replaced: list[Message] = []
    place = 0
    for message in messages:
        if not isinstance(message, ToolResults):
            replaced.append(message)
            continue
        first, place = place, place + len(message.results)
        if contents.keys().isdisjoint(range(first, place)):
            replaced.append(message)
            continue
        numbered = enumerate(message.results, first)
        replaced.append(ToolResults(tuple(replace(r, content=contents.get(at, r.content)) for at, r in numbered)))
    return replaced
