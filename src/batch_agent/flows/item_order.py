"""Index of each item in the order of positions, known once the items before it have been counted."""

Position = tuple[int, ...]


class ItemOrder:
    """Maps positions to indices. A position is the index of an input, followed by an index for each expansion."""

    def __init__(self, expansions: int) -> None:
        self._length = expansions + 1
        self._counts: dict[Position, int] = {}
        self._offsets: dict[Position, list[int]] = {}

    def expanded(self, position: Position, count: int) -> None:
        self._counts[position] = count

    def index(self, position: Position) -> int | None:
        """The index of a position; None while an earlier item may still be expanded."""
        index = 0
        for depth, number in enumerate(position):
            offset = self._offset(position[:depth], number)
            if offset is None:
                return None
            index += offset
        return index

    def total(self, inputs: int) -> int | None:
        """The total number of items from this many inputs."""
        return self._offset((), inputs)

    def _offset(self, parent: Position, number: int) -> int | None:
        """Number of items under the first `number` children of a position."""
        if len(parent) + 1 == self._length:
            return number
        offsets = self._offsets.setdefault(parent, [0])
        while len(offsets) <= number:
            size = self._size((*parent, len(offsets) - 1))
            if size is None:
                return None
            offsets.append(offsets[-1] + size)
        return offsets[number]

    def _size(self, position: Position) -> int | None:
        if position not in self._counts:
            return None
        return self._offset(position, self._counts[position])
