"""View of one stage; a run without stages has one with an empty name."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.events import AgentFinished, RunStarted
from ...core.options.price import Price
from ...core.requests import NO_USAGE, Usage
from ...core.results import AgentResult
from ...core.run_reports import PrefixReport
from ...plan.row_keys import row_key
from ..event_codec import MAX_TEXT, answer_preview, truncated
from ..run_stats import Tokens

_MAX_LATEST = 8
_MAX_SLOWEST = 10
_MAX_KEPT_EXAMPLES = 20
_MAX_SHOWN_EXAMPLES = 3


@dataclass(slots=True)
class StageCounts:
    """Counts of agents. Mutable: summed row by row."""

    started: int = 0
    answered: int = 0
    failed: int = 0
    resumed: int = 0
    waiting: int = 0
    generating: int = 0
    tools: int = 0


class StageView:
    """View of a stage. Mutable: every event updates it."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.began: RunStarted | None = None
        self._price: Price | None = None
        self.added = 0
        """Agents of inputs that were added during the run."""
        self.queued = 0
        """Items of a flow that reached the stage in this process."""
        self.turns = 0
        self.retries = 0
        self.compactions = 0
        self.used = Tokens()
        """Usage of the turns in the log, and of summaries."""
        self.restored = NO_USAGE
        """Usage of answers from the checkpoint that are not in the log."""
        self.prefix: PrefixReport | None = None
        self.actors: dict[str, int] = {}
        """Agents of the stage and chunks of their long inputs, by key."""
        self.agents = 0
        self._failures: dict[str, dict[int, tuple[int, str, str]]] = {}
        self._kinds: dict[int, str] = {}
        self._latest: deque[tuple[float, AgentResult]] = deque(maxlen=_MAX_LATEST)
        self._slowest: list[tuple[float, int, dict[str, Any]]] = []

    @property
    def total(self) -> int | None:
        """Number of agents, if known."""
        return self.queued or self.inputs

    @property
    def inputs(self) -> int | None:
        """Number of agents for the inputs; None if inputs are streamed or come from another stage."""
        return None if self.began is None or self.began.total is None else self.began.total + self.added

    def begin(self, event: RunStarted) -> None:
        """Notes that a process starts its run."""
        self.began, self.added, self._price = event, 0, event.price

    def finished(self, at: float, row: int, event: AgentFinished) -> None:
        """Adds the result of an agent."""
        result = event.result
        self.compactions += result.compactions
        if result.error is not None:
            self._failed(row, result, result.error.kind, result.error.message[:MAX_TEXT])
        if event.resumed:
            return
        self._latest.append((at, result))
        seconds = round(result.timing.total, 3)
        if len(self._slowest) < _MAX_SLOWEST or seconds > self._slowest[-1][0]:
            self._note_slow(row, seconds, result)

    def clear_failure(self, row: int) -> None:
        """Removes the failure of an agent that is restarted."""
        kind = self._kinds.pop(row, None)
        if kind is not None:
            self._failures[kind].pop(row, None)

    def add_restored(self, result: AgentResult) -> None:
        """Adds the result of an agent that is not in the log."""
        self.turns += result.turns
        self.restored += result.usage

    def cost(self, usage: Usage) -> float | None:
        """Cost in dollars; None if the price is unknown."""
        return None if self._price is None else round(self._price.of(usage), 9)

    def as_json(self, counts: StageCounts, is_shown: Callable[[int], bool]) -> dict[str, Any]:
        """`is_shown`: whether the agent of a row belongs to the current run."""
        began, usage = self.began, self.used.usage + self.restored
        return {
            "name": self.name,
            "model": began.model if began else "",
            "backend": began.backend if began else "",
            "seen": list(began.seen) if began else [],
            "description": truncated(began.description) if began and began.description else None,
            "prices": list(began.prices) if began and began.prices else None,
            "total": self.total,
            "started": counts.started,
            "answered": counts.answered,
            "failed": counts.failed,
            "resumed": counts.resumed,
            "states": {"waiting": counts.waiting, "generating": counts.generating, "tools": counts.tools},
            "turns": self.turns,
            "retries": self.retries,
            "compactions": self.compactions,
            "usage": {
                "input": usage.input,
                "cached": usage.cached,
                "written": usage.all_written,
                "output": usage.output,
            },
            "cost": self.cost(usage),
            "lanes": self._lanes(usage),
            "prefix": None if self.prefix is None else _prefix(self.prefix),
            "failures": self._failures_as_json(is_shown),
            "latest": [_latest(at, result) for at, result in reversed(self._latest)],
            "slowest": [shown for _, row, shown in self._slowest if is_shown(row)],
        }

    def _lanes(self, usage: Usage) -> list[dict[str, Any]]:
        """Tokens and cost of each lane; empty if only the standard lane was used."""
        if usage.lanes == ("standard",):
            return []
        parts = [(lane, usage.of_lane(lane)) for lane in usage.lanes]
        return [
            {"lane": lane, "input": part.input, "output": part.output, "cost": self.cost(part)} for lane, part in parts
        ]

    def _failed(self, row: int, result: AgentResult, kind: str, message: str) -> None:
        self._kinds[row] = kind
        examples = self._failures.setdefault(kind, {})
        if len(examples) < _MAX_KEPT_EXAMPLES:
            examples[row] = (result.index, row_key(result.key), message)

    def _note_slow(self, row: int, seconds: float, result: AgentResult) -> None:
        shown = {
            "index": result.index,
            "key": row_key(result.key),
            "seconds": seconds,
            "turns": result.turns,
            "cost": self.cost(result.usage),
        }
        others = [each for each in self._slowest if each[1] != row]
        self._slowest = sorted([*others, (seconds, row, shown)], key=lambda each: -each[0])[:_MAX_SLOWEST]

    def _failures_as_json(self, is_shown: Callable[[int], bool]) -> list[dict[str, Any]]:
        counts = Counter(kind for row, kind in self._kinds.items() if is_shown(row))
        return [
            {
                "kind": kind,
                "count": count,
                "examples": [
                    {"index": index, "key": key, "message": message}
                    for row, (index, key, message) in self._failures[kind].items()
                    if is_shown(row)
                ][:_MAX_SHOWN_EXAMPLES],
            }
            for kind, count in counts.most_common()
        ]


def _latest(at: float, result: AgentResult) -> dict[str, Any]:
    text = answer_preview(result) if result.error is None else result.error.message[:MAX_TEXT]
    seconds = round(result.timing.total, 3)
    shown = {"index": result.index, "key": row_key(result.key), "ok": result.ok, "text": text}
    return {**shown, "seconds": seconds, "at": round(at, 2)}


def _prefix(prefix: PrefixReport) -> dict[str, Any]:
    return {
        "shared_tokens": prefix.shared_tokens,
        "prompt_tokens": prefix.prompt_tokens,
        "predicted": prefix.predicted,
        "measured": prefix.measured,
        "diverges_at": prefix.diverges_at,
        "findings": [str(each) for each in prefix.findings],
    }
