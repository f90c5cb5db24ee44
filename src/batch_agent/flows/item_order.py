"""The places of items in the order of their positions, each known as soon as it can be."""

Position = tuple[int, ...]


class ItemOrder:
    """A position is the number of an input, and after each expansion the number among what became of it."""

    def __init__(self, expansions: int) -> None:
        self._length = expansions + 1
        self._counts: dict[Position, int] = {}
        self._offsets: dict[Position, list[int]] = {}

    def expanded(self, position: Position, count: int) -> None:
        self._counts[position] = count

    def place(self, position: Position) -> int | None:
        """None while it is not known what became of all before it."""
        place = 0
        for depth, number in enumerate(position):
            offset = self._offset(position[:depth], number)
            if offset is None:
                return None
            place += offset
        return place

    def total(self, inputs: int) -> int | None:
        """All places of so many inputs."""
        return self._offset((), inputs)

    def _offset(self, parent: Position, number: int) -> int | None:
        """Places under the first so many children of a position."""
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
