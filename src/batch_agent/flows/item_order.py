"""Order of items: the index of each item by its position, known as soon as the items before it are counted."""

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
        """None while an item before it may still be expanded."""
        index = 0
        for depth, number in enumerate(position):
            offset = self._offset(position[:depth], number)
            if offset is None:
                return None
            index += offset
        return index

    def total(self, inputs: int) -> int | None:
        """The number of items from this many inputs."""
        return self._offset((), inputs)

    def _offset(self, parent: Position, number: int) -> int | None:
        """Items under the first `number` children of a position."""
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
