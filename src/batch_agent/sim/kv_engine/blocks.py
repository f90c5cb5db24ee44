"""KV cache as a pool of numbered blocks, with reference counts, prefix lookup and LRU eviction."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile


class BlockPool:
    """Blocks with reference counts, found by content hash until they are reused.

    A released block keeps its content and waits at the end of the free list. Taking blocks evicts from its front."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._hash_of: list[int | None] = [None] * num_blocks
        self._block_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.num_blocks - len(self._free)

    def match(self, hashes: Iterable[int]) -> list[int]:
        """The blocks with the longest known prefix of `hashes`. They are not held until `hold`."""
        block_of = self._block_of
        return [block_of[key] for key in takewhile(block_of.__contains__, hashes)]

    def idle(self, blocks: Iterable[int]) -> int:
        """Number of `blocks` without references. These also count as free until they are held."""
        return sum(1 for block in blocks if not self._references[block])

    def hold(self, blocks: Iterable[int]) -> None:
        references = self._references
        for block in blocks:
            if not references[block]:
                del self._free[block]
            references[block] += 1

    def take(self, count: int) -> list[int]:
        """Takes `count` blocks and clears their content, the least recently released first. Raises IndexError if there
        are fewer."""
        if count > len(self._free):
            raise IndexError(f"{count} blocks wanted, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        self._forget(taken)
        for block in taken:
            self._references[block] = 1
        return taken

    def publish(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """Makes held blocks findable by their content. Of several blocks with the same content, the newest is found."""
        block_of, hash_of = self._block_of, self._hash_of
        for block, key in zip(blocks, hashes, strict=True):
            older = block_of.get(key)
            if older is not None:
                hash_of[older] = None
            block_of[key] = block
            hash_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Releases blocks, the last first, so that the tail of a sequence is evicted before its head."""
        references, free = self._references, self._free
        for block in reversed(blocks):
            left = references[block] = references[block] - 1
            if not left:
                free[block] = None

    def pass_through(self, hashes: Sequence[int], count: int, max_hits: int) -> int:
        """Accounts for a sequence of `count` blocks that ran while no block was held. Returns the number of hits.

        Equivalent to `match`, `hold`, `take`, `publish` and `release`, at a third of the cost."""
        refresh = self._free.move_to_end
        blocks = self.match(hashes[:max_hits])
        hits = len(blocks)
        for block in blocks:
            refresh(block)
        taken = list(islice(self._free, count - hits))
        self._forget(taken)
        self.publish(taken[: len(hashes) - hits], hashes[hits:])
        blocks += taken
        for block in reversed(blocks):
            refresh(block)
        return hits

    def _forget(self, blocks: Iterable[int]) -> None:
        block_of, hash_of = self._block_of, self._hash_of
        for block in blocks:
            known = hash_of[block]
            if known is not None:
                del block_of[known]
                hash_of[block] = None
