"""What went wrong, in our words: statuses, broken connections and the errors that servers put into their answers."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from ..core.errors import BackendError, ErrorKind

_KINDS = {
    400: ErrorKind.BAD_REQUEST,
    401: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.SERVER,
    409: ErrorKind.SERVER,
    413: ErrorKind.CONTEXT_OVERFLOW,
    422: ErrorKind.BAD_REQUEST,
    425: ErrorKind.SERVER,
    429: ErrorKind.RATE_LIMITED,
}
_OVERFLOW_WORDS = (
    "maximum context length",
    "maximum model length",
    "maximum allowed length",
    "context_length_exceeded",
    "exceed_context_size",
    "context size",
    "context window",
)


def translate_status(status: int, headers: Mapping[str, str], body: bytes, url: str) -> BackendError:
    """What an error answer means for the caller, in the server's own words."""
    try:
        parsed = orjson.loads(body)
        message = error_message(parsed) if isinstance(parsed, dict) else str(parsed)
    except orjson.JSONDecodeError:
        message = body.decode(errors="replace").strip() or "no further words"
    kind = _kind(status, message + body[:2000].decode(errors="replace"))
    return BackendError(kind, f"HTTP {status} from {url}: {message[:1000]}", retry_after=_retry_after(headers))


def translate_failure(error: Exception, url: str) -> BackendError:
    """What a connection that failed or broke means for the caller."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return BackendError(ErrorKind.CONNECTION, f"Cannot connect to {url}: {error.os_error}.")
    if isinstance(error, aiohttp.InvalidURL):
        return BackendError(ErrorKind.BAD_REQUEST, f"{url} is not a URL that can be used.")
    if isinstance(error, TimeoutError):
        return BackendError(ErrorKind.CONNECTION, f"{url} did not answer in time.")
    return BackendError(ErrorKind.CONNECTION, f"The connection to {url} broke: {error or type(error).__name__}.")


def reported_error(answer: Mapping[str, Any]) -> BackendError:
    """An error that the server put into an answer with a good status, or into its stream."""
    message = error_message(answer)
    error = answer.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    status = code if isinstance(code, int) and code >= 400 else 500
    return BackendError(_kind(status, message), f"The server reported: {message[:1000]}")


def error_message(body: Mapping[str, Any]) -> str:
    """The server's own words, wherever it puts them."""
    error = body.get("error") or body.get("message") or body.get("detail") or body
    if isinstance(error, Mapping):
        error = error.get("message") or dict(error)
    return str(error)


def _kind(status: int, words: str) -> ErrorKind:
    kind = _KINDS.get(status, ErrorKind.SERVER if status >= 500 else ErrorKind.BAD_REQUEST)
    lowered = words.lower()
    if kind in (ErrorKind.BAD_REQUEST, ErrorKind.SERVER) and any(known in lowered for known in _OVERFLOW_WORDS):
        return ErrorKind.CONTEXT_OVERFLOW
    if kind is ErrorKind.RATE_LIMITED and "insufficient_quota" in lowered:
        return ErrorKind.AUTH
    return kind


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
