"""Programs that do the work of agents."""

from .command.runtime import ProcessRuntime
from .opencode.runtime import OpenCodeRuntime

__all__ = ["OpenCodeRuntime", "ProcessRuntime"]
