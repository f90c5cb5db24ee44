"""Whether a server that sends a request away wants less from everybody, or had only no room for that one."""

from collections import deque
from dataclasses import dataclass, field

_LAST = 7
_MOST = 5
"""Of the last requests. A server that is over its limits refuses one after the other, until something ends there; as
bad luck, so many of so few are as good as never seen where one in twenty is refused."""


@dataclass(slots=True)
class Refusals:
    """Told from the order in which requests were sent: answers take longer than refusals, so which of them came last
    says little."""

    _refused: deque[int] = field(default_factory=lambda: deque(maxlen=2 * _LAST))

    def are_most(self, request: int) -> bool:
        """The request of this number was refused: whether most of those that were sent just before it were, too."""
        self._refused.append(request)
        return sum(request - _LAST < number <= request for number in self._refused) >= _MOST
