"""Interface of a provider's batches, which take a file of requests and return a result for each line, hours later."""

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
    """Unique within the account: it contains the id of the wave."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The provider answered a line."""

    id: str
    body: bytes
    """As the response to an ordinary request."""


@dataclass(frozen=True, slots=True)
class LineFailed:
    """The provider did not answer a line."""

    id: str
    error: BackendError


LineResult = Answered | LineFailed


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """State of a batch at the provider."""

    id: str
    state: Literal["waiting", "ended", "failed"]
    """failed: nothing was processed."""
    total: int = 0
    done: int = 0
    """Lines that were answered or have failed."""
    reported: str = ""
    """The state in the provider's words."""
    files: tuple[str, ...] = ()
    """Ids or URLs of the files with the results."""
    error: BackendError | None = None
    """Why it failed."""
    is_over_limit: bool = False
    """It failed because too many tokens are enqueued."""
    bad_lines: dict[int, BackendError] = field(default_factory=dict)
    """Lines that it failed for, by position."""


class BatchService(Protocol):
    """Batches of one provider. Methods raise BackendError."""

    @property
    def limits(self) -> SubmissionLimits: ...

    async def upload(self, lines: Sequence[BatchLine]) -> str:
        """Uploads the requests. Returns the id of the file; empty for a provider without files. Costs nothing, and may
        be repeated."""
        ...

    async def create(self, wave: str, file: str, lines: Sequence[BatchLine]) -> BatchStatus:
        """Creates the batch. If it fails, the batch may exist all the same: `find` tells."""
        ...

    async def find(self, submission: Submission) -> Sequence[BatchStatus]:
        """Batches that may be of this submission, newest first. Empty: it was not created, or only just now."""
        ...

    async def owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        """Whether a found batch has these lines. None: that is known only when it has ended."""
        ...

    async def withdraw(self, file: str) -> None:
        """Deletes an uploaded file, so that no batch can be created from it any more."""
        ...

    async def status(self, batch: str) -> BatchStatus: ...

    def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        """Results of a batch that has ended. Lines may be missing."""
        ...


@runtime_checkable
class OffersBatches(Protocol):
    """Backend that brings its own batch service."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def batch_service(self) -> BatchService: ...


def not_processed(what: str) -> BackendError:
    """The error of a line that the provider did not process, and does not bill."""
    return BackendError(ErrorKind.SERVER, what, status=NOT_BILLED)


def line_error(error: BackendError) -> BackendError:
    """The error of a line that failed. Load of the provider says nothing about this run, which sends no request while
    it waits; and a failed line is not billed."""
    is_passing = error.kind in (ErrorKind.RATE_LIMITED, ErrorKind.UNAVAILABLE, ErrorKind.CONNECTION, ErrorKind.SERVER)
    return not_processed(str(error)) if is_passing else error
