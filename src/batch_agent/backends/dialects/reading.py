"""What servers answer with: one JSON object, or an error in its place."""

from typing import Any

from ...core.errors import BackendError, ErrorKind
from ..failures import reported_error
from ..json_body import BadJson, loads


def any_object(data: bytes) -> dict[str, Any]:
    """Raises BackendError for what is none."""
    try:
        value = loads(data)
    except BadJson as error:
        message = f"The server's answer is not JSON that can be read ({error}): {data[:200]!r}"
        raise BackendError(ErrorKind.SERVER, message) from error
    if not isinstance(value, dict):
        raise BackendError(ErrorKind.SERVER, f"The server's answer is not an object: {data[:200]!r}")
    return value


def read_object(data: bytes) -> dict[str, Any]:
    """Raises BackendError for what is none, and for an error that the server reports."""
    value = any_object(data)
    if value.get("error"):
        raise reported_error(value)
    return value
