"""Parameters of a tool, whether declared by a function's signature or by a JSON schema."""

from typing import Any, Protocol

import orjson

from ...core.schema import JsonSchema


class BadArguments(ValueError):
    """The arguments do not fit; the message is written for the model."""


class ArgumentReader(Protocol):
    """A tool's parameters: as the model sees them, and from what the model wrote."""

    @property
    def schema(self) -> JsonSchema: ...

    def read(self, text: str) -> dict[str, Any]:
        """Keyword arguments, each of its declared type. Raises BadArguments."""
        ...


def parse_object(text: str) -> dict[str, Any]:
    """What a model wrote as arguments. Raises BadArguments unless it is a JSON object."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"The arguments are not valid JSON ({error}): {text[:200]!r}") from error
    if not isinstance(data, dict):
        raise BadArguments(f"The arguments must be one JSON object, not {type(data).__name__}.")
    return data
