"""Callbacks: record of the user functions of a flow that raised."""

import logging

from ..core.errors import ErrorKind
from ..core.events import CallbackFailed
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentError
from .result import Item

_log = logging.getLogger("batch_agent")


class Callbacks:
    """Failures of the user functions of a flow. Each failure is an event and a failed item in the flow's result; the
    first one of each function is also logged."""

    def __init__(self, events: EventSink | None = None, *, logs: bool = True) -> None:
        self._events = events
        self._logs = logs
        self._failed: list[Item] = []
        self._logged: set[str] = set()

    def raised(self, where: str, item: Item, error: Exception) -> AgentError:
        """Records that the function at `where` raised for this item, and returns the item's error."""
        detail = f"{type(error).__name__}: {error}"
        reason = AgentError(ErrorKind.CALLBACK, f"{where} raised for item {item_position(item)}: {detail}")
        self._failed.append(item.failed(where, reason))
        if self._events is not None:
            self._events.emit(CallbackFailed(where, item_position(item), detail))
        if self._logs and where not in self._logged:
            self._logged.add(where)
            _log.warning("%s; further failures of this function are only counted", reason.message, exc_info=error)
        return reason

    @property
    def failed(self) -> tuple[Item, ...]:
        """The failed items, in order."""
        return tuple(sorted(self._failed, key=lambda item: item.position))


def item_position(item: Item) -> str:
    """The position as text: 3, or 3.0 for the first item that item 3 was expanded into."""
    return ".".join(map(str, item.position))
