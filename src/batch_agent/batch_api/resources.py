"""Files, batches and their usage, as shown by OpenAI's API."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Protocol, Self, TypeVar

import orjson

from ..core.fast_dataclass import dataclass
from .api_error import ApiError


@dataclass(frozen=True, slots=True)
class BatchUsage:
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Self) -> "BatchUsage":
        return BatchUsage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.input + self.output,
        }


def batch_usage_from_json(value: Mapping[str, Any]) -> BatchUsage:
    """The inverse of `BatchUsage.as_json`."""
    return BatchUsage(
        value["input_tokens"],
        value["input_tokens_details"]["cached_tokens"],
        value["output_tokens"],
        value["output_tokens_details"]["reasoning_tokens"],
    )


def usage_of_line(output: bytes) -> BatchUsage:
    """Usage of a line in an output file; zeros if the server did not report it."""
    body = orjson.loads(output)["response"]["body"]
    usage = body.get("usage") if isinstance(body, dict) else None
    return BatchUsage(
        _count(usage, "prompt_tokens"),
        _count(usage, "prompt_tokens_details", "cached_tokens"),
        _count(usage, "completion_tokens"),
        _count(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def _count(value: Any, *names: str) -> int:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset(("completed", "failed", "expired", "cancelled"))
WINDOW = "24h"
"""The only valid completion window."""
WINDOW_SECONDS = 24 * 3600
MAX_METADATA = 16
_MAX_KEY, _MAX_VALUE = 64, 512
_MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An uploaded or produced file."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": None,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class BatchProblem:
    """A problem because of which a batch failed. `line` starts at 1; None means the whole file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class RequestCounts:
    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch. `at` has the time, in seconds, of each past status, by OpenAI's name: `completed_at`, ..."""

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    metadata: Mapping[str, str] | None = None
    status: Status = "validating"
    at: Mapping[str, int] = field(default_factory=dict)
    counts: RequestCounts = field(default_factory=RequestCounts)
    problems: Sequence[BatchProblem] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    usage: BatchUsage | None = None
    """Usage of an ended batch with responses."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def expires_at(self) -> int:
        return self.created_at + WINDOW_SECONDS

    def moved(self, status: Status, now: float) -> Self:
        """The batch in another status since `now`, or unchanged if it already has that status."""
        if status == self.status:
            return self
        return replace(self, status=status, at={**self.at, f"{status}_at": int(now)})

    def as_json(self) -> dict[str, Any]:
        errors = [problem.as_json() for problem in self.problems]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.at.get(f"{status}_at") for status in _DATED},
            "request_counts": {
                "total": self.counts.total,
                "completed": self.counts.completed,
                "failed": self.counts.failed,
            },
            "metadata": self.metadata and dict(self.metadata),
            "usage": self.usage and self.usage.as_json(),
        }


_DATED = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A validated request for a new batch."""

    input_file_id: str
    endpoint: str
    metadata: Mapping[str, str] | None


def read_batch_request(body: Mapping[str, Any], endpoints: Sequence[str]) -> BatchRequest:
    """Raises ApiError."""
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(body.get(name), str):
            raise ApiError(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if body["endpoint"] not in endpoints:
        raise ApiError(
            f"Invalid value: '{body['endpoint']}'. Supported values are: {_quoted(endpoints)}.",
            param="endpoint",
            code="invalid_value",
        )
    if body["completion_window"] != WINDOW:
        raise ApiError(
            f"Invalid value: '{body['completion_window']}'. Supported values are: '{WINDOW}'.",
            param="completion_window",
            code="invalid_value",
        )
    return BatchRequest(body["input_file_id"], body["endpoint"], _metadata(body.get("metadata")))


def cannot_cancel(batch: Batch) -> ApiError:
    return ApiError(f"Cannot cancel a batch with status '{batch.status}'.", 409)


class Resource(Protocol):
    @property
    def id(self) -> str: ...

    def as_json(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=Resource)


def page_of(newest_first: Sequence[R], query: Mapping[str, str], default_limit: int = 20) -> dict[str, Any]:
    """One page of a list, selected by `after` and `limit`. Raises ApiError."""
    limit = query.get("limit", str(default_limit))
    largest = max(_MAX_PAGE, default_limit)
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= largest:
        raise ApiError(f"limit must be between 1 and {largest}, got '{limit}'.", param="limit", code="invalid_value")
    start = 0
    if after := query.get("after"):
        found = [index for index, each in enumerate(newest_first) if each.id == after]
        if not found:
            raise not_in_list(after)
        start = found[0] + 1
    chosen = newest_first[start : start + int(limit)]
    return {
        "object": "list",
        "data": [each.as_json() for each in chosen],
        "first_id": chosen[0].id if chosen else None,
        "last_id": chosen[-1].id if chosen else None,
        "has_more": start + len(chosen) < len(newest_first),
    }


def not_in_list(name: str) -> ApiError:
    return ApiError(f"Invalid value for 'after': there is no object '{name}'.", param="after", code="invalid_value")


def _metadata(value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ApiError("metadata must be an object of strings.", param="metadata", code="invalid_type")
    too_long = any(len(key) > _MAX_KEY or len(each) > _MAX_VALUE for key, each in value.items())
    if len(value) > MAX_METADATA or too_long:
        raise ApiError(
            f"metadata may have {MAX_METADATA} keys of {_MAX_KEY} characters with values of {_MAX_VALUE}.",
            param="metadata",
            code="invalid_value",
        )
    return value


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def batch_from_json(value: Mapping[str, Any]) -> Batch:
    """The inverse of `Batch.as_json`."""
    errors = (value["errors"] or {}).get("data", ())
    counts = value["request_counts"]
    return Batch(
        value["id"],
        value["endpoint"],
        value["input_file_id"],
        value["created_at"],
        value["metadata"],
        value["status"],
        {f"{name}_at": at for name in _DATED if (at := value[f"{name}_at"]) is not None},
        RequestCounts(counts["total"], counts["completed"], counts["failed"]),
        tuple(BatchProblem(each["code"], each["message"], each["param"], each["line"]) for each in errors),
        value["output_file_id"],
        value["error_file_id"],
        batch_usage_from_json(usage) if (usage := value.get("usage")) else None,
    )
