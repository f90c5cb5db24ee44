"""Host memory as a second tier of the KV cache, with LRU eviction: inclusive, as in vLLM's native offloading, or
exclusive, as in batch-agent-vllm."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import islice, takewhile


class HostTier:
    """Content hashes of the blocks in host memory. Every block that the device computes is also copied here; a full
    tier evicts the least recently used. Blocks that are found here are copied back to the device."""

    def __init__(self, num_blocks: int) -> None:
        self.loaded_blocks = 0
        self.stored_blocks = 0
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._copied = 0

    def match(self, hashes: Sequence[int], start: int) -> int:
        """Number of blocks from `start` on that are here without a gap."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, islice(hashes, start, None)))

    def store(self, hashes: Sequence[int]) -> None:
        """Copies computed blocks to the host."""
        self.stored_blocks += len(hashes)
        self._copied += len(hashes)
        self.touch(hashes)
        while len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)

    def load(self, hashes: Sequence[int], blocks: int) -> None:
        """Copies the last `blocks` of these to the device. All of them count as used."""
        self._copied += blocks
        self.loaded_blocks += blocks
        self.touch([key for key in hashes if key in self._blocks])

    def begin(self, agent: str) -> None:
        """Begins a request of this agent."""

    def end(self, agent: str, hashes: Sequence[int]) -> None:
        """Ends a request with these blocks. Without blocks, the agent does not return to them."""

    def touch(self, hashes: Sequence[int]) -> None:
        """Marks blocks as most recently used, the first of a sequence last, so that its tail is evicted before its
        head."""
        for key in reversed(hashes):
            self._blocks[key] = None
            self._blocks.move_to_end(key)

    def take_copied(self) -> int:
        """Number of blocks copied in either direction since the last call."""
        copied, self._copied = self._copied, 0
        return copied


class ExclusiveTier(HostTier):
    """Contexts of waiting agents. A context is copied here when its request ends, if there is room. The first copies to
    be evicted are those of agents with a running request. Agents without a name keep nothing here."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._contexts: dict[str, Sequence[int]] = {}
        self._running: dict[str, None] = {}
        """Agents that have a copy and a running request, in order of their starts."""
        self._users: Counter[int] = Counter()

    def store(self, hashes: Sequence[int]) -> None:
        """Does nothing: computed blocks stay on the device while their request runs."""

    def load(self, hashes: Sequence[int], blocks: int) -> None:
        self._copied += blocks
        self.loaded_blocks += blocks

    def begin(self, agent: str) -> None:
        if agent in self._contexts:
            self._running[agent] = None

    def end(self, agent: str, hashes: Sequence[int]) -> None:
        """Ends the agent's request. The agent returns to this context, unless it is empty."""
        before = self._contexts.get(agent, ())
        self._running.pop(agent, None)
        while (missing := [key for key in hashes if key not in self._blocks]) and self._running:
            if len(self._blocks) + len(missing) <= self._num_blocks:
                break
            self._remove(self._running.popitem()[0])
        if agent and hashes and len(self._blocks) + len(missing) <= self._num_blocks:
            self._blocks.update(dict.fromkeys(missing))
            self._users.update(hashes)
            self._copied += len(missing)
            self.stored_blocks += len(missing)
            self._contexts[agent] = hashes
            self._release(before)
        else:
            self._remove(agent)

    def _remove(self, agent: str) -> None:
        self._release(self._contexts.pop(agent, ()))

    def _release(self, hashes: Sequence[int]) -> None:
        self._users.subtract(hashes)
        for key in hashes:
            if self._users[key] <= 0:
                del self._users[key]
                del self._blocks[key]
