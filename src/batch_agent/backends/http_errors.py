"""Mapping of HTTP statuses, connection failures and errors inside of responses to BackendError."""

import errno
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..core.errors import BackendError, ErrorKind
from ..core.requests import Lane
from .http.json_body import BadJson, loads
from .http.transport import BodyTooLarge, ConnectError, ConnectTimeout, InvalidUrl, TlsError

_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a connection that this machine could not make, for want of a file."""
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
_STATUS_BY_NAME = {
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
"""Names of errors inside of responses and streams, and the HTTP status that each stands for."""
_OVERFLOW_PHRASES = (
    "context length",
    "maximum model length",
    "maximum allowed length",
    "context_length_exceeded",
    "exceed_context_size",
    "context size",
    "context window",
    "prompt is too long",
    "input is too long",
    "exceeds the maximum number of tokens",
    "max_new_tokens",
    "reduce the length of the messages",
)
_DEAD_ENGINE = "enginecore encountered an issue"
"""What vLLM responds to each request once the process with its model has ended; its API follows soon."""
_WITHOUT_TOOLS = "requires --jinja"
"""What llama.cpp responds, as an error of its own, to tools that it was not started for."""
_NO_CAPACITY_PHRASES = ("resource_unavailable", "resource unavailable", "capacity_exceeded")
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')
"""Gemini says in the body of a refusal when to try again."""
_PAGE = re.compile(rb"\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_TITLE = re.compile(rb"<(title|h1)[^>]*>\s*(.{1,100}?)\s*</\1", re.IGNORECASE | re.DOTALL)
_UNPAID_PHRASES = ("insufficient_quota", "credit balance is too low")


def translate_status(
    status: int, headers: Mapping[str, str], body: bytes, url: str, lane: Lane = "standard"
) -> BackendError:
    """The BackendError for an error response to a request in this lane, with the server's message."""
    try:
        parsed = loads(body)
        if isinstance(parsed, list) and len(parsed) == 1:  # Gemini's errors are in a list
            parsed = parsed[0]
        message = error_message(parsed) if isinstance(parsed, dict) else str(parsed)
    except BadJson:
        message = web_page(body) or body.decode(errors="replace").strip() or "no error message"
    if 300 <= status < 400:
        message = f"redirect to {headers.get('Location', 'no location')}. If that is the server, use its URL."
    content = message + body[:2000].decode(errors="replace")
    kind = ErrorKind.CAPACITY if lane == "flex" and _lacks_capacity(status, content) else _kind(status, content)
    text = f"HTTP {status} from {url}: {_explain(message[:1000])}"
    retry_after = _retry_after(headers)
    if retry_after is None and (delay := _RETRY_DELAY.search(content)) is not None:
        retry_after = float(delay[1])
    return BackendError(kind, text, retry_after=retry_after, status=status)


def web_page(body: bytes) -> str | None:
    """What to do about a response that is a web page; None if it is something else."""
    if _PAGE.match(body) is None:
        return None
    title = _TITLE.search(body[:10_000])
    name = "" if title is None else f" ({title[2].decode(errors='replace')})"
    return (
        f"a web page{name} instead of an answer. A proxy or another program responds at this address: check the URL, "
        "and whether the server behind the proxy is up."
    )


def translate_failure(error: OSError, url: str) -> BackendError:
    """The BackendError for a connection that could not be made or failed."""
    if isinstance(error, TlsError):
        return BackendError(
            ErrorKind.TLS,
            f"The TLS connection to {url} failed: {error}. For a private certificate authority, set the environment "
            "variable SSL_CERT_FILE to its file; for a server that speaks plain HTTP, use http://.",
        )
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_FILES:
        # As a refusal: fewer requests are sent, and no endpoint is to blame.
        return BackendError(
            ErrorKind.RATE_LIMITED,
            f"Cannot connect to {url}: {error}. This process needs a file for each connection: raise its limit "
            "(ulimit -n), or lower max_inflight.",
        )
    if isinstance(error, ConnectError):
        return BackendError(ErrorKind.UNAVAILABLE, f"Cannot connect to {url}: {error}.")
    if isinstance(error, InvalidUrl):
        return BackendError(ErrorKind.BAD_REQUEST, f"{url} is not a valid URL.")
    if isinstance(error, ConnectTimeout):
        return BackendError(ErrorKind.UNAVAILABLE, f"Cannot connect to {url}: the connection timed out.")
    if isinstance(error, BodyTooLarge):
        return BackendError(
            ErrorKind.SERVER,
            f"The response from {url} is too large: {error}; the rest was not read. If the model may generate as much, "
            "lower max_tokens or request fewer details, such as logprobs; otherwise check which server responds there.",
        )
    if isinstance(error, TimeoutError):
        return BackendError(ErrorKind.CONNECTION, f"{url} did not respond in time.")
    return BackendError(ErrorKind.CONNECTION, f"The connection to {url} failed: {error or type(error).__name__}.")


def reported_error(response: Mapping[str, Any]) -> BackendError:
    """An error that the server reported in a response with status 200, or in a stream."""
    error = response.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, int) and code >= 400:
        return _reported(code, error_message(response))
    names = [error.get("type"), code] if isinstance(error, Mapping) else []
    return named_error([str(name) for name in names if name], error_message(response))


def named_error(names: list[str], message: str) -> BackendError:
    """An error that has a name instead of a status; the first known name counts."""
    statuses = [_STATUS_BY_NAME[name.lower()] for name in names if name.lower() in _STATUS_BY_NAME]
    return _reported(statuses[0] if statuses else 500, message)


def _reported(status: int, message: str) -> BackendError:
    return BackendError(_kind(status, message), f"The server reported: {_explain(message[:1000])}")


def error_message(body: Mapping[str, Any]) -> str:
    """The message of an error body, whichever field the server puts it into."""
    error = body.get("error") or body.get("message") or body.get("Message") or body.get("detail") or body
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or dict(error)
    return _refused_fields(error) if isinstance(error, list) else str(error)


def _refused_fields(details: list[Any]) -> str:
    """The messages about fields of a request, as Mistral and others that use Pydantic list them."""
    found = []
    for detail in details:
        match detail:
            case {"loc": list(where), "msg": str(message)}:
                found.append(f"{'.'.join(str(part) for part in where if part != 'body')}: {message}")
            case _:
                return str(details)
    return "; ".join(found)


def _explain(message: str) -> str:
    if _DEAD_ENGINE not in message.lower():
        return message
    return f"the engine has died, and the server has to be restarted. Its log says why. ({message})"


def _lacks_capacity(status: int, text: str) -> bool:
    """Whether the lane flex had no capacity. OpenAI and Azure say so with a 429, Gemini and Bedrock with a 503, Groq
    with a 498. Other refusals are of the rate limits, which hold in all lanes."""
    if status == 429:
        return any(phrase in text.lower() for phrase in _NO_CAPACITY_PHRASES)
    return status in (498, 503)


def _kind(status: int, text: str) -> ErrorKind:
    kind = _KINDS.get(status, ErrorKind.SERVER if status >= 500 else ErrorKind.BAD_REQUEST)
    lowered = text.lower()
    if kind is ErrorKind.SERVER and _DEAD_ENGINE in lowered:
        return ErrorKind.UNAVAILABLE
    if kind is ErrorKind.SERVER and _WITHOUT_TOOLS in lowered:
        return ErrorKind.BAD_REQUEST
    if kind in (ErrorKind.BAD_REQUEST, ErrorKind.SERVER) and any(phrase in lowered for phrase in _OVERFLOW_PHRASES):
        return ErrorKind.CONTEXT_OVERFLOW
    if kind in (ErrorKind.BAD_REQUEST, ErrorKind.RATE_LIMITED) and any(phrase in lowered for phrase in _UNPAID_PHRASES):
        return ErrorKind.AUTH
    return kind


def _retry_after(headers: Mapping[str, str]) -> float | None:
    milliseconds = headers.get("retry-after-ms")  # Azure's, more exact than its seconds
    if milliseconds is not None and milliseconds.strip().replace(".", "", 1).isdecimal():
        return float(milliseconds) / 1000
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
