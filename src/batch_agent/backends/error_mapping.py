"""What went wrong, in our words: statuses, broken connections and the errors that servers put into their answers."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..core.errors import BackendError, ErrorKind
from .http.json_body import BadJson, loads
from .http.transport import BodyTooLarge, ConnectError, ConnectTimeout, InvalidUrl, TlsError

_KINDS = {
    400: ErrorKind.BAD_REQUEST,
    401: ErrorKind.AUTH,
    402: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    407: ErrorKind.AUTH,
    408: ErrorKind.SERVER,
    409: ErrorKind.SERVER,
    413: ErrorKind.CONTEXT_OVERFLOW,
    422: ErrorKind.BAD_REQUEST,
    424: ErrorKind.SERVER,
    425: ErrorKind.SERVER,
    429: ErrorKind.RATE_LIMITED,
    502: ErrorKind.UNAVAILABLE,
    503: ErrorKind.UNAVAILABLE,
    529: ErrorKind.UNAVAILABLE,
}
_STATUS_OF_NAMES = {
    "invalid_request_error": 400,
    "billing_error": 402,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "timeout_error": 408,
    "overloaded_error": 529,
    "validationexception": 400,
    "unrecognizedclientexception": 401,
    "accessdeniedexception": 403,
    "resourcenotfoundexception": 404,
    "modeltimeoutexception": 408,
    "modelerrorexception": 424,
    "modelstreamerrorexception": 424,
    "throttlingexception": 429,
    "servicequotaexceededexception": 429,
    "modelnotreadyexception": 503,
    "serviceunavailableexception": 503,
    "internalserverexception": 500,
}
"""How providers name their errors inside of answers and streams, and the status that they stand for."""
_OVERFLOW_WORDS = (
    "context length",
    "maximum model length",
    "maximum allowed length",
    "context_length_exceeded",
    "exceed_context_size",
    "context size",
    "context window",
    "prompt is too long",
    "input is too long",
)
_UNPAID_WORDS = ("insufficient_quota", "credit balance is too low")


def translate_status(status: int, headers: Mapping[str, str], body: bytes, url: str) -> BackendError:
    """What an error answer means for the caller, in the server's own words."""
    try:
        parsed = loads(body)
        message = error_message(parsed) if isinstance(parsed, dict) else str(parsed)
    except BadJson:
        message = body.decode(errors="replace").strip() or "no further words"
    if 300 <= status < 400:
        message = f"it redirects to {headers.get('Location', 'nowhere')}. If that is the server, use its address."
    kind = _kind(status, message + body[:2000].decode(errors="replace"))
    words = f"HTTP {status} from {url}: {message[:1000]}"
    return BackendError(kind, words, retry_after=_retry_after(headers), status=status)


def translate_failure(error: OSError, url: str) -> BackendError:
    """What a connection that failed or broke means for the caller."""
    if isinstance(error, TlsError):
        return BackendError(
            ErrorKind.TLS,
            f"No secure connection to {url}: {error}. If it has a certificate of its own, name its authority's file "
            "in the environment variable SSL_CERT_FILE; if it speaks plain HTTP, write http://.",
        )
    if isinstance(error, ConnectError):
        return BackendError(ErrorKind.UNAVAILABLE, f"Cannot connect to {url}: {error}.")
    if isinstance(error, InvalidUrl):
        return BackendError(ErrorKind.BAD_REQUEST, f"{url} is not a URL that can be used.")
    if isinstance(error, ConnectTimeout):
        return BackendError(ErrorKind.UNAVAILABLE, f"{url} does not answer: no connection in time.")
    if isinstance(error, BodyTooLarge):
        return BackendError(
            ErrorKind.SERVER,
            f"The answer of {url} is too large: {error}, so the rest was not read. If the model may write as much, "
            "lower max_tokens or ask for fewer details, such as logprobs; if not, look at what answers there.",
        )
    if isinstance(error, TimeoutError):
        return BackendError(ErrorKind.CONNECTION, f"{url} did not answer in time.")
    return BackendError(ErrorKind.CONNECTION, f"The connection to {url} broke: {error or type(error).__name__}.")


def reported_error(answer: Mapping[str, Any]) -> BackendError:
    """An error that the server put into an answer with a good status, or into its stream."""
    error = answer.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, int) and code >= 400:
        return _reported(code, error_message(answer))
    names = [error.get("type"), code] if isinstance(error, Mapping) else []
    return named_error([str(name) for name in names if name], error_message(answer))


def named_error(names: list[str], message: str) -> BackendError:
    """An error that comes with a name instead of a status; the first name that is known counts."""
    known = [_STATUS_OF_NAMES[name.lower()] for name in names if name.lower() in _STATUS_OF_NAMES]
    return _reported(known[0] if known else 500, message)


def _reported(status: int, message: str) -> BackendError:
    return BackendError(_kind(status, message), f"The server reported: {message[:1000]}")


def error_message(body: Mapping[str, Any]) -> str:
    """The server's own words, wherever it puts them."""
    error = body.get("error") or body.get("message") or body.get("Message") or body.get("detail") or body
    if isinstance(error, Mapping):
        error = error.get("message") or dict(error)
    return str(error)


def _kind(status: int, words: str) -> ErrorKind:
    kind = _KINDS.get(status, ErrorKind.SERVER if status >= 500 else ErrorKind.BAD_REQUEST)
    lowered = words.lower()
    if kind in (ErrorKind.BAD_REQUEST, ErrorKind.SERVER) and any(known in lowered for known in _OVERFLOW_WORDS):
        return ErrorKind.CONTEXT_OVERFLOW
    if kind in (ErrorKind.BAD_REQUEST, ErrorKind.RATE_LIMITED) and any(known in lowered for known in _UNPAID_WORDS):
        return ErrorKind.AUTH
    return kind


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        from email.utils import parsedate_to_datetime  # most servers give seconds

        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
