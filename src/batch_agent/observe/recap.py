"""What a checkpoint's agents came to, folded from their facts."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..core.facts import Fact, Returned
from ..core.results import AgentError, AgentResult
from ..core.rules import Rules
from .recorded import recorded_result, recorded_seconds

_SHOWN = 5


@dataclass(slots=True)
class Recap:
    """Mutable on purpose: agents are added one by one, and none of them is kept."""

    agents: int = 0
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first_failures: list[tuple[int, str, AgentError]] = field(default_factory=list)
    """Index, key, and why."""
    calls: Counter[str] = field(default_factory=Counter)
    """Tool calls by where their results came from."""
    failed_calls: int = 0
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def under_way(self) -> int:
        return self.agents - self.answered - self.failed

    @property
    def slowest(self) -> list[tuple[float, int, str]]:
        """Seconds, index and key, the slowest first."""
        return [(seconds, -before, key) for seconds, before, key in sorted(self._slowest, reverse=True)]

    def add(self, rules: Rules, index: int, key: str, facts: Sequence[Fact]) -> None:
        self.agents += 1
        self._count_calls(facts)
        heapq.heappush(self._slowest, (recorded_seconds(facts), -index, key))
        if len(self._slowest) > _SHOWN:
            heapq.heappop(self._slowest)
        result = recorded_result(rules, key, facts)
        if result is not None:
            self._count_end(result)

    def _count_calls(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Returned):
                self.calls.update(result.source for result in fact.results)
                self.failed_calls += sum(result.is_error for result in fact.results)

    def _count_end(self, result: AgentResult) -> None:
        if result.error is None:
            self.answered += 1
            return
        self.failures[result.error.kind] += 1
        if len(self.first_failures) < _SHOWN:
            self.first_failures.append((result.index, result.key, result.error))
