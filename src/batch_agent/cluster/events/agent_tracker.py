"""Merges the events of all workers into one consistent sequence per agent, and tracks which worker runs which agent."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from ...core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    RequestRetried,
    TurnEnded,
    TurnStarted,
)

_RESULT_WAIT = 2.0
"""Seconds that a result waits for the remaining events from its worker."""
_FOREIGN_AFTER = 5.0
"""Seconds after the end of an agent without a result, when it is assumed to belong to another submitter."""
_MAX_DONE = 100_000
"""Maximum number of finished agents that are remembered, so that late events about them can be ignored."""

Emit = Callable[[str, float, Event], None]
"""Worker, time and event."""


@dataclass(slots=True)
class _Agent:
    worker: str
    began: float
    last: float
    """Time of its last event."""


class AgentTracker:
    """An agent starts on one worker after another, and finishes once. Only starts on the worker that has the agent
    count; usage counts from every worker. Times are those of `time.monotonic` and never decrease for an agent."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._agents: dict[str, _Agent] = {}
        self._held: dict[str, tuple[float, AgentFinished]] = {}
        self._ended: dict[str, float] = {}
        """Agents that have ended but whose results have not arrived."""
        self._done: dict[str, None] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether any result waits for events from its worker."""
        return bool(self._held)

    def on_event(self, worker: str, at: float, event: Event) -> None:
        match event:
            case AgentStarted():
                self._start(worker, at, event)
            case AgentReassigned():
                if self._is_at(worker, event.key):
                    self._reassign(event.key, at)
            case TurnStarted() | CallsStarted():
                if self._is_at(worker, event.key.partition(".")[0]):
                    self._emit(worker, self._monotonic(event.key, at), event)
            case TurnEnded() | CallsEnded() | RequestRetried():
                self._emit(worker, self._monotonic(event.key, at), event)
            case _:
                self._emit(worker, at, event)

    def on_listed(self, worker: str, at: float, event: AgentStarted) -> None:
        """Handles an agent that was running before this process listened. Ignored if another worker has started it
        since."""
        if event.key not in self._agents and event.key not in self._ended:
            self._start(worker, at, event)

    def on_ended(self, worker: str, key: str, now: float) -> None:
        """Handles the end of an agent at a worker, after all events about it have arrived."""
        if key in self._held:
            self._emit_result(self._held.pop(key)[1], now)
        elif key not in self._done and (key not in self._agents or self._is_at(worker, key)):
            self._ended[key] = now

    def on_result(self, event: AgentFinished, now: float) -> None:
        """Handles the arrival of a result. Events from other processes may follow."""
        key = event.result.key
        was_worked_on = not event.resumed and (event.result.ok or event.result.turns > 0)
        if was_worked_on and key not in self._ended and key not in self._done:
            self._held[key] = (now, event)
        else:
            self._emit_result(event, now)

    def on_worker_left(self, worker: str, now: float) -> None:
        """Handles the departure of a worker, which sends no more events."""
        for key in [key for key, agent in self._agents.items() if agent.worker == worker]:
            if key in self._held:
                self._emit_result(self._held.pop(key)[1], now)
            elif key not in self._ended:
                self._reassign(key, now)

    def expire(self, now: float) -> None:
        """Stops waiting for overdue results and events."""
        self._expire(now, now - _RESULT_WAIT, now - _FOREIGN_AFTER)

    def close(self, own: str, now: float) -> None:
        """Ends the tracking after all results have arrived. Agents that still run elsewhere belong to other
        submitters."""
        self._expire(now, now, now)
        for key in [key for key, agent in self._agents.items() if agent.worker != own]:
            self._reassign(key, now)

    def _expire(self, now: float, held_since: float, ended_since: float) -> None:
        for key, _ in list(takewhile(lambda held: held[1][0] <= held_since, self._held.items())):
            self._emit_result(self._held.pop(key)[1], now)
        for key, _ in list(takewhile(lambda ended: ended[1] <= ended_since, self._ended.items())):
            self._reassign(key, now)
            self._mark_done(key)

    def _start(self, worker: str, at: float, event: AgentStarted) -> None:
        known = self._agents.get(event.key)
        if event.key in self._done or (known is not None and (known.worker == worker or known.began > at)):
            return  # an isolated worker is late in reporting agents that it had started
        self._ended.pop(event.key, None)
        at = self._monotonic(event.key, at)
        self._reassign(event.key, at)
        self._agents[event.key] = _Agent(worker, at, at)
        self._emit(worker, at, event)

    def _reassign(self, key: str, at: float) -> None:
        at = self._monotonic(key, at)
        agent = self._agents.pop(key, None)
        if agent is not None:
            self._emit(agent.worker, at, AgentReassigned(key))

    def _emit_result(self, event: AgentFinished, now: float) -> None:
        key = event.result.key
        agent = self._agents.pop(key, None)
        self._mark_done(key)
        self._emit("" if agent is None else agent.worker, now if agent is None else agent.last, event)

    def _mark_done(self, key: str) -> None:
        self._ended.pop(key, None)
        self._done[key] = None
        if len(self._done) > _MAX_DONE:
            del self._done[next(iter(self._done))]

    def _is_at(self, worker: str, key: str) -> bool:
        agent = self._agents.get(key)
        return agent is not None and agent.worker == worker

    def _monotonic(self, key: str, at: float) -> float:
        agent = self._agents.get(key.partition(".")[0])
        if agent is None:
            return at
        agent.last = max(agent.last, at)
        return agent.last
