"""What each process did, of a run that several share."""

from typing import Any

from ...core.requests import Usage
from ..run_stats import Tokens


class WorkerViews:
    """The one that asks has no name. Mutable on purpose: folded from their events."""

    def __init__(self) -> None:
        self._at: dict[int, str] = {}
        """By row: who has an agent that is under way."""
        self._works: dict[str, _Work] = {}

    def has(self, worker: str, row: int) -> None:
        """The agent is there from now on."""
        self._at[row] = worker

    def turned(self, worker: str, usage: Usage) -> None:
        work = self._works.get(worker)
        if work is None:
            work = self._works[worker] = _Work()
        work.turns += 1
        work.used.add(usage)

    def ended(self, row: int) -> None:
        """The agent has its answer, or has failed."""
        worker = self._at.pop(row, None)
        if worker is not None:
            self._works.setdefault(worker, _Work()).agents += 1

    def left(self, row: int) -> None:
        self._at.pop(row, None)

    def as_json(self) -> list[dict[str, Any]]:
        """Nothing of a run that one process did alone."""
        if not self._works.keys() - {""}:
            return []
        return [{"name": name, **work.as_json()} for name, work in sorted(self._works.items())]


class _Work:
    __slots__ = ("agents", "turns", "used")

    def __init__(self) -> None:
        self.agents = 0
        self.turns = 0
        self.used = Tokens()

    def as_json(self) -> dict[str, Any]:
        used = self.used
        return {
            "agents": self.agents,
            "turns": self.turns,
            "usage": {"input": used.input, "cached": used.cached, "output": used.output},
        }
