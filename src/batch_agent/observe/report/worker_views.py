"""Work of each worker of a distributed run."""

from typing import Any

from ...core.requests import Usage
from ..run_stats import Tokens


class WorkerViews:
    """Agents and turns by worker. The submitter has an empty name. Mutable: every event updates it."""

    def __init__(self) -> None:
        self._assigned: dict[int, str] = {}
        """Worker of each agent in progress, by row."""
        self._work: dict[str, _Work] = {}

    def assign(self, worker: str, row: int) -> None:
        """Notes that the worker starts the agent."""
        self._assigned[row] = worker

    def add_turn(self, worker: str, usage: Usage, cost: float | None) -> None:
        """`cost`: None if the price is unknown."""
        work = self._work.get(worker)
        if work is None:
            work = self._work[worker] = _Work()
        work.turns += 1
        work.used.add(usage)
        work.cost = None if work.cost is None or cost is None else work.cost + cost

    def finish(self, row: int) -> None:
        """Notes that the agent has answered or failed."""
        worker = self._assigned.pop(row, None)
        if worker is not None:
            self._work.setdefault(worker, _Work()).agents += 1

    def release(self, row: int) -> None:
        self._assigned.pop(row, None)

    def as_json(self) -> list[dict[str, Any]]:
        """Rows of all workers; empty for a run with one process."""
        if not self._work.keys() - {""}:
            return []
        return [{"name": name, **work.as_json()} for name, work in sorted(self._work.items())]


class _Work:
    __slots__ = ("agents", "cost", "turns", "used")

    def __init__(self) -> None:
        self.agents = 0
        self.turns = 0
        self.used = Tokens()
        self.cost: float | None = 0.0

    def as_json(self) -> dict[str, Any]:
        used = self.used
        return {
            "agents": self.agents,
            "turns": self.turns,
            "usage": {
                "input": used.input,
                "cached": used.cached,
                "written": used.usage.all_written,
                "output": used.output,
            },
            "cost": None if self.cost is None else round(self.cost, 6),
        }
