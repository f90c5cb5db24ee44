"""Everybody who watches a run, as one sink."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ..core.errors import SpecError
from ..core.events import Event
from ..core.interfaces import EventSink
from .aside import Aside, SlowSink
from .recording import Recording

Watcher = EventSink | SlowSink
Watchers = Watcher | Sequence[Watcher] | None


def watched_by(events: Watchers, folder: str | Path | None = None) -> EventSink | None:
    """One sink for all of `events`. `folder`: of a run that leaves a log and a report there. Raises SpecError."""
    watchers = _listed(events)
    direct = [each for each in watchers if not isinstance(each, SlowSink)]
    slow = [each for each in watchers if isinstance(each, SlowSink)]
    if folder is not None:
        slow.append(Recording(Path(folder)))
    sinks = [*direct, *([Aside(slow)] if slow else [])]
    return sinks[0] if len(sinks) == 1 else Together(sinks) if sinks else None


class Together:
    """Several sinks; those that have to be opened are, for as long as it is."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        self._sinks = tuple(sinks)
        self._open = ExitStack()

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for sink in self._sinks:
                if isinstance(sink, AbstractContextManager):
                    opened.enter_context(sink)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)


def _listed(events: Watchers) -> list[Watcher]:
    if events is None:
        return []
    listed: list[Watcher] = list(events) if isinstance(events, Sequence) else [events]
    for each in listed:
        if not isinstance(each, SlowSink) and not callable(getattr(each, "emit", None)):
            raise SpecError(f"events must be a sink with an emit(event) method, or a list of such; got {each!r}.")
    return listed
