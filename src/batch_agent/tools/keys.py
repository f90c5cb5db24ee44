"""When two calls are the same call."""

from typing import Any

from ..plan.identity import canonical


def call_key(tool: str, arguments: dict[str, Any]) -> tuple[str, bytes]:
    """Equal for calls that must give the same: arguments as the function gets them, with defaults, in any order.
    1 and 1.0 are not the same, nor is a text that only looks the same. Raises ValueError for what has no end."""
    return tool, canonical(arguments)
