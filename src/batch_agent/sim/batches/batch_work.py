"""Work of one simulated batch. Its lines are executed as the clock advances."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ...batch_api.resources import WINDOW_SECONDS
from ...core.fast_dataclass import dataclass
from .armed_faults import ArmedFault, BatchFault

Phase = Literal["validating", "in_progress", "finalizing", "cancelling", "completed", "expired", "cancelled"]
_VALIDATED = 0.05
"""Share of a batch's time after which its first line can be done."""
_EXECUTED = 0.95
"""Share of a batch's time after which all lines are done."""
_CANCELLED = 0.05
"""Share of a batch's time that a cancellation takes."""


class Outcome(NamedTuple):
    """Outcome of a line. `body` is its response, or the error if `status` is not 200."""

    kind: Literal["succeeded", "errored", "expired", "cancelled", "missing"]
    status: int = 0
    body: bytes = b""


class WorkLine(NamedTuple):
    custom_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """A phase and its start time."""

    phase: Phase
    at: float


class BatchWork:
    """A batch in progress. Call `advance` before reading it."""

    def __init__(
        self,
        lines: Sequence[WorkLine],
        execute: Callable[[WorkLine], Outcome],
        created: float,
        seconds: float,
        fault: ArmedFault | None = None,
    ) -> None:
        self.lines = lines
        self.outcomes: list[Outcome] = []
        """Outcomes of the first lines; of all lines at the end."""
        self.history = [PhaseStart("validating", created)]
        self._execute = execute
        self._created = created
        self._seconds = seconds
        self._fault = fault
        self._cancelled_at: float | None = None

    @property
    def phase(self) -> Phase:
        return self.history[-1].phase

    @property
    def has_ended(self) -> bool:
        return self.phase in ("completed", "expired", "cancelled")

    @property
    def is_lost(self) -> bool:
        """Whether the results cannot be read."""
        return self._fault is not None and self._fault.kind is BatchFault.LOST_FILE

    def cancel(self, now: float) -> None:
        """Cancels the batch. Lines that have been executed keep their outcome; the others end as cancelled."""
        self.advance(now)
        if not self.has_ended and self._cancelled_at is None:
            self._cancelled_at = now
            self._begin("cancelling", now)

    def advance(self, now: float) -> None:
        if self.has_ended:
            return
        if self._cancelled_at is not None:
            ends = self._cancelled_at + self._seconds * _CANCELLED
            if now >= ends:
                self._end("cancelled", ends)
            return
        expires = self._created + WINDOW_SECONDS
        self._run_lines(min(now, expires))
        ends = self._created + self._seconds
        if now >= ends or now >= expires:
            is_expired = expires < ends or self._is(BatchFault.EXPIRED)
            self._end("expired" if is_expired else "completed", min(ends, expires))

    def _run_lines(self, now: float) -> None:
        starts = self._created + self._seconds * _VALIDATED
        done = self._created + self._seconds * _EXECUTED
        if now < starts:
            return
        self._begin("in_progress", starts)
        total = len(self.lines)
        due = total if now >= done else int(total * (now - starts) / (done - starts))
        if self._fault and self._is(BatchFault.EXPIRED):
            due = min(due, total - self._fault.count(total))
        while len(self.outcomes) < due:
            self.outcomes.append(self._outcome(len(self.outcomes)))
        if now >= done:
            self._begin("finalizing", done)

    def _outcome(self, index: int) -> Outcome:
        if self._fault and self._is(BatchFault.ERRORED) and self._fault.affects(index):
            return Outcome("errored", 500)
        if self._fault and self._is(BatchFault.MISSING) and self._fault.affects(index):
            return Outcome("missing")
        return self._execute(self.lines[index])

    def _end(self, phase: Literal["completed", "expired", "cancelled"], at: float) -> None:
        rest: Literal["expired", "cancelled"] = "cancelled" if phase == "cancelled" else "expired"
        self.outcomes += [Outcome(rest)] * (len(self.lines) - len(self.outcomes))
        self._begin(phase, at)

    def _begin(self, phase: Phase, at: float) -> None:
        if all(each.phase != phase for each in self.history):
            self.history.append(PhaseStart(phase, at))

    def _is(self, kind: BatchFault) -> bool:
        return self._fault is not None and self._fault.kind is kind


class MovableClock:
    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
