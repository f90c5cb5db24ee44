"""Order of a run's references, which are results that may precede the agents' own text, and how many agents asked for
each."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..core.facts import Fact, Returned
from ..core.json import dumps
from ..core.messages import Placement, Reference
from ..core.shared_calls import SharedCalls
from ..plan.jsonable import to_jsonable
from ..schedule.reference_tree import ReadPaths
from .call_key import call_key
from .parameters import BadArguments
from .tool import Tool

_MAX_REFERENCES = 100_000
_LAST_RANK = 1_000_000
"""Rank of references that are not in the order: they are sorted by their headings."""
_MAX_MEMOIZED = 10_000
_MAX_HEADING_CHARS = 300


@dataclass(slots=True)
class _Entry:
    """One reference in the order."""

    rank: int | None = None
    readers: int = 0


class ReferenceOrder:
    """Ranks of the references of a run, in the order in which agents first asked for them. Documents that many agents
    read are mostly asked for early, so that prompts share long beginnings; with one order for all, agents that read the
    same documents in another order share them too."""

    def __init__(self, shared: SharedCalls | None = None) -> None:
        """`shared`: gives ranks that all processes use."""
        self._shared = shared
        self._entries: dict[str, _Entry] = {}
        self._headings: dict[tuple[str, str], str] = {}
        """By the tool's name and the text of the arguments."""
        self._next = 0
        self._paths = ReadPaths()

    def on_call(self, tool: Tool, text: str, asked: Collection[str]) -> str | None:
        """An agent asks for a result; returns its heading, or None if it cannot be a reference. `text`: the arguments
        as the model wrote them. `asked`: headings that the agent asked for before."""
        heading = self._headings.get((tool.name, text))
        if heading is None:
            if (heading := _heading(tool, text)) is None:
                return None
            if len(self._headings) >= _MAX_MEMOIZED:
                self._headings.clear()
            self._headings[tool.name, text] = heading
        if len(self._entries) < _MAX_REFERENCES or heading in self._entries:
            entry = self._entries.setdefault(heading, _Entry())
            entry.readers += heading not in asked
            if entry.rank is None and self._shared is None:
                entry.rank, self._next = self._next, self._next + 1
            if heading not in asked:
                self._paths.extend(self._path(asked), self._path([*asked, heading]))
        return heading

    def expected_readers(self, path: Sequence[str]) -> float:
        """Agents that are expected to have these references, in this order, at the beginning of their prompts."""
        return self._paths.agents(path)

    def _path(self, headings: Collection[str]) -> list[str]:
        """Headings in the order of a prompt."""
        return sorted(headings, key=lambda heading: (self._rank(heading), heading))

    def _rank(self, heading: str) -> int:
        entry = self._entries.get(heading)
        return _LAST_RANK if entry is None or entry.rank is None else entry.rank

    async def reference(self, heading: str, placement: Placement) -> Reference:
        """The reference for a result that has arrived, with the placement that was asked for."""
        entry = self._entries.get(heading) or _Entry(_LAST_RANK, 1)
        if entry.rank is None and self._shared is not None:
            known = await self._shared.rank(heading)
            if known is not None and entry.rank is None:
                entry.rank = known.rank
                entry.readers += known.is_elsewhere  # an agent of another process has asked for it
        return Reference(heading, _LAST_RANK if entry.rank is None else entry.rank, entry.readers, placement)

    def recall(self, facts: Iterable[Fact]) -> None:
        """Takes over the ranks that an earlier process gave."""
        for fact in facts:
            if isinstance(fact, Returned):
                for result in fact.results:
                    if result.reference is not None:
                        self._recall(result.reference)

    def _recall(self, reference: Reference) -> None:
        entry = self._entries.setdefault(reference.heading, _Entry())
        entry.readers = max(entry.readers, reference.readers)
        if entry.rank is None:
            entry.rank = reference.rank
        if reference.rank < _LAST_RANK:
            self._next = max(self._next, reference.rank + 1)


def _heading(tool: Tool, text: str) -> str | None:
    """The call, the same for all calls that share a result; None if its arguments cannot be read."""
    try:
        arguments = tool.arguments.read(text)
    except BadArguments:
        return None
    properties = tool.arguments.schema.get("properties", {})
    shown = {
        name: dumps(to_jsonable(value)).decode()
        for name, value in arguments.items()
        if name in properties and ("default" not in properties[name] or properties[name]["default"] != value)
    }
    heading = f"{tool.name}({', '.join(f'{name}={value}' for name, value in sorted(shown.items()))})"
    if len(heading) <= _MAX_HEADING_CHARS and "\n" not in heading:
        return heading
    try:
        digest = call_key(tool.name, arguments, text)[1].hex()[:16]
    except ValueError:
        return None
    return f"{heading[:_MAX_HEADING_CHARS].splitlines()[0]}... {digest})"
