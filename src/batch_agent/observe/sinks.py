"""Everybody who watches a run, as one sink."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core.errors import SpecError
from ..core.events import Event
from ..core.protocols import EventSink, EventSinks, SlowSink
from .background_sink import BackgroundSink

_log = logging.getLogger("batch_agent")

Watcher = EventSink | SlowSink


def combine_sinks(events: EventSinks, folder: str | PathLike[str] | None = None) -> EventSink | None:
    """One sink for all of `events`. `folder`: of a run that leaves a log and a report there. Raises SpecError."""
    watchers = _listed(events)
    direct = [each for each in watchers if not isinstance(each, SlowSink)]
    slow = [each for each in watchers if isinstance(each, SlowSink)]
    if folder is not None:
        from .event_recorder import EventRecorder  # reads and writes JSON of all kinds of events

        slow.append(EventRecorder(Path(folder)))
    if not direct:
        return BackgroundSink(slow) if slow else None
    return FanOutSink([*direct, *([BackgroundSink(slow)] if slow else [])])


class FanOutSink:
    """Several sinks; those that have to be opened are, for as long as it is. One that fails is told no more, with a
    warning in the log, and is closed with the others: nothing that watches a run can end it."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        self._sinks = tuple(sinks)
        self._told = self._sinks
        self._open = ExitStack()

    def emit(self, event: Event) -> None:
        for sink in self._told:
            try:
                sink.emit(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - the user's: it must not take the run with it
                self._leave_out(sink)

    def emit_at(self, at: float, event: Event) -> None:
        """What happened a while ago, by `time.monotonic`. Those who have no use for times hear of it now."""
        for sink in self._told:
            try:
                if isinstance(sink, BackgroundSink):
                    sink.emit_at(at, event)
                else:
                    sink.emit(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - as above
                self._leave_out(sink)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for sink in self._sinks:
                if isinstance(sink, AbstractContextManager):
                    sink.__enter__()  # before anything is sent: one that cannot be opened is a mistake to be told of
                    opened.push(partial(_close, sink))
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told = self._sinks
        self._open.__exit__(kind, error, trace)

    def _leave_out(self, failed: EventSink) -> None:
        _log.warning("%s failed, and is told no more", type(failed).__name__, exc_info=True)
        self._told = tuple(sink for sink in self._told if sink is not failed)


def _close(sink: AbstractContextManager[Any], *why: Any) -> None:
    try:
        sink.__exit__(*why)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as above
        _log.warning("%s could not be closed", type(sink).__name__, exc_info=True)


def _listed(events: EventSinks) -> list[Watcher]:
    if events is None:
        return []
    listed: list[Watcher] = list(events) if isinstance(events, Sequence) else [events]
    for each in listed:
        if not isinstance(each, SlowSink) and not callable(getattr(each, "emit", None)):
            raise SpecError(f"events must be a sink with an emit(event) method, or a list of such; got {each!r}.")
    return listed
