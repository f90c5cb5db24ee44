"""Runtimes: programs that run as agents."""

from .command.runtime import ProcessRuntime
from .opencode.runtime import OpenCodeRuntime

__all__ = ["OpenCodeRuntime", "ProcessRuntime"]
