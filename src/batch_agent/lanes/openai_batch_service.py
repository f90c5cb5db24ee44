"""Batches of OpenAI and of servers with the same API: a JSONL file, a batch, and files with the results."""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..backends.dialects.response_body import list_or_empty, object_or_empty, read_object, text_or_empty
from ..backends.http.client import ServerClient
from ..backends.http.json_body import BadJson, loads
from ..backends.http_errors import error_message, named_error, translate_status
from ..core.errors import BackendError, ErrorKind
from ..core.json import dumps
from ..core.protocols.store import Submission
from ..schedule.lanes.waves import SubmissionLimits
from .batch_service import Answered, BatchLine, BatchStatus, LineFailed, LineResult, line_error, not_processed

METADATA_KEY = "batch_agent_wave"
_TIMEOUT = 60.0
_TRANSFER_TIMEOUT = 600.0
_WINDOW = "24h"
_PAGE = 100
_CLOCK_SKEW = 3600.0
"""Seconds by which the provider's clock may be behind. Batches that were created earlier than that are not searched."""
_ENDED = ("completed", "expired", "cancelled")
_OVER_LIMIT = "token_limit_exceeded"
_ROOT = "/v1"
"""Path prefix of lines, which name the path at the provider whatever the path of a proxy is."""


class OpenAIBatchService:
    """`/files` and `/batches`. A batch is found again by its metadata."""

    limits = SubmissionLimits(50_000, 100_000_000)

    def __init__(self, server: ServerClient, path: str) -> None:
        """`path`: path of an ordinary request, relative to the server's root."""
        self._server = server
        self._path = _ROOT + path

    async def upload(self, lines: Sequence[BatchLine]) -> str:
        boundary = secrets.token_hex(16)
        body = b"".join(
            [
                b'--%b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' % boundary.encode(),
                b'--%b\r\nContent-Disposition: form-data; name="file"; filename="wave.jsonl"\r\n' % boundary.encode(),
                b"Content-Type: application/jsonl\r\n\r\n",
                encode_lines(lines, self._path),
                b"\r\n--%b--\r\n" % boundary.encode(),
            ]
        )
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        reply = await self._server.call("POST", self._server.url("/files"), _TRANSFER_TIMEOUT, body, headers)
        return text_or_empty(read_object(reply).get("id"))

    async def create(self, wave: str, file: str, lines: Sequence[BatchLine]) -> BatchStatus:
        batch = {
            "input_file_id": file,
            "endpoint": self._path,
            "completion_window": _WINDOW,
            "metadata": {METADATA_KEY: wave},
        }
        headers = {"Idempotency-Key": f"batch-agent-{wave}"}
        url = self._server.url("/batches")
        return _status(await self._server.call("POST", url, _TIMEOUT, dumps(batch), headers))

    async def find(self, submission: Submission) -> Sequence[BatchStatus]:
        after = ""
        while True:
            query = {"limit": str(_PAGE), **({"after": after} if after else {})}
            page = read_object(await self._server.get(self._server.url("/batches").update_query(query), _TIMEOUT))
            batches = [each for each in list_or_empty(page.get("data")) if isinstance(each, dict)]
            for each in batches:
                if object_or_empty(each.get("metadata")).get(METADATA_KEY) == submission.wave:
                    return [_read_status(each)]
            oldest = batches[-1].get("created_at") if batches else None
            is_past = isinstance(oldest, int | float) and oldest < submission.at - _CLOCK_SKEW
            if not batches or not page.get("has_more") or is_past:
                return []
            after = text_or_empty(batches[-1].get("id"))

    async def owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        return True  # its metadata says so

    async def withdraw(self, file: str) -> None:
        await self._server.call("DELETE", self._server.url(f"/files/{file}"), _TIMEOUT)

    async def status(self, batch: str) -> BatchStatus:
        return _status(await self._server.get(self._server.url(f"/batches/{batch}"), _TIMEOUT))

    async def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        for file in status.files:
            url = self._server.url(f"/files/{file}/content")
            async with aclosing(self._server.lines(url, _TIMEOUT)) as lines:
                async for line in lines:
                    if (result := read_result_line(line)) is not None:
                        yield result


def encode_lines(lines: Sequence[BatchLine], path: str) -> bytes:
    """The file of a batch. Bodies are inserted unchanged."""
    head = b'{"custom_id":%b,"method":"POST","url":%b,"body":%b}'
    return b"\n".join([head % (dumps(line.id), dumps(path), line.body) for line in lines])


def _status(data: bytes) -> BatchStatus:
    try:
        batch = loads(data)
    except BadJson as error:
        raise BackendError(ErrorKind.SERVER, f"The status of a batch is not JSON ({error}): {data[:200]!r}") from error
    if not isinstance(batch, dict) or not text_or_empty(batch.get("id")):
        raise BackendError(ErrorKind.SERVER, f"The response is not a batch: {data[:200]!r}")
    return _read_status(batch)


def _read_status(batch: Mapping[str, Any]) -> BatchStatus:
    reported, counts = text_or_empty(batch.get("status")), object_or_empty(batch.get("request_counts"))
    numbers = [count if isinstance(count := counts.get(name), int) else 0 for name in ("total", "completed", "failed")]
    files = tuple(filter(None, (text_or_empty(batch.get(name)) for name in ("output_file_id", "error_file_id"))))
    problems = [each for each in list_or_empty(object_or_empty(batch.get("errors")).get("data")) if each]
    error = _problem(problems) if reported == "failed" else None
    return BatchStatus(
        text_or_empty(batch.get("id")),
        "failed" if reported == "failed" else "ended" if reported in _ENDED else "waiting",
        numbers[0],
        numbers[1] + numbers[2],
        reported,
        files,
        error,
        any(object_or_empty(each).get("code") == _OVER_LIMIT for each in problems),
        {each["line"] - 1: _problem([each]) for each in problems if isinstance(object_or_empty(each).get("line"), int)},
    )


def _problem(problems: Sequence[Any]) -> BackendError:
    messages = [text_or_empty(object_or_empty(each).get("message")) or str(each) for each in problems]
    said = "; ".join(messages[:3]) or "no reason was given"
    return BackendError(ErrorKind.BAD_REQUEST, f"The provider did not accept the batch: {said}"[:1000], status=400)


def read_result_line(line: bytes) -> LineResult | None:
    """The result in a line of an output or error file; None for a line that cannot be attributed."""
    try:
        value = object_or_empty(loads(line))
    except BadJson:
        return None
    name = value.get("custom_id")
    if not isinstance(name, str):
        return None
    response, error = value.get("response"), value.get("error")
    if isinstance(response, dict):
        # vLLM puts the body of a failed request next to the response.
        status, body = response.get("status_code"), dumps(error if response.get("body") is None else response["body"])
        if status in (None, 200):
            return Answered(name, body)
        if isinstance(status, int):
            return LineFailed(name, line_error(translate_status(status, {}, body, "the batch")))
    code = text_or_empty(object_or_empty(error).get("code"))
    if code in ("batch_expired", "batch_cancelled"):
        return LineFailed(name, not_processed(f"The line was not processed ({code}): {error_message(value)}"))
    return LineFailed(name, line_error(named_error([code], error_message(value))))
