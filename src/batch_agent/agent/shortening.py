"""What was shortened in one conversation, and what may still be."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..core.facts import Compacted
from ..core.messages import Message, ToolResult, ToolResults
from ..core.requests import Reply
from ..core.rules import Compaction
from .compaction import Compact, Held, plan_compaction
from .size import Size

_NO_PLACES: frozenset[int] = frozenset()


class Shortening:
    """At most one compaction before each reply: what one could not bring, another would not."""

    __slots__ = ("_chars", "_is_done", "_summaries", "compactions", "size")

    def __init__(self, chars: int) -> None:
        """`chars`: of the first request."""
        self.size = Size(chars)
        self.compactions = 0
        self._chars: dict[int, int] = {}
        """That the tools gave, by the places of the results that were shortened."""
        self._summaries = _NO_PLACES
        self._is_done = False

    def plan(self, rules: Compaction, messages: Sequence[Message], changes: frozenset[int]) -> Compact | None:
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

    def _held(self, messages: Sequence[Message], changes: frozenset[int]) -> Iterator[Held]:
        newest = max((at for at, message in enumerate(messages) if isinstance(message, ToolResults)), default=None)
        for place, result, at in _placed(messages):
            yield Held(
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
