"""Anthropic's Message Batches: requests are in the call that creates the batch, and results are JSONL."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from ..backends.dialects.response_body import list_or_empty, object_or_empty, read_object, text_or_empty
from ..backends.http.client import ServerClient
from ..backends.http.json_body import BadJson, loads
from ..backends.http_errors import error_message, named_error
from ..core.errors import BackendError, ErrorKind
from ..core.json import dumps
from ..core.protocols.store import Submission
from ..schedule.lanes.waves import SubmissionLimits
from .batch_service import Answered, BatchLine, BatchStatus, LineFailed, LineResult, line_error, not_processed

_TIMEOUT = 60.0
_TRANSFER_TIMEOUT = 600.0
_PAGE = 100
_CLOCK_SKEW = 3600.0
"""Seconds by which the provider's clock may differ. Batches that were created earlier than that are not searched."""
_PATH = "/messages/batches"


class AnthropicBatchService:
    """`/messages/batches`. A batch has no metadata, so one whose creation was not confirmed is found by its time and
    its number of requests, and recognized by the ids in its results."""

    limits = SubmissionLimits(100_000, 240_000_000)

    def __init__(self, server: ServerClient) -> None:
        self._server = server

    async def upload(self, lines: Sequence[BatchLine]) -> str:
        return ""

    async def create(self, wave: str, file: str, lines: Sequence[BatchLine]) -> BatchStatus:
        requests = [b'{"custom_id":%b,"params":%b}' % (dumps(line.id), line.body) for line in lines]
        body = b'{"requests":[' + b",".join(requests) + b"]}"
        return _status(await self._server.call("POST", self._server.url(_PATH), _TRANSFER_TIMEOUT, body))

    async def find(self, submission: Submission) -> Sequence[BatchStatus]:
        found: list[BatchStatus] = []
        after = ""
        while True:
            query = {"limit": str(_PAGE), **({"after_id": after} if after else {})}
            page = read_object(await self._server.get(self._server.url(_PATH).update_query(query), _TIMEOUT))
            batches = [each for each in list_or_empty(page.get("data")) if isinstance(each, dict)]
            times = [_seconds(each.get("created_at")) for each in batches]
            statuses = [_read_status(each) for each in batches]
            found += [
                status
                for status, at in zip(statuses, times, strict=True)
                if status.total == len(submission.lines) and (at is None or at >= submission.at - _CLOCK_SKEW)
            ]
            is_past = bool(times) and times[-1] is not None and times[-1] < submission.at - _CLOCK_SKEW
            if not batches or not page.get("has_more") or is_past:
                return found
            after = text_or_empty(page.get("last_id")) or statuses[-1].id

    async def owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        if status.state == "waiting":
            return None
        async with aclosing(self.results(status)) as results:
            async for result in results:
                return result.id in ids
        return False

    async def withdraw(self, file: str) -> None:
        """Does nothing: there are no files."""

    async def status(self, batch: str) -> BatchStatus:
        return _status(await self._server.get(self._server.url(f"{_PATH}/{batch}"), _TIMEOUT))

    async def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        url = self._server.url(f"{_PATH}/{status.id}/results")
        async with aclosing(self._server.lines(url, _TIMEOUT)) as lines:
            async for line in lines:
                if (result := _line_result(line)) is not None:
                    yield result


def _status(data: bytes) -> BatchStatus:
    batch = read_object(data)
    if not text_or_empty(batch.get("id")):
        raise BackendError(ErrorKind.SERVER, f"The response is not a batch: {data[:200]!r}")
    return _read_status(batch)


def _read_status(batch: Mapping[str, Any]) -> BatchStatus:
    counts = object_or_empty(batch.get("request_counts"))
    number = {name: count for name, count in counts.items() if isinstance(count, int)}
    total, reported = sum(number.values()), text_or_empty(batch.get("processing_status"))
    name = text_or_empty(batch.get("id"))
    is_ended = reported == "ended"
    return BatchStatus(
        name, "ended" if is_ended else "waiting", total, total - number.get("processing", 0), reported, (name,)
    )


def _line_result(line: bytes) -> LineResult | None:
    """The result in a line; None for a line that cannot be attributed."""
    try:
        value = object_or_empty(loads(line))
    except BadJson:
        return None
    name, result = value.get("custom_id"), object_or_empty(value.get("result"))
    if not isinstance(name, str):
        return None
    match result.get("type"):
        case "succeeded":
            return Answered(name, dumps(result.get("message")))
        case "errored":
            # As in a response, the error is nested in an object of type "error".
            error = object_or_empty(result.get("error"))
            inner = object_or_empty(error.get("error")) or error
            names = [text_or_empty(inner.get("type"))]
            return LineFailed(name, line_error(named_error(names, error_message({"error": inner}))))
        case other:
            return LineFailed(name, not_processed(f"The line was not processed: {other}."))


def _seconds(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None
