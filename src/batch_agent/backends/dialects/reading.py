"""What OpenAI-compatible servers answer with: one JSON object, or an error in its place."""

from typing import Any

import orjson

from ...core.errors import BackendError, ErrorKind
from ..failures import reported_error


def read_object(data: bytes) -> dict[str, Any]:
    """Raises BackendError for what is none, and for an error that the server reports."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BackendError(ErrorKind.SERVER, f"The server's answer is not JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise BackendError(ErrorKind.SERVER, f"The server's answer is not an object: {data[:200]!r}")
    if value.get("error"):
        raise reported_error(value)
    return value
