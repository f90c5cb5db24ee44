"""Merge tree over the indexes of results. The grouping of merges does not depend on the order of arrival."""

from collections.abc import Callable, Sequence
from typing import Any

from ..core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """Entry of a merge: one result, or the answer of an earlier merge."""

    value: Any
    size: int
    """Size in whole tokens, so that sums do not depend on the order of addition."""
    leaves: int = 1
    """Number of results that it covers."""
    is_merged: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Entries to merge into one, in the order of their indexes."""

    entries: tuple[TreeEntry, ...]
    is_last: bool
    """Whether it covers all results."""

    @property
    def leaves(self) -> int:
        return sum(entry.leaves for entry in self.entries)


MergeNode = tuple[int, int]
"""Level and number of a node, which covers the 2 ** level indexes from number * 2 ** level on."""
Content = tuple[TreeEntry, ...]
Then = Callable[[TreeEntry], list[Merge]]


class MergeTree:
    """Merge tree of a reduction.

    If all results fit, they are merged once. If not, results that fill more than half of the room are merged as soon as
    they arrive, so that most neighbours fit after their merges: no merge waits for results elsewhere in the tree. Every
    method returns the merges that are ready; pass the answer of each to `merged`."""

    def __init__(self, room: int) -> None:
        """`room`: maximum tokens of all entries in a merge."""
        self._room = room
        self._total: int | None = None
        self._seen = 0
        self._arrived = 0
        self._size = 0
        self._settled: dict[MergeNode, Content] = {}
        self._undecided: dict[MergeNode, Content] = {}
        """Contents of which it is still unknown whether they are all results, or fit together with the rest."""
        self._then: dict[Merge, Then] = {}

    def put(self, index: int, entry: TreeEntry | None) -> list[Merge]:
        """Adds the result at an index; None means no result. Each index is added once, in any order."""
        self._arrived += 1
        self._size += 0 if entry is None else entry.size
        ready = self._settle((0, index), () if entry is None else (entry,))
        return ready + self.exists(index + 1)

    def exists(self, count: int) -> list[Merge]:
        """Sets the minimum number of results."""
        self._seen = max(self._seen, count)
        return self._retry_undecided()

    def expect(self, total: int) -> list[Merge]:
        """Sets the final number of results."""
        self._total = self._seen = total
        ready = self._retry_undecided()
        for level, number in list(self._settled):
            if self._is_beyond((level, number ^ 1)) and (level, number) in self._settled:
                ready += self._settle((level, number), self._settled.pop((level, number)))
        return ready

    def merged(self, merge: Merge, value: Any, size: int) -> list[Merge]:
        """Adds the answer of a merge."""
        return self._then.pop(merge)(TreeEntry(value, size, merge.leaves, is_merged=True))

    def overflowed(self, merge: Merge) -> list[Merge]:
        """Splits a merge that did not fit, so that its halves are merged first. Returns nothing if it cannot be made
        smaller."""
        middle = len(merge.entries) // 2
        halves = [merge.entries[:middle], merge.entries[middle:]]
        small = [_is_shortest(half) for half in halves]
        if not middle or all(small):
            return []
        then = self._then.pop(merge)
        return self._flush(halves, small, lambda sides: [self._merge(_both(sides), then, is_last=merge.is_last)])

    def _settle(self, node: MergeNode, content: Content) -> list[Merge]:
        """Moves up the tree from a node whose content will not change."""
        level, number = node
        if self._is_root(node):
            return self._finish(content)
        other = (level, number ^ 1)
        if self._is_beyond(other):
            return self._arrive((level + 1, number // 2), content)
        if other not in self._settled:
            self._settled[node] = content
            return []
        sides = [self._settled.pop(other), content] if number % 2 else [content, self._settled.pop(other)]
        return self._join((level + 1, number // 2), sides)

    def _join(self, node: MergeNode, sides: Sequence[Content]) -> list[Merge]:
        """Joins two sides. If they do not fit together, each is merged first, starting with large ones."""
        small = [True, True]
        if _size(_both(sides)) > self._room:
            small = [_is_shortest(side) or 2 * _size(side) <= self._room for side in sides]
            if all(small):
                small = [_is_shortest(side) for side in sides]
        if all(small):  # or they cannot be made smaller: then the caller reports the overflow
            return self._arrive(node, _both(sides))
        return self._flush(sides, small, lambda smaller: self._join(node, smaller))

    def _arrive(self, node: MergeNode, content: Content) -> list[Merge]:
        is_root, is_large = self._is_root(node), self._is_large(content)
        all_fit = self._all_fit if is_large else True
        if is_root is None or all_fit is None:
            self._undecided[node] = content
            return []
        if is_root:
            return self._finish(content)
        if is_large and not all_fit:
            return [self._merge(content, lambda entry: self._settle(node, (entry,)))]
        return self._settle(node, content)

    def _is_large(self, content: Content) -> bool:
        """Whether a content is large enough for a merge. Answers of merges wait until they do not fit, because each
        level of the tree is another request that the last merge waits for."""
        results = [entry for entry in content if not entry.is_merged]
        return len(content) > 1 and 2 * _size(results) > self._room

    def _finish(self, content: Content) -> list[Merge]:
        return [self._merge(content, lambda _: [], is_last=True)] if content else []

    def _flush(
        self, sides: Sequence[Content], small: Sequence[bool], then: Callable[[Sequence[Content]], list[Merge]]
    ) -> list[Merge]:
        """Merges each side that is not small, then continues with both."""
        done = list(sides)
        missing = small.count(False)

        def go_on(at: int) -> Then:
            def with_answer(entry: TreeEntry) -> list[Merge]:
                nonlocal missing
                done[at] = (entry,)
                missing -= 1
                return [] if missing else then(done)

            return with_answer

        return [self._merge(side, go_on(at)) for at, side in enumerate(sides) if not small[at]]

    def _merge(self, content: Content, then: Then, *, is_last: bool = False) -> Merge:
        merge = Merge(content, is_last)
        self._then[merge] = then
        return merge

    def _is_root(self, node: MergeNode) -> bool | None:
        """Whether a node covers all results; None while unknown."""
        level, number = node
        if number:
            return False
        if self._seen > 2**level:
            return False
        return None if self._total is None else True

    @property
    def _all_fit(self) -> bool | None:
        """Whether one merge is enough; None while unknown."""
        if self._size > self._room:
            return False
        return True if self._arrived == self._total else None

    def _is_beyond(self, node: MergeNode) -> bool:
        return self._total is not None and node[1] << node[0] >= self._total

    def _retry_undecided(self) -> list[Merge]:
        ready: list[Merge] = []
        for node in sorted(self._undecided):
            ready += self._arrive(node, self._undecided.pop(node))
        return ready


def _size(content: Sequence[TreeEntry]) -> int:
    return sum(entry.size for entry in content)


def _both(sides: Sequence[Content]) -> Content:
    return sides[0] + sides[1]


def _is_shortest(content: Content) -> bool:
    """Whether merging a content alone would not help, because it is empty or the answer of another merge."""
    return not content or (len(content) == 1 and content[0].is_merged)
