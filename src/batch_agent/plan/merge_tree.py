"""Which results are merged with which: a tree over their places, so that the order of their coming changes nothing."""

from collections.abc import Callable, Sequence
from typing import Any

from ..core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """What is shown of one result, or of several that were merged."""

    value: Any
    size: int
    """In whole tokens: sums do not depend on the order of what is added."""
    leaves: int = 1
    """Results that it stands for."""
    is_merged: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Entries to be made into one, in the order of their places."""

    entries: tuple[TreeEntry, ...]
    is_last: bool
    """All that there is goes into it."""

    @property
    def leaves(self) -> int:
        return sum(entry.leaves for entry in self.entries)


MergeNode = tuple[int, int]
"""A level and a number: the places from number * 2 ** level on, and 2 ** level of them."""
Content = tuple[TreeEntry, ...]
Then = Callable[[TreeEntry], list[Merge]]


class MergeTree:
    """If all results fit, they are merged once. If not, results that fill more than half of the room are merged as soon
    as they are there, so that what is left of neighbours mostly fits: nobody waits for results elsewhere in the tree.
    Every method gives the merges that can now be made; hand the answer of each to `merged`."""

    def __init__(self, room: int) -> None:
        """`room`: how large the entries of a merge may be together."""
        self._room = room
        self._total: int | None = None
        self._seen = 0
        self._there = 0
        self._size = 0
        self._settled: dict[MergeNode, Content] = {}
        self._parked: dict[MergeNode, Content] = {}
        """Contents of which nobody knows yet whether they are all that there is, or fit together with the rest."""
        self._then: dict[Merge, Then] = {}

    def put(self, place: int, entry: TreeEntry | None) -> list[Merge]:
        """What is at a place; None: nothing. Each place once, in any order."""
        self._there += 1
        self._size += 0 if entry is None else entry.size
        ready = self._settle((0, place), () if entry is None else (entry,))
        return ready + self.exists(place + 1)

    def exists(self, places: int) -> list[Merge]:
        """There are at least so many places."""
        self._seen = max(self._seen, places)
        return self._unpark()

    def expect(self, total: int) -> list[Merge]:
        """There are so many places, and no more."""
        self._total = self._seen = total
        ready = self._unpark()
        for level, number in list(self._settled):
            if self._is_beyond((level, number ^ 1)) and (level, number) in self._settled:
                ready += self._settle((level, number), self._settled.pop((level, number)))
        return ready

    def merged(self, merge: Merge, value: Any, size: int) -> list[Merge]:
        """The answer to a merge."""
        return self._then.pop(merge)(TreeEntry(value, size, merge.leaves, is_merged=True))

    def overflowed(self, merge: Merge) -> list[Merge]:
        """It did not fit after all: its halves are to be merged first. Nothing for one that cannot be made smaller."""
        middle = len(merge.entries) // 2
        halves = [merge.entries[:middle], merge.entries[middle:]]
        small = [_is_shortest(half) for half in halves]
        if not middle or all(small):
            return []
        then = self._then.pop(merge)
        return self._flush(halves, small, lambda sides: [self._merge(_both(sides), then, is_last=merge.is_last)])

    def _settle(self, node: MergeNode, content: Content) -> list[Merge]:
        """Goes up the tree from a node whose content will not change."""
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
        """Two sides that do not fit together are merged first, the larger ones before others."""
        small = [True, True]
        if _size(_both(sides)) > self._room:
            small = [_is_shortest(side) or 2 * _size(side) <= self._room for side in sides]
            if all(small):
                small = [_is_shortest(side) for side in sides]
        if all(small):  # or nothing makes them smaller: whoever merges them has to say so
            return self._arrive(node, _both(sides))
        return self._flush(sides, small, lambda smaller: self._join(node, smaller))

    def _arrive(self, node: MergeNode, content: Content) -> list[Merge]:
        is_root, is_large = self._is_root(node), self._is_large(content)
        all_fit = self._all_fit if is_large else True
        if is_root is None or all_fit is None:
            self._parked[node] = content
            return []
        if is_root:
            return self._finish(content)
        if is_large and not all_fit:
            return [self._merge(content, lambda entry: self._settle(node, (entry,)))]
        return self._settle(node, content)

    def _is_large(self, content: Content) -> bool:
        """Whether it is worth a merge by now. Answers to merges wait until they do not fit: each level of the tree is a
        request more that the last one waits for."""
        results = [entry for entry in content if not entry.is_merged]
        return len(content) > 1 and 2 * _size(results) > self._room

    def _finish(self, content: Content) -> list[Merge]:
        return [self._merge(content, lambda _: [], is_last=True)] if content else []

    def _flush(
        self, sides: Sequence[Content], small: Sequence[bool], then: Callable[[Sequence[Content]], list[Merge]]
    ) -> list[Merge]:
        """Merges each side that is not small, and goes on with both."""
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
        """Whether it holds all places; None while nobody knows."""
        level, number = node
        if number:
            return False
        if self._seen > 2**level:
            return False
        return None if self._total is None else True

    @property
    def _all_fit(self) -> bool | None:
        """Whether one merge is enough; None while nobody knows."""
        if self._size > self._room:
            return False
        return True if self._there == self._total else None

    def _is_beyond(self, node: MergeNode) -> bool:
        return self._total is not None and node[1] << node[0] >= self._total

    def _unpark(self) -> list[Merge]:
        ready: list[Merge] = []
        for node in sorted(self._parked):
            ready += self._arrive(node, self._parked.pop(node))
        return ready


def _size(content: Sequence[TreeEntry]) -> int:
    return sum(entry.size for entry in content)


def _both(sides: Sequence[Content]) -> Content:
    return sides[0] + sides[1]


def _is_shortest(content: Content) -> bool:
    """To merge it alone would not help: there is nothing, or the answer to another merge."""
    return not content or (len(content) == 1 and content[0].is_merged)
