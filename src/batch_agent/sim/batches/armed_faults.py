"""Faults that a test arms for the next batches or flex requests."""

from enum import StrEnum
from typing import Any

from ...core.fast_dataclass import dataclass
from ..request_errors import RequestError


class BatchFault(StrEnum):
    """A fault of a batch or a flex request."""

    EXPIRED = "expired"
    """The batch expires before a share of its lines is executed."""
    ERRORED = "errored"
    """A share of the lines fails with status 500."""
    MISSING = "missing"
    """A share of the lines is in neither file."""
    FAILED = "failed"
    """The batch fails in validation."""
    ERROR_AFTER_CREATE = "error_after_create"
    """The batch is created, but the response is a 500."""
    LOST_ANSWER = "lost_answer"
    """The batch is created, but the connection is closed without a response."""
    LOST_FILE = "lost_file"
    """The results of the batch return 404."""
    TOKEN_LIMIT = "token_limit"  # noqa: S105
    """The batch is refused because too many tokens are queued."""
    FLEX_UNAVAILABLE = "flex_unavailable"
    """A flex request is refused for lack of capacity."""


@dataclass(frozen=True, slots=True)
class ArmedFault:
    kind: BatchFault
    share: float = 0.5
    """Share of the affected lines, rounded up."""

    def affects(self, index: int) -> bool:
        """Whether the line at `index` is affected. Affected lines are spread evenly, beginning with the first."""
        return _ceil((index + 1) * self.share) > _ceil(index * self.share)

    def count(self, total: int) -> int:
        return min(total, _ceil(total * self.share))


class ArmedFaults:
    """Queue of faults. Each batch takes the first fault for batches, each flex request the first for flex requests."""

    def __init__(self) -> None:
        self._queue: list[ArmedFault] = []

    def arm(self, body: dict[str, Any]) -> None:
        """Raises RequestError."""
        try:
            fault = ArmedFault(BatchFault(body["fault"]), float(body.get("share", 0.5)))
            times = int(body.get("times", 1))
        except (KeyError, TypeError, ValueError) as error:
            known = ", ".join(BatchFault)
            raise RequestError(
                f'a fault is {{"fault": one of {known}, "times": 1, "share": 0.5}}: {error!r}'
            ) from error
        if not 0 <= fault.share <= 1:
            raise RequestError(f"share must be between 0 and 1, got {fault.share}")
        self._queue += [fault] * times

    def clear(self) -> None:
        self._queue.clear()

    def take_for_batch(self) -> ArmedFault | None:
        return self._take(for_flex=False)

    def take_for_flex(self) -> ArmedFault | None:
        return self._take(for_flex=True)

    def _take(self, *, for_flex: bool) -> ArmedFault | None:
        for index, fault in enumerate(self._queue):
            if (fault.kind is BatchFault.FLEX_UNAVAILABLE) == for_flex:
                return self._queue.pop(index)
        return None


def _ceil(value: float) -> int:
    return -int(-round(value, 9) // 1)
