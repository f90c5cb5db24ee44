"""The calls of one agent: those that it waits for, and what is known of all others."""

from collections.abc import Mapping, Sequence

from ..core.messages import ToolCall, ToolResult
from ..core.protocols import CallHistory
from ..core.results import CallRecord

_NONE: Mapping[str, ToolResult] = {}
_NO_PLACES: frozenset[int] = frozenset()
_NO_CALLS: frozenset[str] = frozenset()
"""One for all agents: Python makes a new one each time."""


class CallState:
    """Counts a call as made when its result is there, and remembers those that must not be made twice."""

    __slots__ = ("_claimed", "_inherited", "_life", "_settled", "changes", "pending", "records")

    def __init__(self) -> None:
        self.pending: tuple[ToolCall, ...] = ()
        self.records: tuple[CallRecord, ...] = ()
        self.changes = _NO_PLACES
        """Places in `records` of calls that changed something."""
        self._claimed = _NO_CALLS
        self._settled = _NONE
        self._inherited: tuple[ToolResult, ...] = ()
        self._life = 0

    def claimed(self, call: ToolCall) -> None:
        self._claimed |= {call.id}

    def withdrawn(self, call: ToolCall) -> None:
        self._claimed -= {call.id}

    def settled(self, result: ToolResult) -> None:
        self._settled = {**self._settled, result.call.id: result}

    def inherited(self, results: tuple[ToolResult, ...]) -> None:
        self._inherited += results
        self._life = len(results)

    def returned(self, results: tuple[ToolResult, ...]) -> None:
        """The calls of a turn were answered."""
        self._note_changes(results)
        self.records += call_records(results)
        self.pending = ()
        self._forget_made(results)
        self._claimed, self._settled = _NO_CALLS, _NONE

    def past(self, turn: int) -> CallHistory:
        claimed = self._claimed - self._settled.keys() if self._claimed else self._claimed
        return CallHistory(turn, self._settled, claimed, self._inherited, self.records, self._life)

    def _note_changes(self, results: tuple[ToolResult, ...]) -> None:
        first = len(self.records)
        changes = [
            first + number
            for number, result in enumerate(results)
            if result.source == "restored" or result.call.id in self._claimed
        ]
        if changes:
            self.changes |= frozenset(changes)

    def _forget_made(self, results: tuple[ToolResult, ...]) -> None:
        """What an earlier life has made stands for one call of this one, not for every later one like it."""
        for result in results:
            if result.source == "restored" and result.call.id not in self._settled:
                same = (result.call.name, result.call.arguments)
                kept = [(made.call.name, made.call.arguments) for made in self._inherited]
                if same in kept:
                    at = kept.index(same)
                    self._inherited = self._inherited[:at] + self._inherited[at + 1 :]


def call_records(results: Sequence[ToolResult]) -> tuple[CallRecord, ...]:
    """Calls as they went, without what they gave."""
    return tuple(CallRecord(r.call.name, r.call.arguments, not r.is_error, r.seconds, r.source) for r in results)
