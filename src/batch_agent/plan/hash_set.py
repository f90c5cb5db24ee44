"""Set of 64-bit hashes in few bytes: what a run keeps of each of its inputs."""

from array import array

_SEGMENTS = 64
_FIRST_SIZE = 16
"""Cells of a segment at first; always a power of two."""


class HashSet:
    """Set of numbers of 64 bits that are evenly distributed, as hashes are. Takes 12 to 24 bytes for each, where a set
    takes 70 and a dict 100.

    Open addressing. Segments grow one at a time, so that adding a number never takes long."""

    __slots__ = ("_counts", "_segments")

    def __init__(self) -> None:
        self._segments = [array("Q", bytes(8 * _FIRST_SIZE)) for _ in range(_SEGMENTS)]
        self._counts = [0] * _SEGMENTS

    def add(self, number: int) -> bool:
        """Adds a number. False if it was there."""
        number = number or 1  # 0 marks a free cell
        segment = number % _SEGMENTS
        cells = self._segments[segment]
        if not _put(cells, number):
            return False
        self._counts[segment] += 1
        if 3 * self._counts[segment] > 2 * len(cells):
            self._segments[segment] = _larger(cells)
        return True


def _put(cells: "array[int]", number: int) -> bool:
    mask = len(cells) - 1
    at = number // _SEGMENTS & mask
    while found := cells[at]:
        if found == number:
            return False
        at = at + 1 & mask
    cells[at] = number
    return True


def _larger(cells: "array[int]") -> "array[int]":
    larger = array("Q", bytes(16 * len(cells)))
    for number in cells:
        if number:
            _put(larger, number)
    return larger
