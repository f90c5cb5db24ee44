"""Log of submissions: records which request is in which batch, in the checkpoint and in memory."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ..core.protocols.store import EarlierSubmission, KeepsSubmissions, Submission, SubmittedLine


class SubmissionLog:
    """Submissions with requests whose results no agent has received. The intent is durable before a batch is
    created."""

    def __init__(self, store: KeepsSubmissions) -> None:
        self._store = store
        self._lines: dict[str, tuple[str, SubmittedLine]] = {}
        """The latest wave of each request."""
        self._submissions: dict[str, Submission] = {}
        self._ended_before: set[str] = set()

    async def open(self) -> None:
        """Reads the submissions of earlier processes. Raises StoreError."""
        for submission in await self._store.submissions():
            self._add(submission)
            if submission.has_ended:
                self._ended_before.add(submission.wave)

    def find(self, key: str) -> Submission | None:
        """The latest submission with this request."""
        found = self._lines.get(key)
        return None if found is None else self._submissions[found[0]]

    def earlier(self, key: str) -> EarlierSubmission | None:
        """The earlier submission of a request, if any."""
        found = self._lines.get(key)
        return None if found is None else EarlierSubmission(found[1], found[0] in self._ended_before)

    @property
    def unfinished(self) -> list[Submission]:
        """Submissions whose batches are not known to have ended."""
        return [each for each in self._submissions.values() if not each.has_ended]

    async def intend(self, wave: str, lines: Sequence[SubmittedLine]) -> Submission:
        """Records that these requests are about to be submitted. Raises StoreError."""
        submission = Submission(wave, time.time(), tuple(lines))
        await self._store.save_submission(submission)
        self._add(submission)
        return submission

    async def update(
        self, submission: Submission, *, file: str | None = None, batch: str | None = None, has_ended: bool = False
    ) -> Submission:
        """Records new information on a submission. Raises StoreError."""
        changed = replace(
            submission,
            file=submission.file if file is None else file,
            batch=submission.batch if batch is None else batch,
            has_ended=submission.has_ended or has_ended,
        )
        if changed != submission:
            await self._store.save_submission(changed)
            self._submissions[submission.wave] = changed
        return changed

    def release(self, wave: str, key: str) -> None:
        """Permits another submission of the request: an agent has received its result, or there is none."""
        found = self._lines.get(key)
        if found is not None and found[0] == wave:
            del self._lines[key]

    def take(self, wave: str, keys: Sequence[str]) -> None:
        """Records that the results of these requests are no longer needed."""
        self._store.take_lines(wave, keys)

    def forget(self, submission: Submission) -> None:
        """Forgets a submission that has no batch, or none that was processed."""
        keys = [line.key for line in submission.lines]
        for key in keys:
            self.release(submission.wave, key)
        self._submissions.pop(submission.wave, None)
        self.take(submission.wave, keys)

    def _add(self, submission: Submission) -> None:
        self._submissions[submission.wave] = submission
        for line in submission.lines:
            self._lines[line.key] = submission.wave, line
