"""Sink for tests that keeps all events, and the live state after events."""

from batch_agent.core.events import Event, Notice
from batch_agent.observe.live.state import LiveState


class EventList:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


def state_after(*events: Event) -> LiveState:
    state = LiveState()
    for event in events:
        state.emit(event)
    return state
