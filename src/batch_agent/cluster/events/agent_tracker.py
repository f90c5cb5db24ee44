"""Who has which agent, as far as it is known here: of what several workers tell, what makes one story."""

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

_PATIENCE = 2.0
"""Seconds that a result waits for what its worker has to tell of it."""
_UNASKED = 5.0
"""Seconds after its end when an agent of which nobody here gets the result is taken to be another caller's."""
_MOST_OVER = 100_000
"""Agents that are known to be done: what is told of them later is older than that."""

Emit = Callable[[str, float, Event], None]
"""Worker, when, and what."""


@dataclass(slots=True)
class _Agent:
    worker: str
    began: float
    last: float
    """When something happened to it."""


class AgentTracker:
    """An agent begins at one worker after the other, and is done once. What agents do is told by who has them; what
    they used counts, whoever tells it. Times are those of `time.monotonic`, and of an agent they never go back."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._agents: dict[str, _Agent] = {}
        self._held: dict[str, tuple[float, AgentFinished]] = {}
        self._ended: dict[str, float] = {}
        """Agents that have come to their end, and whose results have not."""
        self._over: dict[str, None] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether results wait for their workers."""
        return bool(self._held)

    def happened(self, worker: str, at: float, event: Event) -> None:
        match event:
            case AgentStarted():
                self._starts(worker, at, event)
            case AgentReassigned():
                if self._has(worker, event.key):
                    self._moves(event.key, at)
            case TurnStarted() | CallsStarted():
                if self._has(worker, event.key.partition(".")[0]):
                    self._emit(worker, self._not_before(event.key, at), event)
            case TurnEnded() | CallsEnded() | RequestRetried():
                self._emit(worker, self._not_before(event.key, at), event)
            case _:
                self._emit(worker, at, event)

    def has(self, worker: str, at: float, event: AgentStarted) -> None:
        """The agent has been there for a while, unless another one has begun it since."""
        if event.key not in self._agents and event.key not in self._ended:
            self._starts(worker, at, event)

    def ended(self, worker: str, key: str, now: float) -> None:
        """The agent came to its end there, and all was told of it."""
        if key in self._held:
            self._hand_on(self._held.pop(key)[1], now)
        elif key not in self._over and (key not in self._agents or self._has(worker, key)):
            self._ended[key] = now

    def finished(self, event: AgentFinished, now: float) -> None:
        """Its result is here. What was done for it elsewhere is still to be told."""
        key = event.result.key
        was_worked_on = not event.resumed and (event.result.ok or event.result.turns > 0)
        if was_worked_on and key not in self._ended and key not in self._over:
            self._held[key] = (now, event)
        else:
            self._hand_on(event, now)

    def leaves(self, worker: str, now: float) -> None:
        """The worker says no more."""
        for key in [key for key, agent in self._agents.items() if agent.worker == worker]:
            if key in self._held:
                self._hand_on(self._held.pop(key)[1], now)
            elif key not in self._ended:
                self._moves(key, now)

    def look(self, now: float) -> None:
        """Nothing waits for ever."""
        self._let_go(now, now - _PATIENCE, now - _UNASKED)

    def close(self, own: str, now: float) -> None:
        """The results that there are have come. What is under way elsewhere is so for others."""
        self._let_go(now, now, now)
        for key in [key for key, agent in self._agents.items() if agent.worker != own]:
            self._moves(key, now)

    def _let_go(self, now: float, held_since: float, ended_since: float) -> None:
        for key, _ in list(takewhile(lambda held: held[1][0] <= held_since, self._held.items())):
            self._hand_on(self._held.pop(key)[1], now)
        for key, _ in list(takewhile(lambda ended: ended[1] <= ended_since, self._ended.items())):
            self._moves(key, now)
            self._is_over(key)

    def _starts(self, worker: str, at: float, event: AgentStarted) -> None:
        known = self._agents.get(event.key)
        if event.key in self._over or (known is not None and (known.worker == worker or known.began > at)):
            return  # one that was cut off tells late what it had begun
        self._ended.pop(event.key, None)
        at = self._not_before(event.key, at)
        self._moves(event.key, at)
        self._agents[event.key] = _Agent(worker, at, at)
        self._emit(worker, at, event)

    def _moves(self, key: str, at: float) -> None:
        at = self._not_before(key, at)
        agent = self._agents.pop(key, None)
        if agent is not None:
            self._emit(agent.worker, at, AgentReassigned(key))

    def _hand_on(self, event: AgentFinished, now: float) -> None:
        key = event.result.key
        agent = self._agents.pop(key, None)
        self._is_over(key)
        self._emit("" if agent is None else agent.worker, now if agent is None else agent.last, event)

    def _is_over(self, key: str) -> None:
        self._ended.pop(key, None)
        self._over[key] = None
        if len(self._over) > _MOST_OVER:
            del self._over[next(iter(self._over))]

    def _has(self, worker: str, key: str) -> bool:
        agent = self._agents.get(key)
        return agent is not None and agent.worker == worker

    def _not_before(self, key: str, at: float) -> float:
        agent = self._agents.get(key.partition(".")[0])
        if agent is None:
            return at
        agent.last = max(agent.last, at)
        return agent.last
