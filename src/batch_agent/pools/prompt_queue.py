"""Queue of the prompts that wait to be sent, and the size of their batches."""

from collections import deque
from collections.abc import Sequence

from ..core.fast_dataclass import dataclass
from .endpoint_state import PendingPrompt, fair_batch_size

_FIRST_BATCH = 16
_MAX_CHARS = 400_000
"""Maximum number of characters in a batch: a server reads all of it before it begins."""


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """Limits of one call of a pool."""

    max_prompts: int = 512
    """Maximum number of prompts in flight at an endpoint."""
    max_batch_size: int = 128
    """Maximum number of prompts in a request; 1: each prompt is sent alone."""
    is_unstreamed: bool = False
    """Whether answers arrive in one piece."""
    patience: float = 30.0
    """Seconds to wait for an endpoint when all are down."""


class PromptQueue:
    """Prompts in the order in which they are sent, and the size of the next batch."""

    def __init__(self, prompts: Sequence[PendingPrompt], endpoints: int, max_batch_size: int) -> None:
        """`endpoints`: number of endpoints."""
        self._prompts = deque(prompts)
        self._batch_size = min(max_batch_size, fair_batch_size(len(prompts), endpoints))
        self._first_batch: int | None = None
        """Size of the first batch of each endpoint, if it is smaller."""
        self._started: set[int] = set()
        """Endpoints that have received a batch."""
        if self._batch_size > 2 * _FIRST_BATCH:
            self._first_batch = _FIRST_BATCH
            rest = len(prompts) - _FIRST_BATCH * endpoints
            self._batch_size = min(max_batch_size, fair_batch_size(rest, endpoints))

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def head(self) -> PendingPrompt:
        return self._prompts[0]

    @property
    def size(self) -> int:
        """Size of the next batch at any endpoint."""
        return min(self._batch_size, self.head.max_batch_size, len(self._prompts))

    def size_at(self, endpoint: int, size: int) -> int:
        """The size of the next batch at this endpoint. A server reads a whole batch before it begins to answer, so the
        first batch is small: the server works on it while it reads the next ones."""
        if self._first_batch is None or endpoint in self._started:
            return size
        self._started.add(endpoint)
        return min(size, self._first_batch)

    def next_batch(self, size: int) -> list[PendingPrompt]:
        """Removes at most `size` prompts. Prompts with failed requests are not mixed with others."""
        taken, chars = [self._prompts.popleft()], 0
        while self._prompts and len(taken) < size:
            following = self._prompts[0]
            chars += len(following.prompt)
            is_separate = following.failures != taken[0].failures or len(taken) >= following.max_batch_size
            if chars > _MAX_CHARS or is_separate:
                break
            taken.append(self._prompts.popleft())
        return taken

    def put_back(self, prompts: Sequence[PendingPrompt], *, first: bool) -> None:
        """Queues prompts again, before or behind all others."""
        for prompt in prompts:
            prompt.reset()
        if first:
            self._prompts.extendleft(reversed(prompts))
        else:
            self._prompts.extend(prompts)

    def drain(self) -> list[PendingPrompt]:
        """Removes all prompts."""
        prompts = list(self._prompts)
        self._prompts.clear()
        return prompts
