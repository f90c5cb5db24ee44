"""Tool calls of one agent: the pending ones, and the records of all others."""

from collections.abc import Mapping, Sequence

from ..core.messages import ToolCall, ToolResult
from ..core.protocols.tool_set import CallHistory
from ..core.results import CallRecord

_NO_RESULTS: Mapping[str, ToolResult] = {}
_NO_INDEXES: frozenset[int] = frozenset()
_NO_CALLS: frozenset[str] = frozenset()
"""Empty collections that all agents share, which saves memory per agent."""


class CallState:
    """Call state of a conversation. Records a call once its result is known, and keeps the calls that must not be
    executed twice."""

    __slots__ = ("_claimed", "_inherited", "_life", "_settled", "changes", "pending", "records")

    def __init__(self) -> None:
        self.pending: tuple[ToolCall, ...] = ()
        self.records: tuple[CallRecord, ...] = ()
        self.changes = _NO_INDEXES
        """Indexes in `records` of calls that changed something."""
        self._claimed = _NO_CALLS
        self._settled = _NO_RESULTS
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
        """Records the results of all calls of a turn."""
        self._record_changes(results)
        self.records += call_records(results)
        self.pending = ()
        self._drop_used(results)
        self._claimed, self._settled = _NO_CALLS, _NO_RESULTS

    def past(self, turn: int) -> CallHistory:
        claimed = self._claimed - self._settled.keys() if self._claimed else self._claimed
        return CallHistory(turn, self._settled, claimed, self._inherited, self.records, self._life)

    def _record_changes(self, results: tuple[ToolResult, ...]) -> None:
        first = len(self.records)
        changes = [
            first + number
            for number, result in enumerate(results)
            if result.source == "restored" or result.call.id in self._claimed
        ]
        if changes:
            self.changes |= frozenset(changes)

    def _drop_used(self, results: tuple[ToolResult, ...]) -> None:
        """Drops inherited results that were used: a result of an earlier attempt replaces one call of this attempt, not
        every later call with the same arguments."""
        for result in results:
            if result.source == "restored" and result.call.id not in self._settled:
                same = (result.call.name, result.call.arguments)
                kept = [(made.call.name, made.call.arguments) for made in self._inherited]
                if same in kept:
                    at = kept.index(same)
                    self._inherited = self._inherited[:at] + self._inherited[at + 1 :]


def call_records(results: Sequence[ToolResult]) -> tuple[CallRecord, ...]:
    """Records of calls, without the contents of their results."""
    return tuple(CallRecord(r.call.name, r.call.arguments, not r.is_error, r.seconds, r.source) for r in results)
