"""Parameters of a tool, whether declared by a function's signature or by a JSON schema."""

from typing import Any, Protocol

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
