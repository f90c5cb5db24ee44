"""Host memory as an addition to the device's KV cache, as the exclusive tier of batch-agent-vllm has it."""

from collections import Counter
from collections.abc import Sequence

from .host_tier import HostTier


class ExclusiveTier(HostTier):
    """Contexts of agents that wait. A context is copied here when its request ends, if there is room; the copy of an
    agent whose request runs is the first to go. Agents that are not named keep nothing here."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._contexts: dict[str, Sequence[int]] = {}
        self._running: dict[str, None] = {}
        """Agents with a copy whose request runs, in the order of their starts."""
        self._users: Counter[int] = Counter()

    def store(self, hashes: Sequence[int]) -> None:
        """Computed blocks stay on the device while their request runs."""

    def load(self, hashes: Sequence[int], blocks: int) -> None:
        self._copied += blocks
        self.loaded_blocks += blocks

    def begin(self, agent: str) -> None:
        if agent in self._contexts:
            self._running[agent] = None

    def end(self, agent: str, hashes: Sequence[int]) -> None:
        """The agent's request has ended, and it returns to this context; an empty one: it does not."""
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
