"""Parsers for parts of response bodies: JSON objects, reported errors and token counts."""

from typing import Any

from ...core.errors import BackendError, ErrorKind, WebPage
from ...core.requests import Lane, Usage
from ..http.json_body import BadJson, loads
from ..http_errors import reported_error, web_page

_MAX_TOKENS = 1_000_000_000
"""No request uses as many."""


def parse_object(data: bytes) -> dict[str, Any]:
    """Parses a JSON object. Raises BackendError for anything else."""
    try:
        value = loads(data)
    except BadJson as error:
        message = f"The server's response is not valid JSON ({error}): {data[:200]!r}"
        if (page := web_page(data)) is not None:
            raise WebPage(ErrorKind.SERVER, f"The server responded with {page}") from error
        if data.lstrip()[:1] == b"{":
            message += " It was cut off or changed on its way: look at the server's log, and at proxies in between."
        raise BackendError(ErrorKind.SERVER, message) from error
    if type(value) is not dict:
        raise BackendError(ErrorKind.SERVER, f"The server's response is not a JSON object: {data[:200]!r}")
    return value


def read_object(data: bytes) -> dict[str, Any]:
    """Parses a JSON object. Raises BackendError for anything else, and for an error that the server reports in it."""
    value = parse_object(data)
    if value.get("error"):
        raise reported_error(value)
    return value


def object_or_empty(value: Any) -> dict[str, Any]:
    """`value` if it is a JSON object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def list_or_empty(value: Any) -> list[Any]:
    """`value` if it is a JSON array, otherwise an empty one."""
    return value if isinstance(value, list) else []


def text_or_empty(value: Any) -> str:
    """`value` if it is a string, otherwise an empty one."""
    return value if isinstance(value, str) else ""


def token_count(value: Any) -> int:
    """A token count as a server reports it. 0, which means "not reported", for invalid values: a negative or absurd
    number, a float, a string, a boolean."""
    return value if type(value) is int and 0 < value <= _MAX_TOKENS else 0


def openai_usage(usage: Any) -> Usage | None:
    """The `usage` of a response in OpenAI's format; None if the server does not report it."""
    if type(usage) is not dict:
        return None
    input_tokens = token_count(usage.get("prompt_tokens"))  # including cached tokens
    output_tokens = token_count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if not details or type(details) is not dict:
        return Usage(input_tokens, 0, output_tokens)
    return Usage(input_tokens, min(input_tokens, token_count(details.get("cached_tokens"))), output_tokens)


def billed_lane(lane: Lane, tier: Any) -> Lane:
    """The lane by which a request in `lane` is billed, if the response names this service tier."""
    if lane == "batch" or not isinstance(tier, str) or tier == "auto":
        return lane
    return "flex" if tier.lower() == "flex" else "standard"


def billed_usage(usage: Usage, lane: Lane, tier: Any = None) -> Usage:
    """The usage of a request in `lane`, in the lane by which it is billed."""
    if tier is None and lane == "standard":
        return usage
    billed = billed_lane(lane, tier)
    return usage if billed == "standard" else usage.in_lane(billed)
