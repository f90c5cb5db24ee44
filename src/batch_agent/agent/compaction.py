"""Compaction: choice of the tool results to shorten when a conversation nears the end of the context window, and its
state per conversation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.agent_config import Compaction
from ..core.facts import Compacted, Shortened
from ..core.fast_dataclass import dataclass
from ..core.messages import Message, ToolResult, ToolResults
from ..core.requests import Reply
from .context_size import ContextSize, chars_of_result

_MIN_CHARS = 200
"""Shorter results stay: the note that replaces one is hardly shorter."""
_MIN_GAIN_SHARE = 0.02
"""A result that saves less than this share of the excess is shortened only if the others are not enough."""
_MIN_SUMMARY_TOKENS, _MAX_SUMMARY_TOKENS = 64, 512
_SUMMARY_SHARE = 0.125
"""Length of a summary as a share of its result, in tokens, within the limits above."""
_PROSE_FACTOR = 1.5
"""Prose has more characters per token than data: a summary may be longer than its tokens suggest by this factor."""


@dataclass(frozen=True, slots=True)
class ToolOutputSize:
    """Tool result in a conversation, with its size."""

    index: int
    """Index among all tool results of the agent."""
    tool: str
    content: str
    chars: int
    """Characters of the original result; `content` may be shortened already."""
    stays: bool = False
    """Whether it is never shortened. Errors are not: they are short, and say what not to try again."""
    is_newest: bool = False
    """Whether the model has not read it yet, or has not replied to it."""
    is_summary: bool = False
    made_a_change: bool = False
    """Whether repeating the call would change something again."""
    image_chars: int = 0
    """Characters that its images count for. A result that is shortened loses them."""

    @property
    def size(self) -> int:
        """Characters that it takes up in the prompt."""
        return len(self.content) + self.image_chars

    @property
    def note(self) -> str:
        """Note that replaces it when it is elided."""
        again = "the call was made, do not repeat it" if self.made_a_change else "call it again if you need them"
        return f"[elided: {self.chars:,} characters that {self.tool} gave; {again}]"


@dataclass(frozen=True, slots=True)
class ShortenedResult:
    """Planned replacement of a tool result."""

    output: ToolOutputSize
    content: str
    """Its new content, also if no summary can be made."""
    summary_tokens: int = 0
    """Length of the summary to make; 0: none."""
    summary_chars: int = 0

    @property
    def gain(self) -> int:
        """Characters saved, with a summary of maximum length."""
        return self.output.size - max(len(self.content), self.summary_chars)


@dataclass(frozen=True, slots=True)
class CompactContext:
    """Step of an agent: tool results to shorten before the next request. `done` makes its fact."""

    results: tuple[ShortenedResult, ...]
    tokens: int
    """Size of the next request if nothing is shortened."""
    chars_per_token: float

    def done(self, summaries: Mapping[int, str], seconds: float = 0.0) -> Compacted:
        """Fact of this compaction. `summaries`: those that were made, by the index of their result."""
        made = tuple(_shortened(each, summaries.get(each.output.index, "").strip()) for each in self.results)
        saved = sum(each.output.size - len(new.content) for each, new in zip(self.results, made, strict=True))
        after = max(0, round(self.tokens - saved / self.chars_per_token))
        return Compacted(made, self.tokens, after, seconds)


def plan_compaction(limits: Compaction, results: Sequence[ToolOutputSize], size: ContextSize) -> CompactContext | None:
    """Plan of a compaction; None if the next request fits, or nothing can be saved.

    The oldest results are shortened first, summaries of earlier compactions only if the others are not enough; last,
    the newest, which the model has not read, are cut. Going down to `target_tokens` changes the prefix rarely."""
    if size.tokens <= limits.trigger_tokens:
        return None
    plan = _Plan(limits, size)
    long = [output for output in results if output.size > _MIN_CHARS and not output.stays]
    old = [output for output in long if not output.is_newest]
    plan.shorten([output for output in old if not output.is_summary])
    plan.elide(old)
    plan.cut([output for output in long if output.is_newest])
    if not plan.chosen:
        return None
    ordered = tuple(plan.chosen[index] for index in sorted(plan.chosen))
    return CompactContext(ordered, round(size.tokens), size.chars_per_token)


class _Plan:
    """Replacements chosen so far, by index."""

    def __init__(self, limits: Compaction, size: ContextSize) -> None:
        self.chosen: dict[int, ShortenedResult] = {}
        self._limits = limits
        self._size = size
        self._gained = 0

    def shorten(self, old: Sequence[ToolOutputSize]) -> None:
        """Shortens down to `target_tokens`; results that save little only if the others are not enough."""
        options = [self._shorter(output) for output in old]
        little = _MIN_GAIN_SHARE * self._excess(self._limits.target_tokens)
        for option in sorted(options, key=lambda option: option.gain < little):
            if self._excess(self._limits.target_tokens) > 0:
                self._choose(option)

    def elide(self, old: Sequence[ToolOutputSize]) -> None:
        """Replaces results by notes, also summaries, if they still fill the window."""
        for output in old:
            if self._excess(self._midway) > 0:
                self._choose(ShortenedResult(output, output.note))

    def cut(self, newest: Sequence[ToolOutputSize]) -> None:
        """Cuts the longest to the same length, so that the request fits even if the estimate is off by a third."""
        if self._excess(self._limits.trigger_tokens) <= 0:
            return
        marks = {output.index: _cut_mark(output, output.chars) for output in newest}
        over = self._excess(self._midway) + sum(map(len, marks.values()))
        longest = _level([len(output.content) for output in newest], over)
        for output in newest:
            if len(output.content) > longest:
                kept = max(0, int(longest) - len(marks[output.index]))
                self._choose(ShortenedResult(output, output.content[:kept] + _cut_mark(output, kept)))

    @property
    def _midway(self) -> float:
        return (self._limits.target_tokens + self._limits.trigger_tokens) / 2

    def _excess(self, tokens: float) -> float:
        """Characters in excess of this number of tokens."""
        return (self._size.tokens - tokens) * self._size.chars_per_token - self._gained

    def _choose(self, option: ShortenedResult) -> None:
        before = self.chosen.get(option.output.index)
        more = option.gain - (before.gain if before else 0)
        if more > 0:
            self.chosen[option.output.index] = option
            self._gained += more

    def _shorter(self, output: ToolOutputSize) -> ShortenedResult:
        if not self._limits.summarizes:
            return ShortenedResult(output, output.note)
        tokens = len(output.content) / self._size.chars_per_token
        wanted = int(min(_MAX_SUMMARY_TOKENS, max(_MIN_SUMMARY_TOKENS, _SUMMARY_SHARE * tokens)))
        if 2 * wanted > tokens:
            return ShortenedResult(output, output.note)
        return ShortenedResult(output, output.note, wanted, int(_PROSE_FACTOR * wanted * self._size.chars_per_token))


def _shortened(each: ShortenedResult, summary: str) -> Shortened:
    if each.summary_tokens and summary:
        title = f"[a summary of {each.output.chars:,} characters that {each.output.tool} gave]\n"
        content = (title + summary)[: each.summary_chars]
        if len(content) < len(each.output.content):
            return Shortened(each.output.index, content, is_summary=True)
    return Shortened(each.output.index, each.content)


def _cut_mark(output: ToolOutputSize, kept: int) -> str:
    return f"\n[cut here: {kept:,} of {output.chars:,} characters are shown; more do not fit into the context]"


def _level(lengths: Sequence[int], over: float) -> float:
    """Length to which the longest are cut to remove `over` characters; 0 if there are fewer."""
    descending = sorted(lengths, reverse=True)
    total = 0
    for number, length in enumerate(descending, 1):
        total += length
        following = descending[number] if number < len(descending) else 0
        level = (total - over) / number
        if level >= following:
            return level
    return 0.0


_NO_INDEXES: frozenset[int] = frozenset()


class CompactionState:
    """Compaction state of a conversation. At most one compaction per reply: a second one would save nothing more."""

    __slots__ = ("_chars", "_is_done", "_summaries", "compactions", "size")

    def __init__(self, chars: int) -> None:
        """`chars`: characters of the first request."""
        self.size = ContextSize(chars)
        self.compactions = 0
        self._chars: dict[int, int] = {}
        """Original length of the shortened results, by index."""
        self._summaries = _NO_INDEXES
        self._is_done = False

    def plan(self, limits: Compaction, messages: Sequence[Message], changes: frozenset[int]) -> CompactContext | None:
        """Results to shorten before the next request, if any. `changes`: indexes of calls that changed something."""
        if self._is_done or self.size.tokens <= limits.trigger_tokens:
            return None
        return plan_compaction(limits, list(self._outputs(messages, changes)), self.size)

    def apply(self, fact: Compacted, messages: Sequence[Message]) -> list[Message]:
        """The messages with their results replaced as the fact says; nothing else changes."""
        new = {each.index: each for each in fact.results}
        for index, result, _ in _indexed(messages):
            if index in new:
                self._chars.setdefault(index, len(result.content))
                self.size.add(len(new[index].content) - chars_of_result(result))
        self._summaries -= new.keys()
        self._summaries |= {each.index for each in fact.results if each.is_summary}
        self._is_done = True
        self.compactions += 1
        return _replaced(messages, {index: each.content for index, each in new.items()})

    def on_reply(self, reply: Reply) -> None:
        self.size.on_reply(reply)
        self._is_done = False

    def _outputs(self, messages: Sequence[Message], changes: frozenset[int]) -> Iterator[ToolOutputSize]:
        newest = max((at for at, message in enumerate(messages) if isinstance(message, ToolResults)), default=None)
        for index, result, at in _indexed(messages):
            yield ToolOutputSize(
                index,
                result.call.name,
                result.content,
                chars=self._chars.get(index, len(result.content)),
                stays=result.is_error,
                is_newest=at == newest,
                is_summary=index in self._summaries,
                made_a_change=index in changes,
                image_chars=sum(image.chars for image in result.images),
            )


def _indexed(messages: Sequence[Message]) -> Iterator[tuple[int, ToolResult, int]]:
    """Results of a conversation: index, result, and index of the message."""
    index = 0
    for at, message in enumerate(messages):
        if isinstance(message, ToolResults):
            for result in message.results:
                yield index, result, at
                index += 1


def _with_content(result: ToolResult, content: str | None) -> ToolResult:
    """The result with its new content, if it has one. A reference that is shortened stands behind its call again."""
    return result if content is None else replace(result, content=content, reference=None, images=())


def _replaced(messages: Sequence[Message], contents: dict[int, str]) -> list[Message]:
    """The messages with these results replaced, by index; messages without any of them stay the same objects."""
    replaced: list[Message] = []
    index = 0
    for message in messages:
        if not isinstance(message, ToolResults):
            replaced.append(message)
            continue
        first, index = index, index + len(message.results)
        if contents.keys().isdisjoint(range(first, index)):
            replaced.append(message)
            continue
        numbered = enumerate(message.results, first)
        replaced.append(ToolResults(tuple(_with_content(r, contents.get(at)) for at, r in numbered)))
    return replaced
