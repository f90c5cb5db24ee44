"""Set of 64-bit hashes in few bytes: what a run keeps of each of its inputs."""

from array import array

_SEGMENTS = 64
_FIRST_SIZE = 16
"""Places of a segment at first; always a power of two."""


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
        number = number or 1  # 0 marks a free place
        segment = number % _SEGMENTS
        places = self._segments[segment]
        if not _put(places, number):
            return False
        self._counts[segment] += 1
        if 3 * self._counts[segment] > 2 * len(places):
            self._segments[segment] = _larger(places)
        return True


def _put(places: "array[int]", number: int) -> bool:
    mask = len(places) - 1
    at = number // _SEGMENTS & mask
    while found := places[at]:
        if found == number:
            return False
        at = at + 1 & mask
    places[at] = number
    return True


def _larger(places: "array[int]") -> "array[int]":
    larger = array("Q", bytes(16 * len(places)))
    for number in places:
        if number:
            _put(larger, number)
    return larger
