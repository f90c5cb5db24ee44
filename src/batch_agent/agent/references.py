"""References: tool results of shared calls that stand before an agent's own text, where prompts of several agents are
the same. Decides which results are placed there, and lays the messages out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..core.fast_dataclass import dataclass
from ..core.messages import Message, Placement, Reference, ToolResult, ToolResults, User
from .context_size import chars_of

_MIN_CHARS = 200
"""Shorter results stay behind their call: a pointer to one is hardly shorter."""
_OPEN, _CLOSE = "<references>\n", "</references>\n\n"
_MARKUP_CHARS = len("<reference call=''>\n\n</reference>\n")


@dataclass(frozen=True, slots=True)
class PlacedReference:
    """A reference in a prompt, with its text."""

    reference: Reference
    content: str

    @property
    def order(self) -> tuple[int, str]:
        return self.reference.rank, self.reference.heading

    @property
    def chars(self) -> int:
        """Characters that it takes up in the prompt."""
        return len(self.content) + len(self.reference.heading) + _MARKUP_CHARS


def references_in(messages: Iterable[Message]) -> tuple[PlacedReference, ...]:
    """References of a conversation, in the order of its prompt."""
    found: dict[str, PlacedReference] = {}
    for result in _first_results(messages):
        assert result.reference is not None
        found.setdefault(result.reference.heading, PlacedReference(result.reference, result.content))
    return tuple(sorted(found.values(), key=lambda each: each.order))


def with_references(messages: Sequence[Message], at: int) -> tuple[Message, ...]:
    """The messages as they are sent: references stand in the first message from `at` on, and a pointer to each where
    the result would have stood."""
    task = messages[0]
    assert isinstance(task, User), "a conversation begins with its task"
    placed = references_in(messages)
    if not placed:
        return tuple(messages)
    return (_with_blocks(task, placed, min(at, len(task.text))), *map(_with_pointers, messages[1:]))


def place(results: tuple[ToolResult, ...], messages: Sequence[Message], at: int) -> tuple[ToolResult, ...]:
    """The results with the decision where each of them stands. The messages are those before the results."""
    if all(result.reference is None for result in results):
        return results
    present = references_in(messages)
    checked = [_checked(result, present) for result in results]
    moved = _own_chars(messages, at)
    behind = sum(each.chars for each in present if _is_behind(each, checked))
    must_move = any(_is_new(result, present) and result.is_placed_first for result in checked)
    if must_move or _expected_gain(checked) > moved + behind:
        return tuple(_decided(result, "first", moved + behind) for result in checked)
    return tuple(_decided(result, "inline", moved + behind) for result in checked)


def markup_chars(results: Iterable[ToolResult]) -> int:
    """Characters that results take up in a prompt in addition to their content, because they are placed first."""
    headings = [each.reference.heading for each in results if each.reference is not None and each.is_placed_first]
    return sum(len(heading) + _MARKUP_CHARS + len(pointer(heading)) for heading in headings)


def pointer(heading: str) -> str:
    """What stands behind a call whose result is placed first."""
    return f"[The result is in the references above: {heading}]"


def _checked(result: ToolResult, present: Sequence[PlacedReference]) -> ToolResult:
    """The result without a reference if it must stand behind its call. One that is among the references already is
    placed there without further cost."""
    reference = result.reference
    if reference is None or reference.placement == "inline":
        return result
    same = next((each for each in present if each.reference.heading == reference.heading), None)
    if same is not None:  # what the call reads may have changed since
        placement: Placement = "first" if same.content == result.content else "inline"
        return replace(result, reference=replace(reference, rank=same.reference.rank, placement=placement))
    if result.is_error or len(result.content) < _MIN_CHARS:
        return replace(result, reference=None)
    return result


def _is_new(result: ToolResult, present: Sequence[PlacedReference]) -> bool:
    reference = result.reference
    return reference is not None and all(each.reference.heading != reference.heading for each in present)


def _is_behind(placed: PlacedReference, results: Sequence[ToolResult]) -> bool:
    """Whether one of the results would be inserted before this reference."""
    ranks = [(each.reference.rank, each.reference.heading) for each in results if each.reference is not None]
    return any(rank < placed.order for rank in ranks)


def _expected_gain(results: Sequence[ToolResult]) -> float:
    """Characters that this agent need not have computed if the results are placed first: of the agents that asked for a
    result so far, all but one find it computed."""
    return sum(
        len(each.content) * (each.reference.readers - 1) / each.reference.readers
        for each in results
        if each.reference is not None and each.reference.placement == "auto"
    )


def _decided(result: ToolResult, auto: Placement, moved: int) -> ToolResult:
    reference = result.reference
    if reference is None or reference.placement != "auto":
        return result if reference is None else replace(result, reference=replace(reference, moved_chars=moved))
    placement: Placement = auto if reference.readers > 1 else "inline"
    return replace(result, reference=replace(reference, placement=placement, moved_chars=moved))


def _own_chars(messages: Sequence[Message], at: int) -> int:
    """Characters of the conversation that stand behind the references."""
    return sum(map(chars_of, map(_with_pointers, messages))) - at


def _with_blocks(task: User, placed: Sequence[PlacedReference], at: int) -> User:
    lead, own = task.text[:at], task.text[at:]
    parts = [lead + _OPEN]
    ends = [at] if at else []
    length = len(parts[0])
    for each in placed:
        block = f"<reference call='{each.reference.heading}'>\n{each.content}\n</reference>\n"
        parts.append(block)
        length += len(block)
        ends.append(length)
    return User("".join([*parts, _CLOSE, own]), ends[-1], tuple(ends[:-1]))


def _with_pointers(message: Message) -> Message:
    if not isinstance(message, ToolResults) or not any(result.is_placed_first for result in message.results):
        return message
    return ToolResults(
        tuple(
            replace(result, content=pointer(result.reference.heading))
            if result.reference is not None and result.is_placed_first
            else result
            for result in message.results
        )
    )


def _first_results(messages: Iterable[Message]) -> Iterator[ToolResult]:
    for message in messages:
        if isinstance(message, ToolResults):
            yield from (result for result in message.results if result.is_placed_first)
