"""Compact sets of hashes, for what a run keeps of each of its inputs."""

from array import array
from hashlib import blake2b

_SEGMENTS = 64
_FIRST_SIZE = 16
"""Initial number of cells in a segment. Always a power of two."""


class HashSet:
    """Set of evenly distributed 64-bit numbers, such as hashes. Takes 12 to 24 bytes per number, where a set takes 70
    and a dict 100.

    Open addressing. Segments grow one at a time, so that adding a number never takes long."""

    __slots__ = ("_counts", "_segments")

    def __init__(self) -> None:
        self._segments = [array("Q", bytes(8 * _FIRST_SIZE)) for _ in range(_SEGMENTS)]
        self._counts = [0] * _SEGMENTS

    def __len__(self) -> int:
        return sum(self._counts)

    def __contains__(self, number: int) -> bool:
        number = number or 1
        cells = self._segments[number % _SEGMENTS]
        mask = len(cells) - 1
        at = number // _SEGMENTS & mask
        while found := cells[at]:
            if found == number:
                return True
            at = at + 1 & mask
        return False

    def add(self, number: int) -> bool:
        """Adds a number. Returns False if it was already there."""
        number = number or 1  # 0 marks a free cell
        segment = number % _SEGMENTS
        cells = self._segments[segment]
        if not _put(cells, number):
            return False
        self._counts[segment] += 1
        if 3 * self._counts[segment] > 2 * len(cells):
            self._segments[segment] = _larger(cells)
        return True


class DigestSet:
    """Set of texts, kept as digests of 96 bits. Takes 18 to 36 bytes per text, where a set of strings takes 100.

    The probability that two different texts are taken for equal is 1 in 10^17 among a million texts, and 1 in 10^11
    among a billion. The digests in agents' keys have the same size."""

    __slots__ = ("_counts", "_segments")

    def __init__(self) -> None:
        self._segments = [DigestTable(_FIRST_SIZE) for _ in range(_SEGMENTS)]
        self._counts = [0] * _SEGMENTS

    def add(self, text: str) -> bool:
        """Adds a text. Returns False if it was already there."""
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=12).digest()
        number = int.from_bytes(digest[:8]) or 1  # 0 marks a free cell
        at = number % _SEGMENTS
        segment = self._segments[at]
        if not segment.put(number, int.from_bytes(digest[8:])):
            return False
        self._counts[at] += 1
        if 3 * self._counts[at] > 2 * len(segment.numbers):
            self._segments[at] = segment.larger()
        return True


class DigestTable:
    """Digests as numbers of 64 and 32 bits, in the same cells of two arrays."""

    __slots__ = ("numbers", "rests")

    def __init__(self, size: int) -> None:
        self.numbers = array("Q", bytes(8 * size))
        self.rests = array("I", bytes(4 * size))

    def put(self, number: int, rest: int) -> bool:
        numbers, mask = self.numbers, len(self.numbers) - 1
        at = number // _SEGMENTS & mask
        while found := numbers[at]:
            if found == number and self.rests[at] == rest:
                return False
            at = at + 1 & mask
        numbers[at] = number
        self.rests[at] = rest
        return True

    def larger(self) -> "DigestTable":
        larger = DigestTable(2 * len(self.numbers))
        for number, rest in zip(self.numbers, self.rests, strict=True):
            if number:
                larger.put(number, rest)
        return larger


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
