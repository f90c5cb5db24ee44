"""Interface of a provider's batches: takes requests in a file, and returns a result for each line, hours later."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

from ..backends.dialects.dialect import Dialect
from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.protocols.store import Submission
from ..schedule.lanes.waves import SubmissionLimits

NOT_BILLED = 503
"""Status of lines that the provider did not process."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request in a batch."""

    id: str
    """Unique within the account, because it contains the id of the wave."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """A line that the provider answered."""

    id: str
    body: bytes
    """The body, as in the response to an ordinary request."""


@dataclass(frozen=True, slots=True)
class LineFailed:
    """A line that the provider did not answer."""

    id: str
    error: BackendError


LineResult = Answered | LineFailed


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """State of a batch at the provider."""

    id: str
    state: Literal["waiting", "ended", "failed"]
    """"failed" means that nothing was processed."""
    total: int = 0
    done: int = 0
    """Number of lines that were answered or have failed."""
    reported: str = ""
    """The state in the provider's own words."""
    files: tuple[str, ...] = ()
    """Files with the results."""
    error: BackendError | None = None
    """Why the batch failed."""
    is_over_limit: bool = False
    """Whether it failed because too many tokens are enqueued."""
    bad_lines: dict[int, BackendError] = field(default_factory=dict)
    """Lines that made it fail, by position."""


class BatchService(Protocol):
    """Batches of one provider. Methods raise BackendError."""

    @property
    def limits(self) -> SubmissionLimits: ...

    async def upload(self, lines: Sequence[BatchLine]) -> str:
        """Uploads the requests, and returns the id of the file; empty for a provider without files. Costs nothing, and
        may be repeated."""
        ...

    async def create(self, wave: str, file: str, lines: Sequence[BatchLine]) -> BatchStatus:
        """Creates the batch. After a failure, the batch may still exist: `find` tells."""
        ...

    async def find(self, submission: Submission) -> Sequence[BatchStatus]:
        """Batches that may belong to this submission, newest first. Empty if it was not created, or only just now."""
        ...

    async def owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        """Whether a found batch has these lines; None if that is known only after it has ended."""
        ...

    async def withdraw(self, file: str) -> None:
        """Deletes an uploaded file, so that no batch can be created from it any more."""
        ...

    async def status(self, batch: str) -> BatchStatus: ...

    def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        """Results of an ended batch. Lines may be missing."""
        ...


@runtime_checkable
class OffersBatches(Protocol):
    """Backend with a batch service of its own."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def batch_service(self) -> BatchService: ...


def not_processed(what: str) -> BackendError:
    """The error of a line that the provider neither processed nor bills."""
    return BackendError(ErrorKind.SERVER, what, status=NOT_BILLED)


def line_error(error: BackendError) -> BackendError:
    """The error of a failed line. It is not counted as overload: the provider's load says nothing about this run, which
    sends no requests while it waits. A failed line is not billed."""
    is_passing = error.kind in (ErrorKind.RATE_LIMITED, ErrorKind.UNAVAILABLE, ErrorKind.CONNECTION, ErrorKind.SERVER)
    return not_processed(str(error)) if is_passing else error
