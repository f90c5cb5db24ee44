"""Host memory as a second tier of the KV cache, as vLLM's native offloading has it: inclusive and LRU."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice, takewhile


class HostTier:
    """Content hashes of the blocks in host memory. Every block that the device computes is copied here too; a full tier
    evicts the least recently used. What is found here is copied to the device again."""

    def __init__(self, num_blocks: int) -> None:
        self.loaded_blocks = 0
        self.stored_blocks = 0
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._copied = 0

    def match(self, hashes: Sequence[int], start: int) -> int:
        """How many of the blocks from `start` on are here without a gap."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, islice(hashes, start, None)))

    def store(self, hashes: Sequence[int]) -> None:
        """Copies computed blocks here."""
        self.stored_blocks += len(hashes)
        self._copied += len(hashes)
        self.touch(hashes)
        while len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)

    def load(self, hashes: Sequence[int], blocks: int) -> None:
        """Copies the last `blocks` of these to the device; all of them have been used."""
        self._copied += blocks
        self.loaded_blocks += blocks
        self.touch([key for key in hashes if key in self._blocks])

    def begin(self, agent: str) -> None:
        """A request of this agent starts."""

    def end(self, agent: str, hashes: Sequence[int]) -> None:
        """A request with these blocks has ended; none: the agent does not return to them."""

    def touch(self, hashes: Sequence[int]) -> None:
        """Makes blocks the most recently used, the first of a sequence last: its tail is evicted before its head."""
        for key in reversed(hashes):
            self._blocks[key] = None
            self._blocks.move_to_end(key)

    def take_copied(self) -> int:
        """Blocks that were copied in either direction since the last call."""
        copied, self._copied = self._copied, 0
        return copied
