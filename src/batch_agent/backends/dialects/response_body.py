"""What servers answer with: one JSON object, or an error in its place, and numbers of tokens."""

from typing import Any

from ...core.errors import BackendError, ErrorKind
from ...core.requests import Usage
from ..error_mapping import reported_error
from ..http.json_body import BadJson, loads

_MOST_TOKENS = 1_000_000_000
"""No request takes as many."""


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


def object_or_empty(value: Any) -> dict[str, Any]:
    """A part of an answer that should be an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def text_or_empty(value: Any) -> str:
    """A part of an answer that should be a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def token_count(value: Any) -> int:
    """A number of tokens as a server tells it. 0, which stands for "not told", for anything that cannot be one: a
    negative or an absurd number, a float, a text, a boolean."""
    return value if type(value) is int and 0 < value <= _MOST_TOKENS else 0


def openai_usage(usage: Any) -> Usage | None:
    """The `usage` of an answer in OpenAI's format; None where the server does not tell it."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    given = token_count(usage.get("prompt_tokens"))  # with what was cached
    return Usage(given, min(given, token_count(cached)), token_count(usage.get("completion_tokens")))
