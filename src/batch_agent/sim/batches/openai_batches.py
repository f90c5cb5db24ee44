"""OpenAI's files and batches, in memory."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...batch_api.api_error import ApiError, not_found
from ...batch_api.lines import (
    InputLine,
    cancelled_line,
    check_lines,
    expired_line,
    response_line,
)
from ...batch_api.resources import (
    Batch,
    BatchProblem,
    RequestCounts,
    StoredFile,
    cannot_cancel,
    page_of,
    read_batch_request,
)
from ..openai_responses import error_body
from ..request_reader import Requests
from ..sim_config import BatchConfig
from .armed_faults import ArmedFault, ArmedFaults, BatchFault
from .batch_work import BatchWork, MovableClock, Outcome, WorkLine
from .line_runner import Billing, LineRunner, Read, prompt_tokens_of

_MAX_FILES_PAGE = 10_000


class _Job(NamedTuple):
    batch: Batch
    """The batch as it was created or as it failed validation."""
    work: BatchWork
    queued_tokens: int


class Files:
    """Contents and descriptions of files."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        self._files: dict[str, tuple[StoredFile, bytes]] = {}
        self._number = 0

    def upload(self, content_type: bytes, body: bytes) -> StoredFile:
        """Raises ApiError."""
        try:
            form = parse_form(content_type, body)
        except ValueError as error:
            raise ApiError(f"The upload cannot be read: {error}.") from error
        for name in ("file", "purpose"):
            if name not in form:
                raise ApiError(f"'{name}' is a required property", param=name)
        purpose = form["purpose"].value.decode(errors="replace")
        return self.add(form["file"].filename or "file", purpose, form["file"].value)

    def add(self, filename: str, purpose: str, content: bytes) -> StoredFile:
        self._number += 1
        file = StoredFile(f"file-{self._number:06d}", filename, purpose, len(content), int(self._clock.now()))
        self._files[file.id] = file, content
        return file

    def retrieve(self, file_id: str) -> StoredFile:
        """Raises ApiError."""
        return self._found(file_id)[0]

    def content(self, file_id: str) -> bytes:
        """Raises ApiError."""
        return self._found(file_id)[1]

    def delete(self, file_id: str) -> dict[str, Any]:
        """Raises ApiError."""
        self._found(file_id)
        del self._files[file_id]
        return {"id": file_id, "object": "file", "deleted": True}

    def lose(self, file_id: str) -> None:
        self._files.pop(file_id, None)

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Raises ApiError."""
        purpose = query.get("purpose")
        found = [file for file, _ in self._files.values() if purpose is None or file.purpose == purpose]
        return page_of(found if query.get("order") == "asc" else found[::-1], query, _MAX_FILES_PAGE)

    def _found(self, file_id: str) -> tuple[StoredFile, bytes]:
        if file_id not in self._files:
            raise not_found("File", file_id)
        return self._files[file_id]


class OpenAIBatches:
    """Batches over `files`. Methods raise ApiError."""

    def __init__(
        self,
        config: BatchConfig,
        requests: Requests,
        runner: LineRunner,
        billing: Billing,
        clock: MovableClock,
        armed: ArmedFaults,
        files: Files,
    ) -> None:
        self._config = config
        self._runner = runner
        self._billing = billing
        self._clock = clock
        self._armed = armed
        self._files = files
        self._reads: dict[str, Read] = {
            "/v1/chat/completions": requests.chat,
            "/v1/completions": requests.completion,
        }
        self._jobs: dict[str, _Job] = {}

    def create(self, body: Mapping[str, Any]) -> tuple[Batch, ArmedFault | None]:
        """Creates a batch. Returns it with the fault of its response."""
        wanted = read_batch_request(body, tuple(self._reads))
        content = self._files.content(wanted.input_file_id)
        fault = self._armed.take_for_batch()
        self._billing.submissions["openai"] += 1
        now = self._clock.now()
        batch_id = f"batch_{len(self._jobs) + 1:06d}"
        batch = Batch(batch_id, wanted.endpoint, wanted.input_file_id, int(now), wanted.metadata)
        read = self._reads[wanted.endpoint]
        checked = list(check_lines(content.splitlines(), wanted.endpoint, self._config.max_lines))
        problems = [each for each in checked if isinstance(each, BatchProblem)]
        lines = [WorkLine(each.custom_id, each.body) for each in checked if isinstance(each, InputLine)]
        tokens = sum(prompt_tokens_of(read, line.body) for line in lines)
        if not problems:
            problems = self._refusals(fault, tokens)
        if problems:
            failed = replace(batch.moved("failed", now), problems=problems)
            self._jobs[batch_id] = _Job(failed, BatchWork((), _never, now, 0), 0)
        else:

            def execute(line: WorkLine) -> Outcome:
                return self._runner.run(read, error_body, line)

            batch = replace(batch, counts=RequestCounts(total=len(lines)))
            work = BatchWork(lines, execute, now, self._config.seconds, fault)
            self._jobs[batch_id] = _Job(batch, work, tokens)
        # OpenAI validates after it has responded, so the response has no count of requests.
        return replace(batch, counts=RequestCounts()), fault

    def retrieve(self, batch_id: str) -> Batch:
        job = self._found(batch_id)
        if job.batch.has_ended:
            return job.batch
        job.work.advance(self._clock.now())
        batch = _shown(job)
        if job.work.has_ended:
            batch = self._with_files(batch, job.work)
            self._jobs[batch_id] = _Job(batch, job.work, 0)
        return batch

    def cancel(self, batch_id: str) -> Batch:
        if self.retrieve(batch_id).has_ended:
            raise cannot_cancel(self._jobs[batch_id].batch)
        self._jobs[batch_id].work.cancel(self._clock.now())
        return self.retrieve(batch_id)

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        return page_of([self.retrieve(batch_id) for batch_id in reversed(self._jobs)], query)

    def _refusals(self, fault: ArmedFault | None, tokens: int) -> list[BatchProblem]:
        if fault and fault.kind is BatchFault.FAILED:
            return [BatchProblem("invalid_json_line", "This line is not parseable as valid JSON.", None, 1)]
        limit = self._config.enqueued_tokens
        queued = sum(job.queued_tokens for job in list(map(self._advanced, self._jobs)))
        is_over = limit is not None and queued + tokens > limit
        if is_over or (fault and fault.kind is BatchFault.TOKEN_LIMIT):
            message = (
                f"Enqueued token limit reached for this model in organization sim. Limit: {limit or tokens:,} enqueued "
                "tokens. Please try again once some in_progress batches have been completed."
            )
            return [BatchProblem("token_limit_exceeded", message)]
        return []

    def _advanced(self, batch_id: str) -> _Job:
        self.retrieve(batch_id)
        return self._jobs[batch_id]

    def _with_files(self, batch: Batch, work: BatchWork) -> Batch:
        output, errors = list[bytes](), list[bytes]()
        for index, (line, outcome) in enumerate(zip(work.lines, work.outcomes, strict=True)):
            line_id = f"batch_req_{batch.id.removeprefix('batch_')}_{index}"
            if outcome.kind != "missing":
                (output if outcome.kind == "succeeded" else errors).append(_line(line_id, line.custom_id, outcome))
        output_id = self._files.add(f"{batch.id}_output.jsonl", "batch_output", b"".join(output)).id if output else None
        error_id = self._files.add(f"{batch.id}_error.jsonl", "batch_output", b"".join(errors)).id if errors else None
        if work.is_lost and output_id:
            self._files.lose(output_id)
        return replace(batch, output_file_id=output_id, error_file_id=error_id)

    def _found(self, batch_id: str) -> _Job:
        if batch_id not in self._jobs:
            raise not_found("Batch", batch_id, "batch_id")
        return self._jobs[batch_id]


def _shown(job: _Job) -> Batch:
    batch = job.batch
    for start in job.work.history:
        batch = batch.moved(start.phase, start.at)
    kinds = [outcome.kind for outcome in job.work.outcomes]
    completed = kinds.count("succeeded") + kinds.count("missing")
    return replace(batch, counts=RequestCounts(len(job.work.lines), completed, kinds.count("errored")))


def _line(line_id: str, custom_id: str, outcome: Outcome) -> bytes:
    match outcome.kind:
        case "expired":
            return expired_line(line_id, custom_id)
        case "cancelled":
            return cancelled_line(line_id, custom_id)
    body = outcome.body or error_body(outcome.status, "simulated failure of a line", "InternalServerError")
    return response_line(line_id, custom_id, outcome.status, f"req_{line_id}", body)


def _never(line: WorkLine) -> Outcome:
    raise AssertionError(f"a failed batch executes no line, got {line.custom_id!r}")


_BOUNDARY = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)
_NAME = re.compile(rb'[; ]name="([^"]*)"')
_FILENAME = re.compile(rb'filename="([^"]*)"')


class FormField(NamedTuple):
    value: bytes
    filename: str | None


def parse_form(content_type: bytes, body: bytes) -> dict[str, FormField]:
    """The fields of a form by name. Raises ValueError."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith(b"multipart/form-data") or not found:
        raise ValueError("the body must be multipart/form-data with a boundary")
    fields: dict[str, FormField] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + found[1])[1:]:
        if part.startswith(b"--"):
            return fields
        head, separator, value = part.partition(b"\r\n\r\n")
        name, filename = _NAME.search(head), _FILENAME.search(head)
        if not separator or not name:
            raise ValueError("a part of the form has no name")
        fields[name[1].decode()] = FormField(value, filename[1].decode(errors="replace") if filename else None)
    raise ValueError("the form has no end")
