"""Seam of views: sinks of events and of exchanges."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..events import Event
from ..requests import Exchange


class EventSink(Protocol):
    """Sink for events. It must not block and must not raise."""

    def emit(self, event: Event) -> None: ...


@runtime_checkable
class SlowSink(Protocol):
    """Sink that may block: its methods are called in order from one thread. One that is used for several runs is closed
    after each."""

    def take(self, at: float, event: Event) -> None:
        """`at`: when it happened, in seconds since the epoch."""
        ...

    def flush(self) -> None:
        """Called after each batch of events."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ExchangeSink(Protocol):
    """Slow sink that may also get the requests of a run and the responses, in the thread of its other methods."""

    @property
    def wants_exchanges(self) -> bool:
        """If False, requests are not recorded."""
        ...

    def take_exchange(self, exchange: Exchange) -> None:
        """Called before the events that follow from the response."""
        ...


EventSinks = EventSink | SlowSink | Sequence[EventSink | SlowSink] | None
