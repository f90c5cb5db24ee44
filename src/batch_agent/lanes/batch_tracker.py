"""Tracker of one batch at a provider: creates it once, finds it again, waits for its end and reads its results."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.protocols.store import Submission
from ..schedule.retry import Backoff
from .batch_service import BatchLine, BatchService, BatchStatus, LineResult
from .submission_log import SubmissionLog

T = TypeVar("T")

CERTAIN_SECONDS = 15.0
"""Seconds after which a batch that is not listed was not created: a provider lists an accepted batch sooner."""
_ATTEMPTS = 8
"""Attempts of a failing call before the requests of the batch fail."""
_MISSING_ATTEMPTS = 5
"""Attempts of a call for a batch or a file that the provider does not have."""
_RETRY = Backoff(1.0, 60.0)
_LIMITED = Backoff(5.0, 600.0)
"""Delays while the provider accepts no further batches."""
_FINAL = frozenset({ErrorKind.AUTH, ErrorKind.TLS})
"""Failures that waiting does not resolve."""
_log = logging.getLogger("batch_agent")


class BatchGone(Exception):
    """Raised if the provider does not have the batch, or the file with its results."""


class CreationUnknown(Exception):
    """Raised if the provider neither confirms the creation of a batch nor lists its batches."""

    def __init__(self, error: BackendError) -> None:
        self.error = error


@dataclass(frozen=True, slots=True)
class BatchTracker:
    """Calls of a batch service, each repeated until its outcome is known. Methods raise BackendError and StoreError."""

    service: BatchService
    log: SubmissionLog
    polls: Backoff
    on_status: Callable[[Submission, BatchStatus], None]
    """Called with each status that is read."""

    async def create(self, submission: Submission, lines: Sequence[BatchLine]) -> tuple[Submission, BatchStatus]:
        """Creates the batch of a new submission. After a BackendError, there is no batch. Raises CreationUnknown."""
        failures = limited = 0
        while True:
            if not submission.file:
                file = await self._repeated(lambda: self.service.upload(lines))
                submission = await self.log.update(submission, file=file)
            try:
                status = await self.service.create(submission.wave, submission.file, lines)
                break
            except BackendError as error:
                _log.debug("The batch of wave %s was not confirmed: %s", submission.wave, error)
                delay = _RETRY.delay(failures)
                if error.kind is ErrorKind.RATE_LIMITED:
                    delay, limited = _LIMITED.delay(limited), limited + 1
                elif not _is_refusal(error):
                    if (found := await self.find(submission, CERTAIN_SECONDS)) is not None:
                        status = found
                        break
                    submission, failures = await self.log.update(submission, file=""), failures + 1
                elif error.kind is ErrorKind.NOT_FOUND and submission.file:
                    submission, failures = await self.log.update(submission, file=""), failures + 1
                else:
                    failures += 1
                    if not error.retryable:
                        raise
                if failures >= _ATTEMPTS:
                    raise
                await asyncio.sleep(max(error.retry_after or 0.0, delay))
        return await self.log.update(submission, batch=status.id), status

    async def adopt(self, submission: Submission, certain_in: float) -> tuple[Submission, BatchStatus] | None:
        """The batch of a submission that an earlier process recorded; None if it was not created. `certain_in`: seconds
        until no request of that process can arrive any more. Raises BatchGone and CreationUnknown."""
        if submission.batch:
            return submission, await self._read(submission.batch)
        status = await self.find(submission, certain_in)
        if status is None:
            return None
        return await self.log.update(submission, batch=status.id), status

    async def find(self, submission: Submission, certain_in: float) -> BatchStatus | None:
        """The batch of a submission whose creation was not confirmed; None if there is none and will be none. Raises
        CreationUnknown."""
        if (found := await self._listed(submission)) is not None:
            return found
        if submission.file:
            # A request still on its way to the provider cannot create a batch from a deleted file.
            await self._withdraw(submission.file)
        await asyncio.sleep(max(0.0, certain_in))
        return await self._listed(submission)

    async def wait(self, submission: Submission, status: BatchStatus) -> BatchStatus:
        """Waits for the end of a batch, however long it takes. Raises BatchGone."""
        polls = 0
        while status.state == "waiting":
            self.on_status(submission, status)
            await asyncio.sleep(self.polls.delay(polls))
            polls += 1
            status = await self._read(status.id)
        self.on_status(submission, status)
        return status

    async def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        """The results of a batch, each line once, even if reading fails several times on the way. Raises BatchGone if
        they are lost."""
        seen: set[str] = set()
        failures = missing = 0
        while True:
            try:
                async with aclosing(self.service.results(status)) as results:
                    async for result in results:
                        if result.id not in seen:
                            seen.add(result.id)
                            yield result
                return
            except BackendError as error:
                failures, missing = failures + 1, missing + (error.kind is ErrorKind.NOT_FOUND)
                if error.kind in _FINAL:
                    raise
                if missing >= _MISSING_ATTEMPTS:
                    raise BatchGone(str(error)) from error
                _log.debug("The results of batch %s cannot be read: %s", status.id, error)
                await asyncio.sleep(_RETRY.delay(failures - 1))

    async def _read(self, batch: str) -> BatchStatus:
        """Reads the status, however long the provider is unavailable: the batch continues meanwhile. Raises
        BatchGone."""
        failures = missing = 0
        while True:
            try:
                return await self.service.status(batch)
            except BackendError as error:
                failures, missing = failures + 1, missing + (error.kind is ErrorKind.NOT_FOUND)
                if error.kind in _FINAL:
                    raise
                if missing >= _MISSING_ATTEMPTS:
                    raise BatchGone(str(error)) from error
                _log.debug("Status of batch %s cannot be read: %s", batch, error)
                await asyncio.sleep(_RETRY.delay(failures - 1))

    async def _listed(self, submission: Submission) -> BatchStatus | None:
        """The submission's batch among those that the provider lists. Awaits candidates that can be recognized only by
        their results."""
        ids = frozenset(line_id(submission.wave, line.key) for line in submission.lines)
        try:
            for status in await self._repeated(lambda: self.service.find(submission), forever=True):
                while (is_own := await self._owns(status, ids)) is None:
                    status = await self.wait(submission, status)
                if is_own:
                    return status
        except BackendError as error:
            raise CreationUnknown(error) from error
        return None

    async def _owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        try:
            return await self._repeated(lambda: self.service.owns(status, ids), forever=True)
        except BackendError as error:
            if error.kind is ErrorKind.NOT_FOUND:  # another user's batch whose results were deleted
                return False
            raise

    async def _withdraw(self, file: str) -> None:
        try:
            await self.service.withdraw(file)
        except BackendError as error:
            _log.debug("File %s cannot be deleted: %s", file, error)

    async def _repeated(self, call: Callable[[], Awaitable[T]], *, forever: bool = False) -> T:
        """Returns the outcome of a call that may be repeated. `forever`: repeat until the outcome is known."""
        failures = 0
        while True:
            try:
                return await call()
            except BackendError as error:
                failures += 1
                if not error.retryable or (failures >= _ATTEMPTS and not forever):
                    raise
                await asyncio.sleep(max(error.retry_after or 0.0, _RETRY.delay(failures - 1)))


def line_id(wave: str, key: str) -> str:
    """The id of a request in its batch. Anthropic allows 64 letters, digits, hyphens and underscores."""
    return f"{wave}-{key}"


def _is_refusal(error: BackendError) -> bool:
    """Whether a batch was certainly not created, because the provider refused it or was not reached."""
    if error.status is None:
        return error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.TLS)
    return 400 <= error.status < 500 and error.status not in (408, 409)
