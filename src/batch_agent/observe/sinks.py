"""Combination of the event sinks of a run into one."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core.errors import SpecError
from ..core.events import Event, StageEvent
from ..core.fast_dataclass import dataclass
from ..core.protocols.event_sink import EventSink, EventSinks, SlowSink
from ..core.requests import RequestObserver
from ..lazy_imports import lazy_modules
from .background_sink import BackgroundSink

with lazy_modules(globals()):
    from . import event_recorder

_log = logging.getLogger("batch_agent")

Sink = EventSink | SlowSink


def combine_sinks(
    events: EventSinks, folder: str | PathLike[str] | None = None, progress: EventSink | None = None
) -> EventSink | None:
    """One sink for all of `events` and for `progress`. `folder`: directory for the event log and the report. Raises
    SpecError."""
    sinks = [*_as_list(events), *([] if progress is None else [progress])]
    direct = [each for each in sinks if not isinstance(each, SlowSink)]
    slow = [each for each in sinks if isinstance(each, SlowSink)]
    if folder is not None:
        slow.append(event_recorder.EventRecorder(Path(folder)))
    if not direct:
        return BackgroundSink(slow) if slow else None
    return FanOutSink([*direct, *([BackgroundSink(slow)] if slow else [])])


def request_observer(events: EventSink) -> RequestObserver | None:
    """Observer of the run's requests for a combined sink; None if none of its sinks wants them."""
    while isinstance(events, StageEvents):
        events = events.events
    sinks = events.sinks if isinstance(events, FanOutSink) else (events,)
    found = [each.request_observer for each in sinks if isinstance(each, BackgroundSink)]
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class StageEvents:
    """Sink that adds the name of a stage."""

    stage: str
    events: EventSink

    def emit(self, event: Event) -> None:
        self.events.emit(StageEvent(self.stage, event))


class FanOutSink:
    """Sink that passes events to several sinks, and opens and closes those that are context managers. A sink that
    raises gets no more events, with a warning in the log, and is closed with the others: no sink can end a run."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        self.sinks = tuple(sinks)
        self._active = self.sinks
        self._open = ExitStack()

    def emit(self, event: Event) -> None:
        for sink in self._active:
            try:
                sink.emit(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - a user's sink must not fail the run
                self._disable(sink)

    def emit_at(self, at: float, event: Event) -> None:
        """Emits a past event with its time, by `time.monotonic`. Sinks that take no times get it now."""
        for sink in self._active:
            try:
                if isinstance(sink, BackgroundSink):
                    sink.emit_at(at, event)
                else:
                    sink.emit(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - as above
                self._disable(sink)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for sink in self.sinks:
                if isinstance(sink, AbstractContextManager):
                    sink.__enter__()  # before any request is sent, so that the caller can fix an error
                    opened.push(partial(_close, sink))
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = self.sinks
        self._open.__exit__(kind, error, trace)

    def _disable(self, failed: EventSink) -> None:
        _log.warning("The event sink %s failed and gets no more events", type(failed).__name__, exc_info=True)
        self._active = tuple(sink for sink in self._active if sink is not failed)


def _close(sink: AbstractContextManager[Any], *exc_info: Any) -> None:
    try:
        sink.__exit__(*exc_info)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as above
        _log.warning("Closing the event sink %s failed", type(sink).__name__, exc_info=True)


def _as_list(events: EventSinks) -> list[Sink]:
    if events is None:
        return []
    listed: list[Sink] = list(events) if isinstance(events, Sequence) else [events]
    for each in listed:
        if not isinstance(each, SlowSink) and not callable(getattr(each, "emit", None)):
            raise SpecError(f"events must be a sink with an emit(event) method, or a list of sinks, got {each!r}.")
    return listed
