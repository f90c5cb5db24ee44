"""Lines of batch files, in the format of OpenAI and `vllm run-batch`: requests in, responses out."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from ..core.fast_dataclass import dataclass
from .resources import BatchProblem

MAX_LINES = 50_000
"""Maximum number of requests in one batch."""
MAX_BYTES = 200 * 2**20
"""Maximum size of an input file in bytes."""
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class InputLine:
    """One request of a batch. `number` starts at 1."""

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]


def check_lines(
    lines: Iterable[bytes], endpoint: str | None = None, max_lines: int | None = MAX_LINES
) -> Iterator[InputLine | BatchProblem]:
    """Each request of a file, or the problem of its line. Skips empty lines. With `endpoint`, all lines must be for
    it."""
    seen: set[str] = set()
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        line = read_line(raw, number, endpoint)
        if isinstance(line, InputLine):
            if line.custom_id in seen:
                message = (
                    f"The custom_id '{line.custom_id[:_SHOWN]}' for this request is a duplicate of another request."
                )
                line = BatchProblem("duplicate_custom_id", message, "custom_id", number)
            else:
                seen.add(line.custom_id)
        yield line
        if max_lines is not None and len(seen) > max_lines:
            yield BatchProblem("too_many_tasks", f"The file has more requests than the limit of {max_lines:,}.")
            return
    if not seen:
        yield BatchProblem("empty_file", "The file has no valid request: each line must be one JSON object.")


def read_line(raw: bytes, number: int, endpoint: str | None = None) -> InputLine | BatchProblem:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return BatchProblem("invalid_json_line", "This line is not parseable as valid JSON.", None, number)
    if not isinstance(value, dict):
        return BatchProblem("invalid_json_line", "This line is not a JSON object.", None, number)
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if name not in value:
            return BatchProblem("missing_required_parameter", f"Missing required parameter: '{name}'.", name, number)
        if not isinstance(value[name], kind):
            wanted = "a string" if kind is str else "an object"
            return BatchProblem("invalid_type", f"Invalid type for '{name}': expected {wanted}.", name, number)
    if value["method"] != "POST":
        return BatchProblem("invalid_method", "The method of a request must be 'POST'.", "method", number)
    if endpoint is not None and value["url"] != endpoint:
        message = "The URL provided for this request does not match the batch endpoint."
        return BatchProblem("invalid_url", message, "url", number)
    return InputLine(number, value["custom_id"], value["url"], value["body"])


def response_line(line_id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """A line of an output file, or of an error file if the status is not 200. `body` is JSON."""
    response = orjson.Fragment(
        b'{"status_code":%d,"request_id":%b,"body":%b}' % (status, orjson.dumps(request_id), body)
    )
    return _line({"id": line_id, "custom_id": custom_id, "response": response, "error": None})


def failure_line(line_id: str, custom_id: str, code: str, message: str) -> bytes:
    """A line of an error file for a request that got no response."""
    error = {"code": code, "message": message}
    return _line({"id": line_id, "custom_id": custom_id, "response": None, "error": error})


def expired_line(line_id: str, custom_id: str) -> bytes:
    message = "This request could not be executed before the completion window expired."
    return failure_line(line_id, custom_id, "batch_expired", message)


def cancelled_line(line_id: str, custom_id: str) -> bytes:
    message = "This request was not executed because the batch was cancelled."
    return failure_line(line_id, custom_id, "batch_cancelled", message)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"
