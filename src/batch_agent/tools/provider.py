"""Tools that come from elsewhere, such as an MCP server, and must be opened first."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from .tool import Tool


@runtime_checkable
class ToolProvider(Protocol):
    """One of these among `tools=[...]` gives all its tools to the run, for as long as the run lasts."""

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Raises SpecError where it cannot be reached, before anything is sent to a model."""
        ...
