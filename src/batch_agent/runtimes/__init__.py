"""Programs that do the work of agents."""

from .opencode import OpenCodeRuntime
from .process import ProcessRuntime

__all__ = ["OpenCodeRuntime", "ProcessRuntime"]
