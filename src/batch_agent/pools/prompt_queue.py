"""Prompts that wait to be sent, in order. Nothing here waits itself."""

from collections import deque
from collections.abc import Sequence

from ..core.fast_dataclass import dataclass
from .endpoint_state import PendingPrompt, fair_list

_FIRST_LIST = 16
_MOST_CHARS = 400_000
"""Characters in a list: a server reads all of it before it begins."""


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """How much is sent at once."""

    most: int = 512
    """Prompts that an endpoint has under way."""
    longest: int = 128
    """Prompts in a list; 1: each goes alone."""
    are_whole: bool = False
    """Answers come all at once, not piece by piece."""
    patience: float = 30.0
    """Seconds for which endpoints are waited for when all are down."""


class PromptQueue:
    """Who is sent next, with how many others in one list."""

    def __init__(self, asked: Sequence[PendingPrompt], places: int, longest: int) -> None:
        """`places`: how many endpoints there are. `longest`: prompts in a list."""
        self._asked = deque(asked)
        self._list_size = min(longest, fair_list(len(asked), places))
        self._first_list: int | None = None
        """Prompts in the first list of each endpoint, if that is shorter."""
        self._begun: set[int] = set()
        """Endpoints that were sent a list."""
        if self._list_size > 2 * _FIRST_LIST:
            self._first_list = _FIRST_LIST
            self._list_size = min(longest, fair_list(len(asked) - _FIRST_LIST * places, places))

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def head(self) -> PendingPrompt:
        return self._asked[0]

    @property
    def size(self) -> int:
        """Prompts in the next list, wherever it goes."""
        return min(self._list_size, self.head.company, len(self._asked))

    def size_at(self, place: int, size: int) -> int:
        """A server reads all of a list before it begins with any of it: the first one is short, so that it has
        something to do while it reads the others."""
        if self._first_list is None or place in self._begun:
            return size
        self._begun.add(place)
        return min(size, self._first_list)

    def next_list(self, size: int) -> list[PendingPrompt]:
        """Those under which a request broke off are among themselves."""
        taken, chars = [self._asked.popleft()], 0
        while self._asked and len(taken) < size:
            following = self._asked[0]
            chars += len(following.prompt)
            if chars > _MOST_CHARS or following.failures != taken[0].failures or len(taken) >= following.company:
                break
            taken.append(self._asked.popleft())
        return taken

    def take_again(self, asked: Sequence[PendingPrompt], *, come_next: bool) -> None:
        for each in asked:
            each.begin_anew()
        if come_next:
            self._asked.extendleft(reversed(asked))
        else:
            self._asked.extend(asked)

    def dissolve(self) -> list[PendingPrompt]:
        """All of them, who are in line no more."""
        asked = list(self._asked)
        self._asked.clear()
        return asked
