"""References: results of shared calls that precede an agent's own text, so that the prompts of several agents begin
alike. Decides which results are placed there, and lays out the messages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from ..core.fast_dataclass import dataclass
from ..core.messages import Message, Placement, Reference, ToolResult, ToolResults, User
from .context_size import chars_of

_MIN_CHARS = 200
"""Shorter results stay behind their call: a pointer to one is hardly shorter."""
_OPEN, _CLOSE = "<references>\n", "</references>\n\n"
_MARKUP_CHARS = len("<reference call=''>\n\n</reference>\n")


ExpectedReaders = Callable[[Sequence[str]], float]
"""How many agents are expected to have these references, in this order, at the beginning of their prompts."""


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


def place(
    results: tuple[ToolResult, ...],
    messages: Sequence[Message],
    at: int,
    readers: ExpectedReaders,
    computations: float = 1.0,
) -> tuple[ToolResult, ...]:
    """The results, each with its placement. The messages are those before the results. `computations`: how often the
    server is expected to compute a result that stands behind its call.

    A result is placed first if less has to be computed for this agent: what stands behind it, and its part of what
    several agents share, instead of the whole result."""
    if all(result.reference is None for result in results):
        return results
    present = references_in(messages)
    checked = [_checked(result, present) for result in results]
    undecided = [result for result in checked if result.reference is not None and result.reference.placement == "auto"]
    must_move = any(_is_new(result, present) and result.is_placed_first for result in checked)
    moved, shared = _own_chars(messages, at), _shared_cost(checked, present, readers)
    first = (0 if must_move else moved) + computations * shared
    inline = computations * sum(len(result.content) for result in undecided)
    auto: Placement = "first" if first < inline else "inline"
    behind = moved + sum(each.chars for each in present if _is_behind(each, checked))
    return tuple(_decided(result, auto, behind) for result in checked)


def markup_chars(results: Iterable[ToolResult]) -> int:
    """Characters that results take up in a prompt in addition to their content, because they are placed first."""
    headings = [each.reference.heading for each in results if each.reference is not None and each.is_placed_first]
    return sum(len(heading) + _MARKUP_CHARS + len(pointer(heading)) for heading in headings)


def pointer(heading: str) -> str:
    """Text behind a call whose result is placed first."""
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
    if result.is_error or result.images or len(result.content) < _MIN_CHARS:
        return replace(result, reference=None)
    return result


def _is_new(result: ToolResult, present: Sequence[PlacedReference]) -> bool:
    reference = result.reference
    return reference is not None and all(each.reference.heading != reference.heading for each in present)


def _shared_cost(results: Sequence[ToolResult], present: Sequence[PlacedReference], readers: ExpectedReaders) -> float:
    """This agent's part of the references that the server has not computed in their new places, in characters. A
    reference is shared by the agents whose prompts are the same up to it."""
    path = sorted([*present, *_new_references(results, present)], key=lambda each: each.order)
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(path, present, strict=False)))
    headings = [each.reference.heading for each in path]
    return sum(path[at].chars / readers(headings[: at + 1]) for at in range(kept, len(path)))


def _new_references(results: Sequence[ToolResult], present: Sequence[PlacedReference]) -> list[PlacedReference]:
    """References that the results would add, each once."""
    new: dict[str, PlacedReference] = {}
    for result in results:
        reference = result.reference
        if reference is not None and reference.placement != "inline" and _is_new(result, present):
            new.setdefault(reference.heading, PlacedReference(reference, result.content))
    return list(new.values())


def _is_behind(placed: PlacedReference, results: Sequence[ToolResult]) -> bool:
    """Whether one of the results would be inserted before this reference."""
    ranks = [(each.reference.rank, each.reference.heading) for each in results if each.reference is not None]
    return any(rank < placed.order for rank in ranks)


def _decided(result: ToolResult, auto: Placement, moved: int) -> ToolResult:
    reference = result.reference
    if reference is None:
        return result
    placement = auto if reference.placement == "auto" else reference.placement
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
    inserted = length + len(_CLOSE) - at
    images = tuple(replace(each, at=each.at + inserted) if each.at >= at else each for each in task.images)
    return User("".join([*parts, _CLOSE, own]), ends[-1], tuple(ends[:-1]), images)


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
