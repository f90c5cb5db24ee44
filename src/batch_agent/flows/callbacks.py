"""Functions of the user's in a flow, and what became of those that raised."""

import logging

from ..core.errors import ErrorKind
from ..core.events import CallbackFailed
from ..core.protocols import EventSink
from ..core.results import AgentError
from .result import Item

_log = logging.getLogger("batch_agent")


class Callbacks:
    """Failures of the functions of one flow: each is an event, a line in the log for the first of each function, and
    an item of the flow's result."""

    def __init__(self, events: EventSink | None = None, *, logs: bool = True) -> None:
        self._events = events
        self._logs = logs
        self._failed: list[Item] = []
        self._told: set[str] = set()

    def raised(self, where: str, item: Item, error: Exception) -> AgentError:
        """What is wrong with the item: the function at `where` raised."""
        said = f"{type(error).__name__}: {error}"
        reason = AgentError(ErrorKind.CALLBACK, f"{where} raised for item {item_position(item)}: {said}")
        self._failed.append(item.failed(where, reason))
        if self._events is not None:
            self._events.emit(CallbackFailed(where, item_position(item), said))
        if self._logs and where not in self._told:
            self._told.add(where)
            _log.warning("%s; later ones are counted only", reason.message, exc_info=error)
        return reason

    @property
    def failed(self) -> tuple[Item, ...]:
        """The items, in order."""
        return tuple(sorted(self._failed, key=lambda item: item.position))


def item_position(item: Item) -> str:
    """As people read it: 3, or 3.0 for the first of what item 3 was expanded into."""
    return ".".join(map(str, item.position))
